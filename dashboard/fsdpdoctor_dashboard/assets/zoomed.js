// What somebody zoomed to stays when a page is made anew: Dash then puts another figure in
// the place of the one before.
(function () {
  "use strict";
  /** @typedef {HTMLElement & { on: (name: string, heard: (change: Record<string, unknown>) => void) => void }} Graph */
  /** @type {Map<number, Record<string, unknown>>} */
  const zooms = new Map(); // by the figure's place on the page
  /** @type {WeakSet<Element>} */
  const heard = new WeakSet();

  /** @param {Element} graph */
  const isDrawn = (graph) => "on" in graph && Boolean(graph.querySelector(".main-svg"));

  function look() {
    [...document.querySelectorAll("#page .js-plotly-plot")].forEach((graph, place) => {
      if (heard.has(graph) || !isDrawn(graph)) return;
      heard.add(graph);
      const before = zooms.get(place);
      if (before) window.Plotly?.relayout(graph, before);
      /** @type {Graph} */ (graph).on("plotly_relayout", (change) => {
        const ranges = Object.entries(change).filter(([name]) => /^[xy]axis\d*\.range/.test(name));
        if (ranges.length) zooms.set(place, { ...zooms.get(place), ...Object.fromEntries(ranges) });
        else if (Object.keys(change).some((name) => name.endsWith(".autorange"))) zooms.delete(place);
      });
    });
  }

  document.addEventListener("fsdp-left", () => zooms.clear());
  new MutationObserver(look).observe(document.documentElement, { childList: true, subtree: true });
})();
