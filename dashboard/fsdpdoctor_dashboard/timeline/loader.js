// Fetches tiles for a view, keeps them, and finds the best one there is meanwhile.
(function (root) {
  "use strict";
  const tiles = typeof module !== "undefined" ? require("./tiles.js") : root.fsdpTiles;
  const { MIN_LEVEL } = tiles;
  const KEEP = 900; // tiles of one rank each; about 20 kB apiece
  const AT_ONCE = 4;
  const PAUSE_MS = 2000;

  class TileLoader {
    constructor(onTile, onError) {
      this.onTile = onTile;
      this.onError = onError;
      this.kept = new Map(); // key -> {tile, blocks}
      this.flying = new Map(); // request key -> {control, keys}
      this.pausedUntil = 0; // after an error, so that it is not asked for at once again
    }

    key(source, rank, condensed, level, index) {
      return `${source.id}|${rank}|${condensed ? 1 : 0}|${level}|${index}`;
    }

    static levelOf(width, meta) {
      const level = Math.floor(Math.log2(Math.max(1, width)));
      return Math.min(meta.level, Math.max(MIN_LEVEL, level));
    }

    // The best tile for a place: the exact one, else the nearest coarser one.
    best(source, rank, condensed, level, index) {
      for (let up = level, at = index; up <= source.meta.level; up++, at = Math.floor(at / 2)) {
        const found = this.kept.get(this.key(source, rank, false, up, at))
          || (condensed && this.kept.get(this.key(source, rank, true, up, at)));
        if (found) return found;
      }
      return null;
    }

    has(source, rank, condensed, level, index) {
      return this.kept.has(this.key(source, rank, false, level, index))
        || (condensed && this.kept.has(this.key(source, rank, true, level, index)));
    }

    // A tile that came with the page.
    keep(source, { tile, ranks, condensed }) {
      for (const rank of ranks) {
        const key = this.key(source, rank, condensed, tile.level, tile.index);
        this.kept.set(key, { tile, blocks: tile.blocks.get(rank) || [] });
      }
    }

    // wants: [{source, rank, condensed, level, index}], the most urgent first. What is
    // in flight and no longer wanted is aborted.
    want(wants) {
      const missing = wants.filter((w) => !this.has(w.source, w.rank, w.condensed, w.level, w.index));
      const needed = new Set(missing.map((w) =>
        this.key(w.source, w.rank, w.condensed, w.level, w.index)));
      for (const [name, flight] of this.flying) {
        if (!flight.keys.some((key) => needed.has(key))) {
          flight.control.abort();
          this.flying.delete(name);
        } else {
          flight.keys.forEach((key) => needed.delete(key));
        }
      }
      const groups = new Map();
      for (const w of missing) {
        if (!needed.has(this.key(w.source, w.rank, w.condensed, w.level, w.index))) continue;
        const name = `${w.source.id}|${w.condensed ? 1 : 0}|${w.level}|${w.index}`;
        if (!groups.has(name)) groups.set(name, []);
        groups.get(name).push(w);
      }
      if (performance.now() < this.pausedUntil) return missing.length;
      for (const [name, group] of groups) {
        if (this.flying.size >= AT_ONCE) break;
        if (!this.flying.has(name)) this.fetch(name, group);
      }
      return missing.length;
    }

    async fetch(name, group) {
      const { source, condensed, level, index } = group[0];
      const control = new AbortController();
      const keys = group.map((w) => this.key(source, w.rank, condensed, level, index));
      const flight = { control, keys };
      this.flying.set(name, flight);
      try {
        const ranks = group.map((w) => w.rank);
        const tile = await source.tile(level, index, ranks, condensed, control.signal);
        group.forEach((w, i) => {
          this.kept.set(keys[i], { tile, blocks: tile.blocks.get(w.rank) || [] });
        });
        this.trim(source.meta.level);
      } catch (error) {
        if (error.name !== "AbortError") {
          this.pausedUntil = performance.now() + PAUSE_MS;
          setTimeout(this.onTile, PAUSE_MS + 1);
          this.onError(error);
        }
      } finally {
        if (this.flying.get(name) === flight) this.flying.delete(name);
      }
      this.onTile();
    }

    // The oldest go first; the overview stays for ever.
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

  const api = { TileLoader };
  if (typeof module !== "undefined") module.exports = api;
  else root.fsdpLoader = root.fsdpLoader || api;
})(typeof window === "undefined" ? globalThis : window);
