// The findings beside the timeline. An opened card goes to its places, one after the
// other, and lights all that it is about, on all ranks; one card is open at a time.
(function () {
  "use strict";
  const CARD = ".side details.card";
  let current = ""; // the open card's name: it outlives the card, which pages make anew
  let shown = 0; // which of its places

  /**
   * @param {Element | null} found
   * @returns {HTMLDetailsElement | null}
   */
  const asCard = (found) => (found instanceof HTMLDetailsElement && found.matches(CARD) ? found : null);

  /** @param {HTMLElement} card */
  const nameOf = (card) => card.dataset.kept || "";

  /** @param {HTMLElement} card */
  const placesOf = (card) => (card.dataset.places || "").split(";").filter(Boolean)
    .map((place) => place.split(",").map(Number));

  const timeline = () => (window.fsdpTimeline && !window.fsdpTimeline.gone ? window.fsdpTimeline : null);

  /** @param {HTMLElement} card */
  function say(card) {
    const label = card.querySelector(".places [role=status]");
    const count = placesOf(card).length;
    if (label && count > 1) label.textContent = `place ${shown + 1} of ${count}`;
  }

  /** @param {HTMLElement} card */
  async function show(card) {
    const drawn = timeline(), place = placesOf(card)[shown];
    say(card);
    if (!drawn || !place) return;
    await drawn.ready;
    const [rank, t0, t1] = place;
    const track = drawn.track(rank, card.dataset.run), offset = track ? track.offset : 0;
    drawn.jump(t0 + offset, t1 + offset, track);
  }

  /** @param {HTMLElement} card */
  async function light(card) {
    const drawn = timeline();
    if (!drawn) return;
    await drawn.ready;
    const source = drawn.sources.find(({ id }) => id === card.dataset.run);
    if (!source || !source.lit) return;
    try {
      const stretches = await source.lit(Number(card.dataset.finding));
      if (current === nameOf(card)) drawn.selection.light(source, stretches);
    } catch (error) {
      drawn.sayError(error);
    }
  }

  /** @param {HTMLDetailsElement} card */
  function opened(card) {
    const again = current === nameOf(card);
    current = nameOf(card);
    for (const other of document.querySelectorAll(CARD)) {
      if (other !== card) other.removeAttribute("open");
    }
    if (again) say(card);
    else {
      shown = 0;
      show(card);
    }
    light(card);
  }

  document.addEventListener("toggle", (event) => {
    const card = asCard(event.target instanceof Element ? event.target : null);
    if (!card || !card.isConnected) return;
    if (card.open) opened(card);
    else if (current === nameOf(card)) {
      current = "";
      timeline()?.selection.light(null, []);
    }
  }, true);

  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("[data-place]") : null;
    const card = asCard(button && button.closest(CARD));
    if (!(button instanceof HTMLElement) || !card) return;
    const count = placesOf(card).length;
    shown = (shown + Number(button.dataset.place) + count) % count;
    show(card);
  });

  // The page was left and is there again, or was made anew: the card is open, still.
  new MutationObserver(() => {
    if (!current) return;
    for (const card of document.querySelectorAll(CARD)) {
      if (asCard(card) && nameOf(/** @type {HTMLElement} */ (card)) === current) card.setAttribute("open", "");
    }
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
