// A timeline's data from the page itself: the answers of queries.py, from the columns that
// the page carries. Times are nanoseconds from the run's origin on.
(function (root) {
  "use strict";
  const tiles = typeof module !== "undefined" ? require("./tiles.js") : root.fsdpTiles;
  const { Row, search, decodeTiles, LocalStore } = tiles;

  const CAUSES = Object.keys(root.fsdpSettings.causes); // in the order that the server has

  /** @implements {DataSource} */
  class LocalSource {
    /**
     * @param {Meta} meta
     * @param {Columns[]} columns
     * @param {Record<number, MemorySamples | null>} memory by rank
     */
    constructor(meta, columns, memory) {
      this.id = meta.id;
      this.meta = meta;
      this.store = new LocalStore(meta.series, columns);
      this.curves = memory;
      this.offset = 0;
      /** @type {number[] | null | undefined} */
      this.only = null;
      /** @type {Record<string, Lit[]>} what findings light up, by their first place */
      this.lights = {};
    }

    async load() {
      return this.meta;
    }

    /** @type {DataSource["tiles"]} */
    async tiles(level, index, count, ranks, condensed) {
      const found = [];
      for (let at = index; at < index + count; at++) {
        found.push(...decodeTiles(this.store.tile(level, at, ranks, condensed).buffer));
      }
      return found;
    }

    /**
     * @param {SummedColumns} part
     * @param {number} at
     * @returns {Slice}
     */
    slice(part, at) {
      return {
        rank: part.rank, series: part.series, start: part.start[at],
        end: part.start[at] + part.length[at], span: part.span[at], unit: part.unit[at],
      };
    }

    /**
     * @param {number} rank
     * @param {number} row
     */
    ofRow(rank, row) {
      return this.store.of(rank).filter((p) => this.meta.series[p.series].row === row);
    }

    /** @type {DataSource["area"]} */
    async area(t0, t1, ranks) {
      const totals = new Map();
      for (const rank of ranks) {
        for (const part of this.ofRow(rank, Row.EXPOSED)) {
          const [low, high] = this.store.between(part, t0, t1);
          for (let at = low; at < high; at++) {
            const end = Math.min(part.start[at] + part.length[at], t1);
            const ns = end - Math.max(part.start[at], t0);
            if (part.unit[at] >= 0) {
              totals.set(part.unit[at], (totals.get(part.unit[at]) || 0) + ns);
            }
          }
        }
      }
      const largest = [...totals].sort((a, b) => b[1] - a[1]).slice(0, 5);
      return { series: this.store.area(t0, t1, ranks), largest };
    }

    /** @type {DataSource["under"]} */
    async under(rank, row, t0, t1) {
      const slices = [];
      let busy = 0, count = 0;
      for (const part of this.ofRow(rank, row)) {
        const [low, high] = this.store.between(part, t0, t1);
        busy += this.store.busyUntil(part, t1) - this.store.busyUntil(part, t0);
        count += Math.max(0, high - low);
        if (high - low <= 2) {
          for (let at = low; at < high; at++) slices.push(this.slice(part, at));
        }
      }
      return { marks: count <= 2 ? slices : [], count, busy };
    }

    /**
     * @param {SummedColumns[]} parts
     * @param {number} time
     * @param {boolean} forward
     * @param {number} least
     * @returns {NearestSlice}
     */
    nearest(parts, time, forward, least) {
      /** @type {Slice | null} */
      let best = null;
      for (const part of parts) {
        let at = forward ? search(part.start, time, false) : search(part.start, time, true) - 1;
        const step = forward ? 1 : -1;
        while (at >= 0 && at < part.start.length && part.length[at] < least) at += step;
        if (at < 0 || at >= part.start.length) continue;
        const slice = this.slice(part, at);
        if (!best || slice.start < best.start === forward) best = slice;
      }
      return { mark: best };
    }

    /** @type {DataSource["neighbour"]} */
    async neighbour(rank, row, time, forward) {
      return this.nearest(this.ofRow(rank, row), time, forward, 0);
    }

    /** @type {DataSource["nextExposed"]} */
    async nextExposed(ranks, time, forward, least) {
      const parts = ranks.flatMap((rank) => this.ofRow(rank, Row.EXPOSED));
      return this.nearest(parts, time, forward, least);
    }

    /** @type {DataSource["find"]} */
    async find(ranks, units, time, forward) {
      const wanted = new Set(units);
      /** @type {Slice | null} */
      let best = null;
      /** @type {number[]} */
      const starts = [];
      for (const part of this.store.parts) {
        const row = this.meta.series[part.series].row;
        if (!ranks.includes(part.rank) || row >= Row.UNSHARDED_ROOT || row === Row.HOST) continue;
        for (let at = 0; at < part.start.length; at++) {
          if (!wanted.has(part.unit[at])) continue;
          const start = part.start[at];
          starts.push(start);
          if (forward ? start <= time : start >= time) continue;
          if (!best || start < best.start === forward) best = this.slice(part, at);
        }
      }
      const first = best ? /** @type {Slice} */ (best).start : 0;
      const before = starts.filter((start) => start < first).length;
      return { mark: best, total: starts.length, at: before + 1 };
    }

    /**
     * What the page carries of a slice: its unit, bytes, causes, and what else was done
     * for the same unshard or reduction. Other ranks' parts need the server.
     * @type {DataSource["details"]}
     */
    async details(rank, series, span) {
      const part = this.store.parts.find((p) => p.rank === rank && p.series === series);
      const at = part ? part.span.indexOf(span) : -1;
      if (!part || at < 0) return { title: "", facts: [], flow: [], peers: [] };
      const slice = this.slice(part, at);
      const unit = this.meta.units[slice.unit];
      const { name, row } = this.meta.series[series];
      /** @param {string} column */
      const said = (column) => (part.extra[column] && part.extra[column][at] >= 0
        ? part.extra[column][at] : undefined);
      const bytes = said("bytes");
      /** @type {Fact[]} */
      const facts = [];
      if (unit !== undefined) facts.push(["unit", "text", unit]);
      if (bytes !== undefined) facts.push(["bytes", "bytes", bytes]);
      /** @type {Details} */
      const found = {
        title: unit === undefined ? name : `${name} ${unit}`,
        start: slice.start, end: slice.end,
        facts, flow: this.flow(rank, said("op")), peers: [],
      };
      if (row === Row.EXPOSED) found.causes = CAUSES.map((cause) => [cause, said(cause) || 0]);
      return found;
    }

    /**
     * @param {number} rank
     * @param {number | undefined} op
     * @returns {RelatedSpan[]}
     */
    flow(rank, op) {
      if (op === undefined) return [];
      const found = [];
      for (const part of this.store.of(rank)) {
        const ops = part.extra.op;
        const first = ops ? ops.indexOf(op) : -1;
        if (first < 0) continue;
        const last = ops.lastIndexOf(op);
        const { row, name } = this.meta.series[part.series];
        const end = part.start[last] + part.length[last];
        found.push({ rank, row, kind: name, start: part.start[first], end, span: part.span[first] });
      }
      return found.sort((a, b) => a.start - b.start);
    }

    /** @type {DataSource["memory"]} */
    async memory(rank, level, index, count) {
      const curve = this.curves[rank];
      if (!curve || !curve.time.length) return { curve: null };
      const width = Math.pow(2, level), bin = width / tiles.BINS;
      const low = [], high = [];
      let at = search(curve.time, index * width, false) - 1;
      const last = curve.time[curve.time.length - 1];
      for (let i = 0; i < tiles.BINS * count; i++) {
        const from = index * width + i * bin;
        let least = at >= 0 && from <= last ? curve.value[at] : Infinity;
        let most = at >= 0 && from <= last ? curve.value[at] : -1;
        while (at + 1 < curve.time.length && curve.time[at + 1] < from + bin) {
          at++;
          least = Math.min(least, curve.value[at]);
          most = Math.max(most, curve.value[at]);
        }
        low.push(most < 0 ? -1 : least);
        high.push(most);
      }
      let peak = 0;
      curve.value.forEach((value, i) => { if (value > curve.value[peak]) peak = i; });
      return {
        curve: curve.curve, low, high, top: curve.value[peak],
        peak: { time: curve.time[peak], bytes: curve.value[peak] },
      };
    }

    /** @type {DataSource["live"]} */
    async live(rank, time) {
      const found = [];
      for (const row of [Row.UNSHARDED_ROOT, Row.UNSHARDED_EVEN, Row.UNSHARDED_ODD]) {
        for (const part of this.ofRow(rank, row)) {
          const [low, high] = this.store.between(part, time, time + 1);
          for (let at = low; at < high; at++) {
            found.push({ unit: this.meta.units[part.unit[at]], bytes: null });
          }
        }
      }
      return found;
    }
  }

  /**
   * Columns as they travel in a page: byte plane after byte plane, deflated, in base 64.
   * See the packing in Python.
   * @param {string} text
   * @param {ColumnsLayout[]} layout
   * @returns {Promise<Columns[]>}
   */
  async function unpackColumns(text, layout) {
    const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    let at = 0;
    /**
     * @param {number} count
     * @param {number} width
     */
    const column = (count, width) => {
      const values = new Float64Array(count);
      for (let plane = 0, unit = 1; plane < width; plane++, unit *= 256) {
        for (let i = 0; i < count; i++) values[i] += bytes[at++] * unit;
      }
      return values;
    };
    return layout.map((part) => {
      const start = column(part.count, part.widths[0]); // gaps, until summed below
      const length = column(part.count, part.widths[1]);
      const unit = Int32Array.from(column(part.count, part.widths[2]), (value) => value - 1);
      for (let i = 1; i < part.count; i++) start[i] += start[i - 1] + length[i - 1];
      const span = part.steps ? Float64Array.from(part.steps) : Float64Array.from(start.keys());
      let starts = start;
      if (part.starts) {
        starts = column(part.starts, part.widths[3]);
        for (let i = 1; i < part.starts; i++) starts[i] += starts[i - 1];
      }
      /** @type {Record<string, Float64Array>} */
      const extra = {};
      for (const [name, width, first] of part.extra || []) {
        const values = column(part.count, width);
        for (let i = 0, value = first; i < part.count; i++) {
          const step = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
          values[i] = value += step;
        }
        extra[name] = values;
      }
      return { rank: part.rank, series: part.series, start, length, unit, span, starts, extra };
    });
  }

  const api = { LocalSource, unpackColumns };
  if (typeof module !== "undefined") module.exports = api;
  else root.fsdpLocalSource = root.fsdpLocalSource || api;
})(typeof window === "undefined" ? globalThis : window);
