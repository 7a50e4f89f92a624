// Words around the picture: tooltip, legend, details of a span, statistics of an area.
// All text goes in as text: names come from other people's traces.
(function (root) {
  "use strict";
  if (root.FsdpDetailsPanel) return;
  const { Row } = root.fsdpTiles;
  const format = root.fsdpFormat;
  const { causes: CAUSES, waits: WAITS } = root.fsdpSettings;

  /** @type {Record<string, string>} */
  const LEGEND = { unsharded: "unsharded", exposed: "EXPOSED", copy_in: "copy-in" };

  class FsdpDetailsPanel {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      this.box = timeline.make("div", "fd-details", timeline.element);
      this.empty();
    }

    /**
     * @template {keyof HTMLElementTagNameMap} Tag
     * @param {Tag} tag
     * @param {string} name
     * @param {string} [text]
     * @param {HTMLElement} [parent]
     */
    add(tag, name, text, parent) {
      const node = this.timeline.make(tag, name, parent || this.box);
      if (text !== undefined) node.textContent = text;
      return node;
    }

    toggle() {
      this.box.hidden = !this.box.hidden;
    }

    empty() {
      this.box.textContent = "";
      this.add("p", "fd-hint",
        "Click a span for details, drag for statistics of an area, N for the next exposed stretch. ? lists all keys.");
    }

    // -- legend

    legend() {
      const { timeline } = this;
      const box = timeline.toolbar.legend;
      box.textContent = "";
      const shown = new Map();
      for (const source of timeline.sources) {
        for (const index of source.meta.used) {
          const spec = source.meta.series[index];
          if (spec.colour === "ruler" || shown.has(spec.colour)) continue;
          const waits = spec.colour.endsWith("_wait");
          if (waits && [...shown.keys()].some((key) => key.endsWith("_wait"))) continue;
          const name = LEGEND[spec.colour] || spec.name;
          shown.set(spec.colour, waits ? WAITS : name);
        }
      }
      for (const [colour, name] of shown) {
        const item = this.add("span", "fd-key", undefined, box);
        const patch = this.add("i", "fd-patch", undefined, item);
        patch.style.background = timeline.colour[colour];
        if (colour === "exposed") patch.classList.add("fd-hatched");
        if (colour.endsWith("_wait")) patch.classList.add("fd-dotted");
        item.append(name);
        if (colour === "exposed") item.classList.add("fd-exposed");
      }
    }

    // -- tooltip

    /**
     * @param {Place} place
     * @param {TipLine[]} lines
     */
    showTip(place, lines) {
      const { tip, width, height } = this.timeline;
      tip.textContent = "";
      lines.forEach(([text, name]) => this.add("div", name || "", text, tip));
      tip.hidden = false;
      const box = tip.getBoundingClientRect();
      const left = place.x + 14 + box.width < width ? place.x + 14 : place.x - box.width - 10;
      const top = place.y + 16 + box.height < height ? place.y + 16 : place.y - box.height - 10;
      tip.style.left = `${Math.max(2, left)}px`;
      tip.style.top = `${Math.max(2, top)}px`;
    }

    /**
     * @param {Place} place
     * @param {Track} track
     * @param {Box} box
     * @param {Found} found
     */
    tip(place, track, box, found) {
      const meta = track.source.meta;
      if (found.marks.length) {
        /** @type {TipLine[]} */
        const lines = found.marks.flatMap((slice) => {
          const spec = meta.series[slice.series];
          const unit = meta.units[slice.unit];
          const name = slice.series === undefined ? "" : spec.name;
          const title = unit === undefined ? name : `${name}  ${unit}`;
          /** @type {TipLine[]} */
          const about = [
            [title, spec.row === Row.EXPOSED ? "fd-tip-title fd-exposed" : "fd-tip-title"],
            [`${format.duration(slice.end - slice.start)}, ${this.stretch(slice.start, slice.end)}`],
          ];
          return about;
        });
        lines.push([track.label, "fd-faint"]);
        this.showTip(place, lines);
        return;
      }
      const label = box.row === Row.EXPOSED ? "exposed" : root.fsdpLayout.LABEL[box.row] || "unsharded";
      const share = found.busy / (found.t1 - found.t0);
      this.showTip(place, [
        [`${found.count} spans of ${label}`, "fd-tip-title"],
        [`busy ${format.percent(share)} of ${format.duration(found.t1 - found.t0)}`],
        [`${track.label}: zoom in to tell them apart`, "fd-faint"],
      ]);
    }

    /**
     * @param {Place} place
     * @param {Track} track
     * @param {KeptCurve | null} found
     * @param {LiveUnit[]} live
     */
    memoryTip(place, track, found, live) {
      /** @type {TipLine[]} */
      const lines = [];
      const time = place.time - track.offset;
      const part = found && found.part;
      if (part && part.curve) {
        const bin = Math.floor(((time - found.start) / found.width) * part.high.length);
        const value = part.high[Math.max(0, bin)];
        if (value >= 0) lines.push([`${format.bytes(value)} ${part.curve.replace("_bytes", "")}`, "fd-tip-title"]);
      }
      lines.push([live.length === 1 ? "1 unit unsharded" : `${live.length} units unsharded`]);
      live.slice(0, 8).forEach((unit) => {
        const held = unit.bytes === null ? "" : `  ${format.bytes(unit.bytes)}`;
        lines.push([`${unit.unit}${held}`]);
      });
      if (live.length > 8) lines.push([`and ${live.length - 8} more`]);
      lines.push([track.label, "fd-faint"]);
      this.showTip(place, lines);
    }

    // -- a span

    /**
     * @param {Track} track
     * @param {Slice} slice
     * @param {Details} details
     */
    showSpan(track, slice, details) {
      const { timeline } = this;
      const exposed = track.source.meta.series[slice.series].row === Row.EXPOSED;
      this.box.textContent = "";
      this.box.hidden = false;
      const head = this.add("div", "fd-head");
      this.add("strong", exposed ? "fd-exposed" : "", details.title, head);
      const start = details.start ?? slice.start, end = details.end ?? slice.end;
      this.add("span", "", format.duration(end - start), head);
      this.add("span", "fd-faint", `${track.label}, ${this.stretch(start, end)}`, head);
      const columns = this.add("div", "fd-columns");
      if (details.causes) this.causes(columns, details, end - start);
      if (details.facts.length) this.facts(columns, details.facts);
      if (details.flow.length > 1) this.places(columns, "Flow", details.flow, start, (place) => place.kind.replace(/_/g, "-"));
      const others = details.others ? `On the ranks next to it (${details.others} others are left out)` : "On other ranks";
      if (details.peers.length) this.places(columns, others, details.peers, start, (place) => `rank ${place.rank}`);
      timeline.say(`${details.title}, ${format.duration(end - start)}, ${track.label}`);
    }

    /**
     * Both ends with as many digits as tell them apart.
     * @param {number} start
     * @param {number} end
     */
    stretch(start, end) {
      const step = Math.max(1, (end - start) / 10);
      return `from ${format.moment(start, step)} to ${format.moment(end, step)}`;
    }

    /**
     * @param {HTMLElement} parent
     * @param {string} title
     */
    table(parent, title) {
      const box = this.add("div", "fd-part", undefined, parent);
      this.add("h4", "", title, box);
      return this.add("table", "fd-table", undefined, box);
    }

    /**
     * @param {HTMLElement} table
     * @param {string[]} cells
     */
    row(table, cells) {
      const line = this.add("tr", "", undefined, table);
      cells.forEach((cell, at) => this.add("td", at ? "fd-number" : "", cell, line));
      return line;
    }

    /**
     * @param {HTMLElement} parent
     * @param {Details} details
     * @param {number} whole
     */
    causes(parent, { causes = [], first }, whole) {
      const table = this.table(parent, first ? "Why it stood still (first of its step)" : "Why it stood still");
      for (const [cause, ns] of causes) {
        if (!ns) continue;
        const line = this.row(table, [CAUSES[cause] || cause, format.duration(ns)]);
        const cell = this.add("td", "", undefined, line);
        const bar = this.add("i", "fd-bar-fill", undefined, cell);
        bar.style.width = `${Math.max(1, (ns / whole) * 64)}px`;
      }
    }

    /**
     * @param {HTMLElement} parent
     * @param {Fact[]} facts
     * @param {string} [title]
     */
    facts(parent, facts, title = "What it was") {
      const half = Math.ceil(facts.length / 2);
      const tables = [this.table(parent, title), this.table(parent, "\u00a0")];
      for (const [at, [name, kind, value]] of facts.entries()) {
        const table = tables[at < half ? 0 : 1];
        this.row(table, [name, this.factText(kind, value)]).cells[1].className = "fd-value";
      }
    }

    /**
     * @param {string} kind
     * @param {string | number} value
     */
    factText(kind, value) {
      if (typeof value === "string") return value;
      return kind === "ns" ? format.duration(value) : kind === "bytes" ? format.bytes(value) : String(value);
    }

    /**
     * @param {HTMLElement} parent
     * @param {string} title
     * @param {RelatedSpan[]} places
     * @param {number} start
     * @param {(place: RelatedSpan) => string} name
     */
    places(parent, title, places, start, name) {
      const table = this.table(parent, title);
      for (const place of places.slice(0, 9)) {
        const after = place.start - start;
        const sign = after < 0 ? "-" : "+";
        const line = this.row(table, [name(place), format.duration(place.end - place.start), `${sign}${format.duration(Math.abs(after))}`]);
        line.title = "duration, and when it began against this span";
      }
      if (places.length > 9) this.row(table, [`and ${places.length - 9} more`]);
    }

    // -- an area

    async showArea() {
      const { timeline } = this;
      const { area } = timeline;
      if (!area) return;
      const asked = timeline.sources.map((source) => {
        const offset = source.offset;
        const ranks = timeline.order.filter((t) => t.source === source).map((t) => t.rank);
        return source.area(Math.round(area.t0 - offset), Math.round(area.t1 - offset), ranks)
          .then((found) => ({ source, ranks, found }));
      });
      try {
        const answers = await Promise.all(asked);
        if (timeline.area !== area) return;
        this.areaTables(area, answers);
      } catch (error) {
        timeline.sayError(error);
      }
      if (timeline.options.onArea) timeline.options.onArea([area.t0, area.t1]);
    }

    /**
     * @param {View} area
     * @param {AreaOfSource[]} answers
     */
    areaTables(area, answers) {
      const width = Math.round(area.t1) - Math.round(area.t0);
      this.box.textContent = "";
      this.box.hidden = false;
      const head = this.add("div", "fd-head");
      this.add("strong", "", `Area of ${format.duration(width)}`, head);
      this.add("span", "fd-faint", this.stretch(area.t0, area.t1), head);
      const columns = this.add("div", "fd-columns");
      for (const { source, ranks, found } of answers) {
        const meta = source.meta;
        const title = this.timeline.sources.length > 1 ? `${meta.label}: ` : "";
        this.areaSeries(columns, title, meta, ranks, found.series, width);
        this.areaRanks(columns, title, meta, ranks, found.series, width);
        if (found.largest.length) {
          const table = this.table(columns, `${title}exposed most`);
          found.largest.forEach(([unit, ns]) => this.row(table, [meta.units[unit], format.duration(ns)]));
        }
      }
    }

    /**
     * @param {HTMLElement} parent
     * @param {string} title
     * @param {Meta} meta
     * @param {number[]} ranks
     * @param {AreaSums["series"]} series
     * @param {number} width
     */
    areaSeries(parent, title, meta, ranks, series, width) {
      const table = this.table(parent, `${title}${ranks.length === 1 ? "one rank" : `${ranks.length} ranks together`}`);
      const sums = new Map();
      for (const [, index, busy, started] of series) {
        const sum = sums.get(index) || [0, 0];
        sums.set(index, [sum[0] + busy, sum[1] + started]);
      }
      this.row(table, ["", "time", "of the area", "began"]).className = "fd-faint";
      for (const [index, [busy, started]] of sums) {
        const spec = meta.series[index];
        if (spec.colour === "ruler" || (!busy && !started)) continue;
        const line = this.row(table, [spec.name, format.duration(busy), format.percent(busy / width / ranks.length), String(started)]);
        line.dataset.series = spec.name;
        line.dataset.busy = String(busy);
        line.dataset.started = String(started);
        if (spec.row === Row.EXPOSED) line.className = "fd-exposed";
      }
    }

    /**
     * @param {HTMLElement} parent
     * @param {string} title
     * @param {Meta} meta
     * @param {number[]} ranks
     * @param {AreaSums["series"]} series
     * @param {number} width
     */
    areaRanks(parent, title, meta, ranks, series, width) {
      if (ranks.length < 2) return;
      const table = this.table(parent, `${title}exposed by rank, and of the area`);
      const sums = new Map(ranks.map((rank) => [rank, 0]));
      for (const [rank, index, busy] of series) {
        if (meta.series[index].row === Row.EXPOSED) sums.set(rank, (sums.get(rank) || 0) + busy);
      }
      for (const [rank, busy] of [...sums].sort((a, b) => b[1] - a[1]).slice(0, 8)) {
        this.row(table, [`rank ${rank}`, format.duration(busy), format.percent(busy / width)]);
      }
    }
  }

  root.FsdpDetailsPanel = FsdpDetailsPanel;
  if (typeof module !== "undefined") module.exports = { FsdpDetailsPanel };
})(window);
