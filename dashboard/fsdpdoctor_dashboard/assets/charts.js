// Fetches plotly ahead: at once where the page has charts, else while nobody waits. It
// runs when the page's words are there, for it holds up everything else while it does.
// Whoever asks for it meanwhile, as Dash's graphs do, waits for this one and takes no
// second. Beside a timeline it is only fetched: to run it would hold up a frame.
(function () {
  "use strict";
  const QUIET_MS = 1500; // after a page is there
  const own = /** @type {HTMLElement | null} */ (document.querySelector("script[data-plotly]"));
  const address = own?.dataset.plotly, base = own?.dataset.base || "/";
  const charts = (own?.dataset.charts || "").split(" ");
  if (!address) return;

  const page = () => window.location.pathname.slice(base.length);

  // `when` the script may run: until then it is only fetched.
  /** @param {Promise<unknown>} when */
  function load(when) {
    if ("Plotly" in window && window.Plotly) return;
    hint("preload");
    const script = document.createElement("script");
    script.src = String(address);
    const ready = new Promise((done, failed) => {
      script.onload = done;
      script.onerror = failed;
    });
    // Dash waits for what stands here, and finds plotly itself once it has.
    const held = /** @type {any} */ (window);
    held.Plotly = ready;
    ready.catch(() => {
      if (held.Plotly === ready) delete held.Plotly; // then Dash tries by itself
    });
    when.then(() => document.head.append(script));
  }

  /** @param {"preload" | "prefetch"} rel */
  function hint(rel) {
    const link = document.createElement("link");
    Object.assign(link, { rel, as: "script", href: address });
    document.head.append(link);
  }

  function ahead() {
    if (document.documentElement.classList.contains("gone")) return;
    if (page() === "timeline") {
      hint("prefetch");
      return;
    }
    load(Promise.resolve());
    // The server makes the pages with charts meanwhile: the first one is then there, too.
    const query = new URLSearchParams(window.location.search);
    query.set("theme", document.documentElement.dataset.theme || "light");
    if (page() !== "runs") window.fetch(`${base}ahead?${query}`).catch(() => {});
  }

  /** @param {() => void} act */
  const later = (act) => ("requestIdleCallback" in window ? window.requestIdleCallback(act) : act());

  // Once the page has its words, and a frame to show them in.
  const words = new Promise((done) => {
    const observer = new MutationObserver(() => {
      if (!document.querySelector("#page main")) return;
      observer.disconnect();
      requestAnimationFrame(() => setTimeout(done));
    });
    observer.observe(document.documentElement, { childList: true, subtree: true });
  });
  // Running it takes longer than all else of a page: the words do not wait for it.
  if (charts.includes(page())) load(words);
  else words.then(() => setTimeout(() => later(ahead), QUIET_MS));
})();
