// Numbers in words, and colours in numbers. The words are those of fsdpdoctor/quantities.py; a test
// compares the two.
(function (root) {
  "use strict";

  /** @param {number} value */
  function threeDigits(value) {
    const size = Math.abs(value);
    if (size >= 99.95) {
      return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
    }
    return value.toFixed(size >= 9.995 ? 1 : 2);
  }

  /** @param {number} ns */
  function duration(ns) {
    const size = Math.abs(ns);
    if (size < 1e3) return `${Math.round(ns)} ns`;
    if (size < 1e6) return `${threeDigits(ns / 1e3)} us`;
    if (size < 1e9) return `${threeDigits(ns / 1e6)} ms`;
    if (size < 120e9) return `${threeDigits(ns / 1e9)} s`;
    const minutes = Math.round(ns / 60e9);
    if (Math.abs(minutes) < 120) return `${minutes} min`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  /** @param {number} count */
  function bytes(count) {
    /** @type {[number, string][]} */
    const units = [[40, "TiB"], [30, "GiB"], [20, "MiB"], [10, "KiB"]];
    for (const [power, name] of units) {
      const unit = Math.pow(2, power);
      if (Math.abs(count) >= unit) return `${threeDigits(count / unit)} ${name}`;
    }
    return `${Math.round(count)} B`;
  }

  /** @param {number} share */
  function percent(share) {
    return `${(share * 100).toFixed(1)} %`;
  }

  /**
   * A moment on the axis: as many digits as neighbouring ticks need.
   * @param {number} ns
   * @param {number} step
   */
  function moment(ns, step) {
    /** @type {[number, string]} */
    const [unit, name] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : [1e3, "us"];
    const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
    return `${(ns / unit).toFixed(digits)} ${name}`;
  }

  /** @param {string} hex */
  function rgb(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  const api = { duration, bytes, percent, moment, rgb };
  if (typeof module !== "undefined") module.exports = api;
  else root.fsdpFormat = root.fsdpFormat || api;
})(typeof window === "undefined" ? globalThis : window);
