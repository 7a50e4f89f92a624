// Opens reports that are dropped on a page, without a server: their words, and their
// timelines under each other. What a file holds is only data here: none of its scripts
// runs, the page's policy allows no other than its own.
(function (root) {
  "use strict";
  const MOST_BYTES = 300e6;
  const HOW = "make a page of it with: fsdpdoctor report RUN --out report.html";
  const KEPT = new Set(["class", "style", "title", "scope", "data-jump", "data-copy", "open", "type"]);
  const TAGS = new Set(["A", "B", "BUTTON", "DETAILS", "DIV", "FOOTER", "H1", "H2", "H3", "I", "LI", "OL", "P", "PRE",
    "SECTION", "SPAN", "SUMMARY", "TABLE", "TBODY", "TD", "TH", "THEAD", "TR", "UL"]);

  /** @typedef {{ meta: Meta, columns: string, layout: ColumnsLayout[], memory: Record<number, MemorySamples | null>,
   *   lit?: Record<string, Lit[]> }} PageData */
  /** @typedef {{ name: string, words: HTMLElement, source: DataSource | null }} Opened */

  /**
   * A copy that holds words and tables alone, whatever the file holds.
   * @param {Element} element
   * @returns {HTMLElement | null}
   */
  function copyOf(element) {
    if (!TAGS.has(element.tagName)) return null;
    const copy = document.createElement(element.tagName === "A" ? "span" : element.tagName);
    for (const { name, value } of element.attributes) if (KEPT.has(name)) copy.setAttribute(name, value);
    for (const child of element.childNodes) {
      if (child instanceof Element) copy.append(copyOf(child) || "");
      else if (child.nodeType === Node.TEXT_NODE) copy.append(child.textContent || "");
    }
    return copy;
  }

  /**
   * @param {string} tag
   * @param {string} text
   * @param {string} [name] its class
   */
  function made(tag, text, name) {
    const element = document.createElement(tag);
    element.textContent = text;
    if (name) element.className = name;
    return element;
  }

  /**
   * @param {string} text
   * @param {string} name
   * @returns {Promise<Opened>}
   */
  async function ofPage(text, name) {
    const page = new DOMParser().parseFromString(text, "text/html");
    if (!page.querySelector("footer")?.textContent?.startsWith("fsdpdoctor")) {
      throw new Error(`this is no report of fsdpdoctor; ${HOW}`);
    }
    const words = document.createElement("div");
    for (const child of page.body.children) {
      if (child.id !== "fd-timeline") words.append(copyOf(child) || "");
    }
    const data = page.getElementById("fd-data")?.textContent;
    return { name, words, source: data ? await sourceOf(JSON.parse(data), name) : null };
  }

  /**
   * @param {PageData} page
   * @param {string} name
   */
  async function sourceOf(page, name) {
    const columns = await root.fsdpLocalSource.unpackColumns(page.columns, page.layout);
    // A report of before there were bars has none.
    const steps = page.meta.steps || { count: 0, usual: 0, bars: [] };
    const meta = { ...page.meta, steps, id: name, label: name };
    const source = new root.fsdpLocalSource.LocalSource(meta, columns, page.memory);
    source.lights = page.lit || {};
    return source;
  }

  /** @typedef {{ text: string, code?: string | null }} Advice */
  /** @typedef {{ severity: string, code: string, name: string, summary: string, advice?: Advice[] }} Finding */

  /**
   * A report's JSON: its verdict, what it found, and what to do.
   * @param {{ verdict?: { text?: string }, findings?: Finding[], traceEvents?: unknown }} report
   * @param {string} name
   * @returns {Opened}
   */
  function ofJson(report, name) {
    if (report.traceEvents) throw new Error(`this is a trace; ${HOW}`);
    if (!report.verdict?.text || !Array.isArray(report.findings)) throw new Error(`this is no report's JSON; ${HOW}`);
    const words = document.createElement("div");
    words.append(made("h1", report.verdict.text));
    words.append(made("p", "A report's JSON has no timeline.", "facts"));
    for (const finding of report.findings) {
      const card = made("section", "", "finding");
      card.classList.add(["critical", "warning"].includes(finding.severity) ? finding.severity : "info");
      const head = made("h3", "");
      head.append(made("span", finding.severity, "severity"), made("span", ` ${finding.code} ${finding.name}`));
      card.append(head, made("p", finding.summary));
      for (const { text, code } of finding.advice || []) {
        card.append(made("p", `Try: ${text}`));
        if (code) card.append(made("pre", code));
      }
      words.append(card);
    }
    return { name, words, source: null };
  }

  /**
   * @param {File} file
   * @param {string} name
   */
  async function opened(file, name) {
    if (file.size > MOST_BYTES) throw new Error("it is larger than a report can be");
    const text = (await file.text()).trimStart();
    if (text.startsWith("<")) return ofPage(text, name);
    if (text.startsWith("{")) return ofJson(JSON.parse(text), name);
    throw new Error(`a recorded run's own files are not read here; ${HOW}`);
  }

  // The first step of each begins at one place.
  /** @param {DataSource[]} sources */
  function align(sources) {
    /** @param {any} source */
    const begin = (source) => {
      const rulers = source.ofRow(source.meta.ranks[0]?.rank, root.fsdpTiles.Row.STEP);
      return rulers[0]?.start[0] || 0;
    };
    for (const source of sources) source.offset = begin(sources[0]) - begin(source);
  }

  class FsdpViewer {
    /** @param {Document} page */
    constructor(page) {
      this.host = /** @type {HTMLElement} */ (page.getElementById("fd-timeline"));
      this.words = /** @type {HTMLElement} */ (page.getElementById("words"));
      this.said = /** @type {HTMLElement} */ (page.getElementById("said"));
      /** @type {Timeline | null} */
      this.timeline = null;
      this.dark = root.matchMedia("(prefers-color-scheme: dark)");
      this.dark.addEventListener("change", () => this.timeline?.setTheme(this.theme()));
      page.addEventListener("dragover", (event) => event.preventDefault());
      page.addEventListener("drop", (event) => {
        event.preventDefault();
        this.open([...(event.dataTransfer?.files || [])]);
      });
      page.getElementById("files")?.addEventListener("change", ({ target }) => {
        if (target instanceof HTMLInputElement) this.open([...(target.files || [])]);
      });
      page.addEventListener("click", (event) => this.click(event));
    }

    /** @returns {Theme} */
    theme() {
      return this.dark.matches ? "dark" : "light";
    }

    /** @param {File[]} files */
    async open(files) {
      /** @type {Opened[]} */
      const found = [];
      const wrong = [];
      for (const [at, file] of files.entries()) {
        const again = files.slice(0, at).filter((other) => other.name === file.name).length;
        try {
          found.push(await opened(file, again ? `${file.name} ${again + 1}` : file.name));
        } catch (error) {
          wrong.push(`${file.name}: ${error instanceof Error ? error.message : error}`);
        }
      }
      this.said.textContent = wrong.join("\n");
      if (found.length) this.show(found);
    }

    /** @param {Opened[]} found */
    show(found) {
      this.words.replaceChildren(...found.map(({ name, words }) => {
        const section = made("section", "", "opened");
        section.dataset.run = name;
        section.append(made("p", name, "facts"), words);
        return section;
      }));
      this.words.classList.toggle("twice", found.length > 1);
      document.title = `${found.map(({ name }) => name).join(", ")} - fsdpdoctor`;
      this.timeline?.destroy();
      const sources = found.flatMap(({ source }) => (source ? [source] : []));
      this.host.hidden = !sources.length;
      this.timeline = null;
      if (!sources.length) return;
      align(sources);
      this.timeline = new root.FsdpTimeline(this.host, { sources, theme: this.theme() });
      root.fsdpTimeline = this.timeline;
    }

    /** @param {MouseEvent} event */
    async click({ target }) {
      if (!(target instanceof Element)) return;
      const jump = target.closest("[data-jump]"), copy = target.closest("[data-copy]");
      if (jump instanceof HTMLElement && this.timeline) {
        const [rank, t0, t1] = (jump.dataset.jump || "").split(",").map(Number);
        const name = jump.closest("section.opened")?.getAttribute("data-run") || "";
        const track = this.timeline.track(rank, name);
        this.host.scrollIntoView({ block: "start" });
        this.timeline.jump(t0 + (track?.offset || 0), t1 + (track?.offset || 0), track);
        if (track) this.timeline.selection.light(track.source, track.source.lights?.[jump.dataset.jump || ""] || []);
      }
      const code = copy?.parentElement?.querySelector("pre");
      if (!copy || !code) return;
      try {
        await root.navigator.clipboard.writeText(code.textContent || "");
        copy.textContent = "Copied";
      } catch {
        root.getSelection()?.selectAllChildren(code); // ready for Ctrl+C
      }
    }
  }

  root.fsdpViewer = new FsdpViewer(document);
})(window);
