// What a person has set stays when a page is made anew, as a growing run's is every few
// seconds: opened code, a filter, the order of a table, a map's moment, the place on the
// page. It is forgotten where the address goes to another page.
(function () {
  "use strict";
  /**
   * @typedef {{ page: string, open: Set<string>, sorted: Map<string, Order>,
   *   filters: Map<string, string>, moments: Map<number, string>,
   *   scrolled: Map<number, number>, place: number }} Kept
   * @type {Kept}
   */
  const kept = {
    page: "",
    open: new Set(), // details, by their words
    sorted: new Map(), // tables, by their id
    filters: new Map(), // of tables, by their id
    moments: new Map(), // of maps, by their place
    scrolled: new Map(), // wide tables, by their place
    place: 0, // of the page
  };
  const MAPS = ".unit-map input", WIDE = ".scroll";

  /**
   * Which of the page's elements of a kind this is.
   * @param {Element} element
   * @param {string} kind
   */
  const placeOf = (element, kind) => [...document.querySelectorAll(`#page ${kind}`)].indexOf(element);

  // The runs and the page: a timeline's view is no other page.
  function address() {
    const query = new URLSearchParams(window.location.search);
    const names = ["run", "with", "rank", "step", "code"];
    return [window.location.pathname, ...names.map((each) => query.get(each) || "")].join("|");
  }

  /** @param {Element} details */
  function nameOf(details) {
    const around = details.parentElement?.closest("section");
    const words = (/** @type {Element | null | undefined} */ part) => part?.textContent || "";
    return `${words(around?.querySelector("h3"))}|${words(details.querySelector("summary"))}`;
  }

  /** @param {HTMLInputElement} input */
  const filterOf = (input) => (
    /** @type {HTMLElement | null} */ (input.closest("[data-filter-for]"))?.dataset.filterFor || "");

  /**
   * As if somebody had typed it: React keeps its own idea of a field's value.
   * @param {HTMLInputElement} input
   * @param {string} text
   */
  function type(input, text) {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value")?.set?.call(input, text);
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** @param {HTMLElement} page */
  function restore(page) {
    for (const details of page.querySelectorAll("details")) {
      if (kept.open.has(nameOf(details))) details.open = true;
    }
    for (const [id, order] of kept.sorted) {
      const table = document.getElementById(id);
      if (table instanceof HTMLTableElement) window.fsdpPage.sort(table, order);
    }
    for (const input of page.querySelectorAll("input")) {
      const id = filterOf(input), text = kept.filters.get(id) || "";
      if (!text) continue;
      if (input.value !== text) type(input, text);
      else window.fsdpPage.filter(input);
    }
    for (const input of page.querySelectorAll(MAPS)) {
      const moment = kept.moments.get(placeOf(input, MAPS));
      if (moment !== undefined && input instanceof HTMLInputElement) type(input, moment);
    }
    for (const wide of page.querySelectorAll(WIDE)) {
      wide.scrollLeft = kept.scrolled.get(placeOf(wide, WIDE)) || 0;
    }
    if (window.scrollY < kept.place - 1) window.scrollTo(0, kept.place);
  }

  function forget() {
    for (const held of [kept.open, kept.sorted, kept.filters, kept.moments, kept.scrolled]) held.clear();
    kept.place = 0;
    document.dispatchEvent(new CustomEvent("fsdp-left"));
  }

  function isSet() {
    const held = [kept.open, kept.sorted, kept.filters, kept.moments, kept.scrolled];
    return kept.place > 0 || held.some((each) => each.size > 0);
  }

  function sayWhere() {
    const here = document.querySelector("#nav a.here");
    for (const link of document.querySelectorAll("#nav a")) {
      if (link === here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const runs = document.querySelector("#runs summary")?.textContent;
    const parts = [here?.textContent, runs, "fsdpdoctor"];
    const title = parts.filter(Boolean).join(" - ");
    if (here && document.title !== title) document.title = title;
    // In a narrow window the nav scrolls: where one is must be in sight.
    const nav = here?.parentElement;
    if (nav && here instanceof HTMLElement && nav.scrollWidth > nav.clientWidth) {
      nav.scrollLeft = here.offsetLeft - (nav.clientWidth - here.offsetWidth) / 2 - nav.offsetLeft;
    }
  }

  // An early timeline that no page has taken: the page says why it shows none.
  /** @param {HTMLElement} page */
  function dropFirstPaint(page) {
    const early = window.fsdpFirstPaint;
    if (early && page.querySelector("main") && !page.querySelector(".fd-host")) early.take([], page);
  }

  // What changes inside a picture, as under the mouse, makes no page anew.
  /** @param {Node} node */
  const isPicture = (node) => node instanceof Element
    && Boolean(node.closest(".dash-graph, .fd-host, .unit-map [role=status]"));

  let named = "";
  const observer = new MutationObserver((changes) => {
    const page = document.getElementById("page");
    if (!page) return;
    const nav = document.getElementById("header");
    if (nav && changes.some((change) => nav.contains(change.target))) sayWhere();
    if (!changes.some((change) => page.contains(change.target) && !isPicture(change.target))) return;
    dropFirstPaint(page);
    const now = address();
    if (now !== kept.page) {
      kept.page = now;
      forget();
    } else if (isSet()) restore(page);
    if (named !== now) {
      named = now;
      sayWhere();
    }
    observer.takeRecords(); // of what was just done here
  });
  observer.observe(document.documentElement, { childList: true, subtree: true });

  document.addEventListener("toggle", (event) => {
    const details = event.target;
    if (!(details instanceof HTMLDetailsElement) || !details.closest("#page")) return;
    if (!details.isConnected || details.matches(".card")) return; // see finding_cards.js
    if (details.open) kept.open.add(nameOf(details));
    else kept.open.delete(nameOf(details));
  }, true);
  document.addEventListener("input", (event) => {
    if (!(event.target instanceof HTMLInputElement)) return;
    if (filterOf(event.target)) kept.filters.set(filterOf(event.target), event.target.value);
    else if (event.target.matches(MAPS)) kept.moments.set(placeOf(event.target, MAPS), event.target.value);
  });
  // What a person scrolls: a page that is made anew scrolls too, by getting shorter.
  document.addEventListener("scroll", (event) => {
    if (event.target === document) kept.place = window.scrollY;
    else if (event.target instanceof Element && event.target.matches(WIDE)) {
      kept.scrolled.set(placeOf(event.target, WIDE), event.target.scrollLeft);
    }
  }, { capture: true, passive: true });
  document.addEventListener("fsdp-sorted", (event) => {
    const table = event.target;
    if (table instanceof HTMLTableElement && event instanceof CustomEvent) {
      kept.sorted.set(table.id, event.detail);
    }
  });
})();
