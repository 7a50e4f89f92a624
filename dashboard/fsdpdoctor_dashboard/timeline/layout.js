// Sizes in pixels that several parts of the timeline share, its font, and the rows' names.
(function (root) {
  "use strict";
  const { Row } = root.fsdpTiles;
  const GUTTER = 168;
  const MINIMAP = 30, AXIS = 22, STEPS = 16, BATCHES = 8, MEMORY = 78;
  const FONT = "system-ui, -apple-system, 'Segoe UI', Inter, Roboto, sans-serif";
  /** @type {Record<number, number>} */
  const HEIGHT = {
    [Row.EXPOSED]: 11, [Row.COMPUTE]: 16, [Row.ALL_GATHER]: 13, [Row.REDUCE_SCATTER]: 13,
    [Row.ALL_REDUCE]: 13, [Row.OTHER_COMM]: 10, [Row.COPIES]: 9, [Row.HOST]: 9,
    [Row.UNSHARDED_ROOT]: 3, [Row.UNSHARDED_EVEN]: 5, [Row.UNSHARDED_ODD]: 5,
  };
  /** @type {Record<number, string>} */
  const LABEL = {
    [Row.COMPUTE]: "compute", [Row.ALL_GATHER]: "all-gather",
    [Row.REDUCE_SCATTER]: "reduce-scatter", [Row.ALL_REDUCE]: "all-reduce",
    [Row.OTHER_COMM]: "other comm", [Row.COPIES]: "copies", [Row.HOST]: "host",
  };

  const api = { GUTTER, MINIMAP, AXIS, STEPS, BATCHES, MEMORY, FONT, HEIGHT, LABEL };
  root.fsdpLayout = api;
  if (typeof module !== "undefined") module.exports = api;
})(window);
