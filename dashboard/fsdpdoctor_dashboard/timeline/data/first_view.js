// What a timeline shows before anybody has asked for anything: see initial_view.py.
(function (root) {
  "use strict";
  if (root.fsdpFirstView) return;
  const format = root.fsdpFormat;

  /**
   * Of one run a step like most of them, or what follows its slow start; with the words
   * that say so. Nothing: all of it.
   * @param {DataSource[]} sources
   * @returns {(View & { words: string }) | null}
   */
  function firstView([{ meta, offset }, ...others]) {
    if (others.length || !meta.start) return null;
    const { t0, t1, step } = meta.start;
    const bar = meta.steps.bars.find(([number]) => number === step);
    const long = bar ? ` (${format.duration(bar[3])})` : "";
    const words = step === null ? "the slow start of the run is left of this: 0 shows all"
      : `step ${step}${long}, of the middle length of those judged: 0 shows the whole run`;
    return { t0: t0 + offset, t1: t1 + offset, words };
  }

  const api = { firstView };
  root.fsdpFirstView = api;
  if (typeof module !== "undefined") module.exports = api;
})(window);
