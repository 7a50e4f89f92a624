// Sizes in pixels that several parts of the timeline share, its font, and the rows' names.
(function (root) {
  "use strict";
  const { Row } = root.fsdpTiles;
  const GUTTER = 168;
  const LINE = 20; // of the steps, at the top of the minimap
  const MINIMAP = 50, AXIS = 22, STEPS = 16, BATCHES = 8, MEMORY = 78;
  const NO_ROW = -1; // of what stands under an opened lane
  const FONT = "system-ui, -apple-system, 'Segoe UI', Inter, Roboto, sans-serif";
  /** @type {Record<number, number>} */
  const HEIGHT = {
    [Row.EXPOSED]: 11, [Row.COMPUTE]: 16, [Row.ALL_GATHER]: 13, [Row.REDUCE_SCATTER]: 13,
    [Row.ALL_REDUCE]: 13, [Row.OTHER_COMM]: 10, [Row.COPIES]: 9, [Row.HOST]: 9,
    [Row.UNSHARDED_ROOT]: 3, [Row.UNSHARDED_EVEN]: 5, [Row.UNSHARDED_ODD]: 5,
  };
  const LABEL = root.fsdpSettings.rowWords;

  const api = { NO_ROW, GUTTER, LINE, MINIMAP, AXIS, STEPS, BATCHES, MEMORY, FONT, HEIGHT, LABEL };
  root.fsdpLayout = api;
  if (typeof module !== "undefined") module.exports = api;
})(window);
