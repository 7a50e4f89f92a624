// Fetches tiles for a view, keeps them, and finds the best one there is meanwhile.
(function (root) {
  "use strict";
  const { MIN_LEVEL, BINS } = typeof module !== "undefined" ? require("./tiles.js") : root.fsdpTiles;
  const KEEP = 900; // tiles of one rank each; about 20 kB apiece
  const AT_ONCE = 4;
  const TOGETHER = root.fsdpSettings.mostTiles; // tiles in one request
  const PAUSE_MS = 2000;

  class TileLoader {
    /**
     * @param {() => void} onTile
     * @param {(error: unknown) => void} onError
     */
    constructor(onTile, onError) {
      this.onTile = onTile;
      this.onError = onError;
      /** @type {Map<string, KeptTile>} */
      this.kept = new Map();
      /** @type {Map<string, {control: AbortController, keys: string[], stays: boolean}>} by their first key */
      this.flying = new Map();
      this.pausedUntil = 0; // after an error, so that it is not asked for at once again
    }

    /**
     * @param {DataSource} source
     * @param {number} rank
     * @param {boolean} condensed
     * @param {number} level
     * @param {number} index
     */
    key(source, rank, condensed, level, index) {
      return `${source.id}|${rank}|${condensed ? 1 : 0}|${level}|${index}`;
    }

    /**
     * @param {number} width
     * @param {Meta} meta
     */
    static levelOf(width, meta) {
      const level = Math.floor(Math.log2(Math.max(1, width)));
      return Math.min(meta.level, Math.max(MIN_LEVEL, level));
    }

    /**
     * The best tile for a place: the exact one, else the nearest coarser one.
     * @param {DataSource} source
     * @param {number} rank
     * @param {boolean} condensed
     * @param {number} level
     * @param {number} index
     * @returns {KeptTile | null}
     */
    best(source, rank, condensed, level, index) {
      for (let up = level, at = index; up <= source.meta.level; up++, at = Math.floor(at / 2)) {
        const found = this.kept.get(this.key(source, rank, false, up, at))
          || (condensed && this.kept.get(this.key(source, rank, true, up, at)));
        if (found) return found;
      }
      return null;
    }

    /**
     * @param {DataSource} source
     * @param {number} rank
     * @param {boolean} condensed
     * @param {number} level
     * @param {number} index
     */
    has(source, rank, condensed, level, index) {
      return this.kept.has(this.key(source, rank, false, level, index))
        || (condensed && this.kept.has(this.key(source, rank, true, level, index)));
    }

    /**
     * Also a tile that came with the page.
     * @param {DataSource} source
     * @param {GivenTile} given
     */
    keep(source, { tile, ranks, condensed }) {
      for (const rank of ranks) {
        const key = this.key(source, rank, condensed, tile.level, tile.index);
        this.kept.set(key, { tile, blocks: tile.blocks.get(rank) || [] });
      }
    }

    /**
     * @param {DataSource} source
     * @param {GivenTiles} given
     */
    keepAll(source, { tiles, ranks, condensed }) {
      for (const tile of tiles) this.keep(source, { tile, ranks, condensed });
    }

    /**
     * The most urgent come first. What is in flight and no longer wanted is aborted. How
     * many are missing.
     * @param {Want[]} wants
     */
    want(wants) {
      const missing = wants.filter((w) => !this.has(w.source, w.rank, w.condensed, w.level, w.index));
      const needed = new Set(missing.map((w) =>
        this.key(w.source, w.rank, w.condensed, w.level, w.index)));
      for (const [name, flight] of this.flying) {
        if (!flight.stays && !flight.keys.some((key) => needed.has(key))) {
          flight.control.abort();
          this.flying.delete(name);
        } else {
          flight.keys.forEach((key) => needed.delete(key));
        }
      }
      if (performance.now() < this.pausedUntil) return missing.length;
      const left = missing.filter((w) =>
        needed.has(this.key(w.source, w.rank, w.condensed, w.level, w.index)));
      for (const group of TileLoader.groups(left)) {
        if (this.flying.size >= AT_ONCE) break;
        this.fetch(group);
      }
      return missing.length;
    }

    /**
     * What one request can ask for: the same ranks of neighbouring tiles. A request costs
     * the browser and the server more than a tile does.
     * @param {Want[]} wants
     * @returns {WantGroup[]}
     */
    static groups(wants) {
      /** @type {Map<string, WantGroup>} */
      const tiles = new Map();
      for (const w of wants) {
        const name = `${w.source.id}|${w.condensed ? 1 : 0}|${w.level}|${w.index}`;
        const known = tiles.get(name);
        if (known) known.ranks.push(w.rank);
        else tiles.set(name, { ...w, ranks: [w.rank], count: 1 });
      }
      /** @type {WantGroup[]} */
      const groups = [];
      for (const tile of tiles.values()) {
        const last = groups[groups.length - 1];
        const joins = last && last.count < TOGETHER && last.source === tile.source
          && last.condensed === tile.condensed && last.level === tile.level
          && last.index + last.count === tile.index && `${last.ranks}` === `${tile.ranks}`;
        if (joins) last.count++;
        else groups.push(tile);
      }
      return groups;
    }

    /**
     * What stands in for finer tiles that are on their way, of these tracks. Nobody waits
     * for it, and no other view calls it off.
     * @param {Track[]} tracks
     */
    overviews(tracks) {
      const wants = tracks.map(({ source, rank, small }) =>
        ({ source, rank, condensed: small, level: source.meta.level, index: 0 }));
      const missing = wants.filter((w) => !this.has(w.source, w.rank, w.condensed, w.level, w.index));
      for (const group of TileLoader.groups(missing)) this.fetch(group, true);
    }

    /**
     * @param {WantGroup} group
     * @param {boolean} [stays] whatever is wanted next
     */
    async fetch(group, stays = false) {
      const { source, ranks, condensed, level, index, count } = group;
      const control = new AbortController();
      const keys = [];
      for (let at = index; at < index + count; at++) {
        for (const rank of ranks) keys.push(this.key(source, rank, condensed, level, at));
      }
      const name = keys[0];
      const flight = { control, keys, stays };
      this.flying.set(name, flight);
      try {
        const tiles = await source.tiles(level, index, count, ranks, condensed, control.signal);
        this.keepAll(source, { tiles, ranks, condensed });
        this.trim(source.meta.level);
      } catch (error) {
        if (!(error instanceof Error && error.name === "AbortError")) {
          this.pausedUntil = performance.now() + PAUSE_MS;
          setTimeout(this.onTile, PAUSE_MS + 1);
          this.onError(error);
        }
      } finally {
        if (this.flying.get(name) === flight) this.flying.delete(name);
      }
      this.onTile();
    }

    /**
     * The oldest go first; the overview stays for ever.
     * @param {number} whole
     */
    trim(whole) {
      for (const [key, { tile }] of this.kept) {
        if (this.kept.size <= KEEP) break;
        if (tile.level < whole) this.kept.delete(key);
      }
    }

    forget() {
      this.flying.forEach((flight) => flight.control.abort());
      this.flying.clear();
      this.kept.clear();
    }
  }

  const CURVES = 200;

  // A rank's memory, tile by tile. It comes when the picture is sharp; until then the
  // nearest coarser curve stands in.
  class CurveLoader {
    /**
     * @param {() => void} onCurve
     * @param {(error: unknown) => void} onError
     */
    constructor(onCurve, onError) {
      this.onCurve = onCurve;
      this.onError = onError;
      /** @type {Map<string, KeptCurve>} */
      this.kept = new Map();
      /** @type {Set<string>} */
      this.asked = new Set();
    }

    /**
     * @param {Track} track
     * @param {number} level
     * @param {number} index
     * @returns {KeptCurve | null}
     */
    best(track, level, index) {
      for (let up = level, at = index; up <= track.source.meta.level; up++, at = Math.floor(at / 2)) {
        const found = this.kept.get(`${track.key}|${up}|${at}`);
        if (found) return found;
      }
      return null;
    }

    /**
     * `indices` ascend without a gap.
     * @param {Track} track
     * @param {number} level
     * @param {number[]} indices
     */
    async want(track, level, indices) {
      const missing = indices.filter((index) => !this.asked.has(`${track.key}|${level}|${index}`));
      if (!missing.length) return;
      const index = missing[0];
      const count = Math.min(TOGETHER, missing[missing.length - 1] - index + 1);
      const keys = [];
      for (let at = index; at < index + count; at++) keys.push(`${track.key}|${level}|${at}`);
      if (this.asked.size > CURVES) this.forget();
      const { asked } = this;
      keys.forEach((key) => asked.add(key));
      const width = Math.pow(2, level);
      try {
        const found = await track.source.memory(track.rank, level, index, count);
        if (asked !== this.asked) return; // of a run that has grown since
        keys.forEach((key, at) => {
          const part = Object.assign({}, found);
          if (found.curve !== null && part.curve !== null) {
            part.low = found.low.slice(at * BINS, (at + 1) * BINS);
            part.high = found.high.slice(at * BINS, (at + 1) * BINS);
          }
          this.kept.set(key, { part, width, start: (index + at) * width });
        });
        this.onCurve();
      } catch (error) {
        keys.forEach((key) => asked.delete(key));
        this.onError(error);
      }
    }

    forget() {
      this.kept.clear();
      this.asked = new Set();
    }
  }

  const api = { TileLoader, CurveLoader };
  if (typeof module !== "undefined") module.exports = api;
  else root.fsdpLoader = root.fsdpLoader || api;
})(typeof window === "undefined" ? globalThis : window);
