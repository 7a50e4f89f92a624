// Words for a picture: they stand beside it while the mouse is over it, while it has the
// focus, or after a touch; Escape takes them away.
(function () {
  "use strict";
  const AWAY = 8; // pixels between a picture and its words

  /** @param {Event} event */
  const pictureOf = (event) => {
    const found = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    return found instanceof HTMLElement ? found : null;
  };

  function hide() {
    document.querySelector("[aria-describedby=tip]")?.removeAttribute("aria-describedby");
    document.getElementById("tip")?.remove();
  }

  /** @param {HTMLElement} picture */
  function show(picture) {
    hide();
    const tip = document.createElement("div");
    tip.id = "tip";
    // A picture has these words for its name already; a term is described by them.
    if (picture.getAttribute("aria-label")) tip.setAttribute("aria-hidden", "true");
    else picture.setAttribute("aria-describedby", "tip");
    tip.textContent = picture.dataset.tip || "";
    document.body.append(tip);
    const box = picture.getBoundingClientRect(), mine = tip.getBoundingClientRect();
    const below = box.bottom + AWAY + mine.height < window.innerHeight;
    tip.style.top = `${below ? box.bottom + AWAY : Math.max(0, box.top - AWAY - mine.height)}px`;
    tip.style.left = `${Math.max(AWAY, Math.min(box.left, window.innerWidth - mine.width - AWAY))}px`;
  }

  for (const kind of ["pointerover", "focusin", "click"]) {
    document.addEventListener(kind, (event) => {
      const picture = pictureOf(event);
      if (picture) show(picture);
      else if (kind !== "focusin") hide();
    });
  }
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, true);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
})();
