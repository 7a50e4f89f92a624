// Gives What-if's controls the names that stand above them: Dash has no place for the
// name of a slider's thumb, nor for that of a list of boxes.
(function () {
  "use strict";
  const CONTROLS = "[role=slider], [role=listbox], input, button";

  function name() {
    for (const label of document.querySelectorAll(".knobs > label")) {
      const control = label.nextElementSibling;
      if (!control) continue;
      const all = [...control.querySelectorAll(CONTROLS)];
      for (const each of control.matches(CONTROLS) ? [control, ...all] : all) {
        if (each.closest("[role=option]") || each.getAttribute("aria-label")) continue;
        each.setAttribute("aria-label", label.textContent || "");
      }
    }
  }

  new MutationObserver(name).observe(document.documentElement, { childList: true, subtree: true });
})();
