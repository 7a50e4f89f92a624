// The table of runs: two that are ticked can be compared. A tick stays when the table is
// made anew, as it is while runs are being read.
(function () {
  "use strict";
  /** @type {Set<string>} */
  const ticked = new Set();

  function show() {
    const button = document.getElementById("compare");
    if (!(button instanceof HTMLButtonElement)) return;
    for (const tick of document.querySelectorAll("[data-tick]")) {
      const set = tick instanceof HTMLElement && ticked.has(tick.dataset.tick || "");
      if (tick.getAttribute("aria-checked") !== String(set)) tick.setAttribute("aria-checked", String(set));
    }
    const [run, other, ...more] = ticked;
    let words = `Compare ${run} with ${other}`;
    if (!other) words = "Compare: tick two";
    else if (more.length) words = "Compare: only two can be ticked";
    if (button.textContent !== words) button.textContent = words;
    button.disabled = !other || more.length > 0;
  }

  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const tick = target?.closest("[data-tick]");
    if (tick instanceof HTMLElement) {
      const run = tick.dataset.tick || "";
      if (!ticked.delete(run)) ticked.add(run);
      show();
    }
    const button = target?.closest("#compare");
    if (!(button instanceof HTMLElement) || ticked.size !== 2) return;
    const [run, other] = ticked;
    ticked.clear();
    const query = new URLSearchParams({ run, with: other });
    // As Dash's own links: the page changes, and is not loaded again.
    window.history.pushState({}, "", `${button.dataset.base}?${query}`);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  });
  new MutationObserver(show).observe(document.documentElement, { childList: true, subtree: true });
})();
