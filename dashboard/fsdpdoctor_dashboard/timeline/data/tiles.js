// Tiles: reading those of the server, and making them in a page that has none.
// The format and its rules are told in [Note: Tiles] in tiles.py; a test compares
// the two makers byte by byte. Times are whole nanoseconds from the run's origin
// on; a double holds them exactly for 104 days.
(function (root) {
  "use strict";
  /** @type {Settings} */
  const settings = root.fsdpSettings;
  const {
    magic: MAGIC, bins: BINS, maxSlices: MAX_SLICES, minLevel: MIN_LEVEL, noUnit: NO_UNIT,
    binsMode: BINS_MODE, slicesMode: SLICES_MODE, fromLeft: FROM_LEFT, toRight: TO_RIGHT,
  } = settings.tile;
  const Row = settings.rows;

  /**
   * The first row whose value is greater than x (or, with `orEqual`, not less).
   * @param {ArrayLike<number>} values
   * @param {number} x
   * @param {boolean} orEqual
   */
  function search(values, x, orEqual) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (orEqual ? values[middle] < x : values[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /**
   * One tile or several, one after the other. The numbers stay where they are.
   * @param {ArrayBuffer} buffer
   * @returns {Tile[]}
   */
  function decodeTiles(buffer) {
    const view = new DataView(buffer);
    const found = [];
    for (let at = 0; at < buffer.byteLength;) {
      const tile = decodeTile(buffer, view, at);
      found.push(tile);
      at = tile.end;
    }
    return found;
  }

  /**
   * @param {ArrayBuffer} buffer
   * @param {DataView} view
   * @param {number} begin
   * @returns {Tile}
   */
  function decodeTile(buffer, view, begin) {
    if (view.getUint32(begin, true) !== MAGIC) throw new Error("not a timeline tile");
    const level = view.getUint32(begin + 4, true);
    const index = view.getUint32(begin + 8, true) + view.getUint32(begin + 12, true) * 4294967296;
    /** @type {Map<number, Block[]>} */
    const blocks = new Map();
    let at = begin + 20;
    for (let left = view.getUint32(begin + 16, true); left > 0; left--) {
      const rank = view.getUint16(at, true);
      const bins = view.getUint8(at + 3) === BINS_MODE;
      const block = (bins ? binsBlock : slicesBlock)(buffer, view, at);
      at += 8 + (bins ? 1 : 11) * block.count;
      at += (4 - (at % 4)) % 4;
      const known = blocks.get(rank);
      if (known) known.push(block);
      else blocks.set(rank, [block]);
    }
    const width = Math.pow(2, level);
    return { level, index, width, start: index * width, blocks, end: at };
  }

  /**
   * @param {ArrayBuffer} buffer
   * @param {DataView} view
   * @param {number} at
   * @returns {BinsBlock}
   */
  function binsBlock(buffer, view, at) {
    const count = view.getUint32(at + 4, true);
    return { series: view.getUint8(at + 2), count, shares: new Uint8Array(buffer, at + 8, count) };
  }

  /**
   * @param {ArrayBuffer} buffer
   * @param {DataView} view
   * @param {number} at
   * @returns {SlicesBlock}
   */
  function slicesBlock(buffer, view, at) {
    const n = view.getUint32(at + 4, true), first = at + 8;
    return {
      series: view.getUint8(at + 2), count: n,
      span: new Uint32Array(buffer, first, n),
      from: new Uint16Array(buffer, first + 4 * n, n),
      to: new Uint16Array(buffer, first + 6 * n, n),
      unit: new Uint16Array(buffer, first + 8 * n, n),
      edges: new Uint8Array(buffer, first + 10 * n, n),
    };
  }

  // The columns of a run within the page; the same questions, the same answers as
  // Store in store.py.
  class LocalStore {
    /**
     * @param {SeriesSpec[]} series
     * @param {Columns[]} columns
     */
    constructor(series, columns) {
      this.series = series;
      /** @type {SummedColumns[]} */
      this.parts = columns.map((c) => {
        const total = new Float64Array(c.start.length);
        for (let i = 1; i < total.length; i++) total[i] = total[i - 1] + c.length[i - 1];
        return Object.assign({}, c, { total });
      });
    }

    /** @param {number} rank */
    of(rank) {
      return this.parts.filter((p) => p.rank === rank);
    }

    /**
     * @param {SummedColumns} part
     * @param {number} time
     */
    busyUntil(part, time) {
      const row = search(part.start, time, false) - 1;
      if (row < 0) return 0;
      return part.total[row] + Math.min(time - part.start[row], part.length[row]);
    }

    /**
     * @param {SummedColumns} part
     * @param {number} t0
     * @param {number} t1
     */
    between(part, t0, t1) {
      let low = search(part.start, t0, false);
      if (low > 0 && part.start[low - 1] + part.length[low - 1] > t0) low--;
      return [low, search(part.start, t1, true)];
    }

    /**
     * @param {number} t0
     * @param {number} t1
     * @param {number[]} ranks
     * @returns {AreaSums["series"]}
     */
    area(t0, t1, ranks) {
      /** @type {AreaSums["series"]} */
      const found = [];
      for (const rank of ranks) {
        for (const part of this.of(rank)) {
          const busy = this.busyUntil(part, t1) - this.busyUntil(part, t0);
          const started = search(part.starts, t1, true) - search(part.starts, t0, true);
          found.push([rank, part.series, busy, started]);
        }
      }
      return found;
    }

    /**
     * @param {number} level
     * @param {number} index
     * @param {number[]} ranks
     * @param {boolean} condensed
     */
    tile(level, index, ranks, condensed) {
      const blocks = [];
      for (const rank of ranks) {
        for (const part of this.of(rank)) {
          const row = this.series[part.series].row;
          if (condensed && row !== Row.EXPOSED && row !== Row.COMPUTE) continue;
          const block = this.block(part, level, index);
          if (block) blocks.push(block);
        }
      }
      const size = blocks.reduce((sum, b) => sum + b.length, 20);
      const bytes = new Uint8Array(size);
      const head = new DataView(bytes.buffer);
      head.setUint32(0, MAGIC, true);
      head.setUint32(4, level, true);
      head.setUint32(8, index % 4294967296, true);
      head.setUint32(12, Math.floor(index / 4294967296), true);
      head.setUint32(16, blocks.length, true);
      let at = 20;
      for (const block of blocks) {
        bytes.set(block, at);
        at += block.length;
      }
      return bytes;
    }

    /**
     * @param {SummedColumns} part
     * @param {number} level
     * @param {number} index
     */
    block(part, level, index) {
      const width = Math.pow(2, level);
      const t0 = index * width;
      const [low, high] = this.between(part, t0, t0 + width);
      const count = high - low;
      if (count <= 0) return null;
      const bins = count > MAX_SLICES;
      const size = bins ? BINS : count * 11 + ((4 - ((count * 11) % 4)) % 4);
      const bytes = new Uint8Array(8 + size);
      const view = new DataView(bytes.buffer);
      view.setUint16(0, part.rank, true);
      view.setUint8(2, part.series);
      view.setUint8(3, bins ? BINS_MODE : SLICES_MODE);
      view.setUint32(4, bins ? BINS : count, true);
      if (bins) this.fillBins(part, t0, width, bytes.subarray(8));
      else this.fillSlices(part, t0, width, low, count, view);
      return bytes;
    }

    /**
     * @param {SummedColumns} part
     * @param {number} t0
     * @param {number} width
     * @param {Uint8Array} shares
     */
    fillBins(part, t0, width, shares) {
      const bin = width / BINS;
      let before = this.busyUntil(part, t0);
      for (let i = 0; i < BINS; i++) {
        const until = this.busyUntil(part, t0 + (i + 1) * bin);
        shares[i] = Math.ceil(((until - before) * 255) / bin);
        before = until;
      }
    }

    /**
     * @param {SummedColumns} part
     * @param {number} t0
     * @param {number} width
     * @param {number} low
     * @param {number} n
     * @param {DataView} view
     */
    fillSlices(part, t0, width, low, n, view) {
      const scale = width / 65536;
      for (let i = 0; i < n; i++) {
        const start = part.start[low + i] - t0;
        const end = start + part.length[low + i];
        const unit = part.unit[low + i];
        const from = Math.min(Math.max(Math.floor(start / scale), 0), 65535);
        const to = Math.min(Math.max(Math.ceil(end / scale), 0), 65535);
        const known = unit >= 0 && unit < NO_UNIT;
        view.setUint32(8 + 4 * i, part.span[low + i], true);
        view.setUint16(8 + 4 * n + 2 * i, from, true);
        view.setUint16(8 + 6 * n + 2 * i, to, true);
        view.setUint16(8 + 8 * n + 2 * i, known ? unit : NO_UNIT, true);
        const edges = (start < 0 ? FROM_LEFT : 0) + (end > width ? TO_RIGHT : 0);
        view.setUint8(8 + 10 * n + i, edges);
      }
    }
  }

  const api = {
    BINS, MIN_LEVEL, NO_UNIT, BINS_MODE, SLICES_MODE, FROM_LEFT, TO_RIGHT, Row,
    search, decodeTiles, LocalStore,
  };
  if (typeof module !== "undefined") module.exports = api;
  else root.fsdpTiles = root.fsdpTiles || api;
})(typeof window === "undefined" ? globalThis : window);
