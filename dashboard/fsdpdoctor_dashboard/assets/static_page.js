// Takes away the page that came with the address once Dash's own is there, all of its
// charts drawn: see first_page.py. Until then that one is what a person sees and reads.
(function () {
  "use strict";
  const PATIENCE_MS = 8000; // with charts that never come

  function isDrawn() {
    const graphs = [...document.querySelectorAll("#page .dash-graph")];
    return graphs.every((graph) => graph.querySelector(".main-svg"));
  }

  /** @param {HTMLElement} first */
  function leave(first) {
    const own = [...document.querySelectorAll("#page main details")];
    [...first.querySelectorAll("main details")].forEach((details, at) => {
      const same = own[at];
      if (details instanceof HTMLDetailsElement && same instanceof HTMLDetailsElement) same.open = details.open;
    });
    first.remove();
  }

  /** @param {HTMLElement} first */
  function watch(first) {
    let seen = false;
    const observer = new MutationObserver(() => {
      if (!document.querySelector("#page main, #page .loading")) return;
      if (!seen) setTimeout(() => first.isConnected && leave(first), PATIENCE_MS);
      seen = true;
      if (!isDrawn()) return;
      observer.disconnect();
      leave(first);
    });
    observer.observe(document.documentElement, { childList: true, subtree: true });
  }

  const first = document.getElementById("first-page");
  if (first && first.dataset.theme !== document.documentElement.dataset.theme) first.remove();
  else if (first) watch(first);
})();
