// Words and colours. The words are those of fsdpdoctor/quantities.py; a test
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

  // Okabe and Ito's colours, and neighbours of theirs. Vermillion is for exposed time
  // alone, which is also hatched, edged and labelled: never told by colour alone.
  const PALETTE = {
    forward: "#0072b2", backward: "#56b4e9", optimizer: "#7f8790", kernel: "#a9b9c9",
    copy_out: "#cc79a7", copy_in: "#b9b32a", memcpy: "#cfc98a",
    all_gather: "#e8b23a", all_gather_wait: "#f6e2b0",
    reduce_scatter: "#009e73", reduce_scatter_wait: "#a8dccd",
    all_reduce: "#7a6a4f", all_reduce_wait: "#cfc5b3",
    other_comm: "#5b6770", issue: "#46536b", hook: "#b4bcc6", sync: "#5e3c99",
    pause: "#cba97c", input: "#2f7f86", unsharded: "#8e7cc3", ruler: "#98a2ad",
  };
  const DARK = {
    all_gather_wait: "#6e5a28", reduce_scatter_wait: "#1f5c4c", all_reduce_wait: "#4d463a",
    issue: "#93a3c2", hook: "#5c6672", kernel: "#5f7286", sync: "#a98be0", other_comm: "#8b98a5",
    all_reduce: "#a8977a", pause: "#7d6a4c", copy_in: "#d9d25e", memcpy: "#8d8858",
  };
  const THEMES = {
    light: {
      background: "#ffffff", panel: "#f6f8fa", lane: "#f1f3f5", line: "#d0d7de",
      grid: "#e6eaee", text: "#1f2328", faint: "#59636e", exposed: "#d5421e",
      memory: "#0072b2", memoryFill: "#d6e8f4", cursor: "#1f2328", area: "#0072b222",
      select: "#1f2328",
    },
    dark: {
      background: "#0d1117", panel: "#151b23", lane: "#161c24", line: "#3d444d",
      grid: "#222932", text: "#f0f6fc", faint: "#9198a1", exposed: "#ff6a3d",
      memory: "#58a6ff", memoryFill: "#172a40", cursor: "#f0f6fc", area: "#58a6ff33",
      select: "#ffffff",
    },
  };

  /**
   * @param {Theme} theme
   * @returns {Record<string, string>}
   */
  function colours(theme) {
    const { exposed } = THEMES[theme];
    return Object.assign({}, PALETTE, theme === "dark" ? DARK : {}, { exposed });
  }

  /** @param {string} hex */
  function rgb(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  const api = { duration, bytes, percent, moment, colours, rgb, THEMES };
  if (typeof module !== "undefined") module.exports = api;
  else root.fsdpFormat = root.fsdpFormat || api;
})(typeof window === "undefined" ? globalThis : window);
