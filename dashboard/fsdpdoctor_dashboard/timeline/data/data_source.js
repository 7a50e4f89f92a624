// A timeline's data from a server. A page without one answers the same questions, which
// are told in queries.py: see local_source.js. Times are nanoseconds from the run's
// origin on.
(function (root) {
  "use strict";
  if (root.fsdpDataSource) return;
  const { decodeTiles } = root.fsdpTiles;

  /** @implements {DataSource} */
  class ServerSource {
    /**
     * @param {string} base ends in "/"
     * @param {string} run
     */
    constructor(base, run) {
      this.base = base;
      this.run = run;
      this.id = run;
      /** @type {Meta} there once load() has answered */
      this.meta = /** @type {any} */ (null);
      this.offset = 0;
      /** @type {number[] | null | undefined} ranks, where not all are shown */
      this.only = null;
    }

    /**
     * @param {string} name
     * @param {Record<string, unknown>} parameters
     */
    url(name, parameters) {
      const query = new URLSearchParams(/** @type {Record<string, string>} */ (
        Object.assign({ run: this.run }, parameters)));
      return `${this.base}api/${name}?${query}`;
    }

    /**
     * @param {string} name
     * @param {Record<string, unknown>} parameters
     * @param {AbortSignal} [signal]
     * @returns {Promise<any>} as the server has it: told by the types of the questions below
     */
    async json(name, parameters, signal) {
      const answer = await fetch(this.url(name, parameters), { signal });
      const content = await answer.json();
      if (!answer.ok) throw new Error(content.error || `the server said ${answer.status}`);
      return content;
    }

    /**
     * A run that is still being read says how far it is, until it is there.
     * @param {(text: string) => void} [say]
     * @returns {Promise<Meta>}
     */
    async load(say) {
      for (;;) {
        const meta = await this.json("meta", {});
        if (!meta.loading) {
          this.meta = meta;
          return meta;
        }
        if (say) say(meta.loading);
        await new Promise((resolve) => { setTimeout(resolve, 300); });
      }
    }

    /** @returns {Promise<Revision>} */
    revision() {
      return this.json("revision", {});
    }

    /**
     * Tile `index` and those after it, `count` in all.
     * @type {DataSource["tiles"]}
     */
    async tiles(level, index, count, ranks, condensed, signal) {
      const url = this.url("tile", {
        v: this.meta.fingerprint, level, index, count, ranks: ranks.join(","),
        rows: condensed ? "condensed" : "all",
      });
      const answer = await fetch(url, { signal });
      if (!answer.ok) throw new Error(`the server said ${answer.status}`);
      return decodeTiles(await answer.arrayBuffer());
    }

    /** @type {DataSource["area"]} */
    area(t0, t1, ranks) {
      return this.json("area", { t0, t1, ranks: ranks.join(",") });
    }

    /** @type {DataSource["under"]} */
    under(rank, row, t0, t1, signal) {
      return this.json("under", { rank, row, t0, t1 }, signal);
    }

    /** @type {DataSource["neighbour"]} */
    neighbour(rank, row, time, forward) {
      return this.json("neighbour", { rank, row, time, forward: +forward });
    }

    /** @type {DataSource["nextExposed"]} */
    nextExposed(ranks, time, forward, least) {
      return this.json("exposed", { ranks: ranks.join(","), time, forward: +forward, least });
    }

    /** @type {DataSource["find"]} */
    find(ranks, units, time, forward) {
      return this.json("find", {
        ranks: ranks.join(","), units: units.join(","), time, forward: +forward,
      });
    }

    /** @type {DataSource["details"]} */
    details(rank, series, span) {
      return this.json("span", { rank, series, span });
    }

    /** @type {DataSource["memory"]} */
    memory(rank, level, index, count) {
      return this.json("memory", { v: this.meta.fingerprint, rank, level, index, count });
    }

    /**
     * @param {number} finding its place in the report
     * @returns {Promise<Lit[]>}
     */
    lit(finding) {
      return this.json("lit", { finding });
    }

    /** @type {NonNullable<DataSource["lane"]>} */
    lane(rank, row, { t0, t1, pixel }) {
      return this.json("lane", { rank, row, t0, t1, pixel });
    }

    /** @type {NonNullable<DataSource["event"]>} */
    event(rank, event) {
      return this.json("event", { rank, event });
    }

    /** @type {NonNullable<DataSource["beside"]>} */
    beside(rank, event, forward) {
      return this.json("event-beside", { rank, event, forward: +forward });
    }

    /** @type {NonNullable<DataSource["findEvent"]>} */
    findEvent(ranks, text, at, time, forward) {
      return this.json("find-event", { ranks: ranks.join(","), text, at, time, forward: +forward });
    }

    /** @type {DataSource["live"]} */
    live(rank, time) {
      return this.json("live", { rank, time });
    }
  }

  const api = { ServerSource };
  root.fsdpDataSource = api;
  if (typeof module !== "undefined") module.exports = api;
})(window);
