// Plays a step on the model's map: units that are gathered at the slider's moment light
// up, and the tank holds the memory of that moment.
(function () {
  "use strict";

  /**
   * Pairs of whole numbers: "0,5;9,12".
   * @param {string | undefined} text
   * @returns {number[][]}
   */
  const pairs = (text) => (text ? text.split(";").map((pair) => pair.split(",").map(Number)) : []);

  /** @param {number} bytes */
  function size(bytes) {
    if (bytes < 1) return "0 B";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const power = Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
    return `${(bytes / 1024 ** power).toPrecision(3)} ${units[power]}`;
  }

  /** @param {HTMLElement} map */
  function play(map) {
    const slider = map.querySelector("input");
    if (!slider) return;
    const length = Number(map.dataset.length);
    const now = length * Number(slider.value) / Number(slider.max);
    let lit = 0, all = 0;
    for (const unit of map.querySelectorAll(".map-unit")) {
      if (!(unit instanceof HTMLElement)) continue;
      const open = pairs(unit.dataset.open).some(([from, until]) => from <= now && now < until);
      unit.classList.toggle("lit", open);
      lit += Number(open);
      all += 1;
    }
    const samples = pairs(map.dataset.memory);
    const last = samples.filter(([at]) => at <= now).pop() || samples[0];
    const most = Number(map.dataset.most) || Math.max(1, ...samples.map(([, bytes]) => bytes));
    const level = map.querySelector(".tank i");
    if (level instanceof HTMLElement) level.style.width = `${last ? 100 * last[1] / most : 0}%`;
    const words = [`${(now / 1e6).toFixed(1)} ms: ${lit} of ${all} units gathered`];
    if (last) words.push(`${size(last[1])}${Number(map.dataset.most) ? ` of ${size(most)}` : ""}`);
    const status = map.querySelector("[role=status]");
    if (status) status.textContent = words.join(", ");
  }

  /** @param {Element} around */
  const playAll = (around) => {
    for (const map of around.querySelectorAll(".unit-map:not([data-played])")) {
      if (!(map instanceof HTMLElement) || !map.querySelector("input")) continue;
      map.dataset.played = "1";
      play(map);
    }
  };

  document.addEventListener("input", (event) => {
    const map = event.target instanceof Element ? event.target.closest(".unit-map") : null;
    if (map instanceof HTMLElement) play(map);
  });
  new MutationObserver(() => playAll(document.body)).observe(
    document.documentElement, { childList: true, subtree: true });
})();
