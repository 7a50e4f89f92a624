// What stands between the minimap and the rows: the axis, the steps, the micro-batches.
(function (root) {
  "use strict";
  if (root.FsdpRulers) return;
  const { Row } = root.fsdpTiles;
  const format = root.fsdpFormat;
  const { fitted } = root.fsdpCanvas;
  const { GUTTER, MINIMAP, AXIS, STEPS, BATCHES, FONT } = root.fsdpLayout;

  class FsdpRulers {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
    }

    /** @returns {Ticks} */
    ticks() {
      const { timeline } = this;
      const span = timeline.view.t1 - timeline.view.t0;
      const rough = span / Math.max(2, timeline.plot / 110);
      const power = Math.pow(10, Math.floor(Math.log10(rough)));
      const step = power * ([1, 2, 5].find((m) => m * power >= rough) || 10);
      const found = [];
      for (let t = Math.ceil(timeline.view.t0 / step) * step; t <= timeline.view.t1; t += step) found.push(t);
      return { step, times: found };
    }

    /**
     * @param {Ticks} ticks
     * @param {Gap[]} gaps
     */
    paint(ticks, gaps) {
      const { timeline } = this;
      const pen = timeline.pen;
      pen.fillStyle = timeline.ink.panel;
      pen.fillRect(0, MINIMAP, timeline.width, timeline.top - MINIMAP);
      pen.textBaseline = "middle";
      pen.fillStyle = timeline.ink.text;
      pen.font = `11px ${FONT}`;
      pen.fillText(`${format.duration(timeline.view.t1 - timeline.view.t0)} shown`, 8, MINIMAP + AXIS / 2);
      pen.fillStyle = timeline.ink.faint;
      pen.font = `10px ${FONT}`;
      pen.textAlign = "right";
      pen.fillText("step", GUTTER - 8, MINIMAP + AXIS + STEPS / 2);
      if (timeline.hasBatches) {
        pen.font = `8px ${FONT}`;
        pen.fillText("micro-batch", GUTTER - 8, MINIMAP + AXIS + STEPS + BATCHES / 2);
      }
      pen.textAlign = "left";
      timeline.clipPlot(MINIMAP, timeline.top);
      pen.textAlign = "center";
      pen.font = `10px ${FONT}`;
      for (const t of ticks.times) {
        const x = timeline.x(t);
        const text = format.moment(t, ticks.step);
        const half = pen.measureText(text).width / 2 + 2;
        if (x - half < GUTTER || x + half > GUTTER + timeline.plot) continue;
        pen.fillText(text, x, MINIMAP + AXIS / 2);
      }
      pen.textAlign = "left";
      this.ruler(Row.STEP, MINIMAP + AXIS, STEPS, (span) => `step ${span}`);
      this.gapWords(gaps, MINIMAP + AXIS + STEPS / 2 + 0.5);
      if (timeline.hasBatches) this.ruler(Row.MICRO_BATCH, MINIMAP + AXIS + STEPS, BATCHES, null);
      pen.restore();
      pen.fillStyle = timeline.ink.line;
      pen.fillRect(0, timeline.top - 1, timeline.width, 1);
    }

    /**
     * The steps of the first track, in bands that alternate. A band that crosses tiles
     * is drawn as one.
     * @param {number} row
     * @param {number} y
     * @param {number} height
     * @param {((span: number) => string) | null} label
     */
    ruler(row, y, height, label) {
      const { timeline } = this;
      const pen = timeline.pen;
      const bands = this.bands(row);
      bands.forEach((band, at) => {
        const x0 = timeline.x(band.start), x1 = timeline.x(band.end);
        pen.fillStyle = (label ? band.span : at) % 2 ? timeline.ink.line : timeline.ink.grid;
        pen.fillRect(x0, y + 1, Math.max(0.5, x1 - x0 - (x1 - x0 > 3 ? 1 : 0)), height - 2);
        if (!label) return;
        const left = Math.max(x0, GUTTER);
        const text = fitted(timeline.pen, label(band.span), Math.min(x1, GUTTER + timeline.plot) - left - 6, "9px");
        if (!text || text.includes("\u2026")) return;
        pen.fillStyle = timeline.ink.text;
        pen.fillText(text, left + 4, y + height / 2 + 0.5);
      });
    }

    /**
     * @param {Gap[]} gaps
     * @param {number} y
     */
    gapWords(gaps, y) {
      const { timeline } = this;
      const pen = timeline.pen;
      pen.fillStyle = timeline.ink.faint;
      for (const { start, end, first, last } of gaps) {
        const left = Math.max(timeline.x(start), GUTTER), right = Math.min(timeline.x(end), GUTTER + timeline.plot);
        const steps = first === last ? `step ${first}` : `steps ${first}-${last}`;
        for (const said of [`${steps} not recorded`, "not recorded"]) {
          const text = fitted(timeline.pen, said, right - left - 8, "9px");
          if (text !== said) continue;
          pen.fillText(text, left + 4, y);
          break;
        }
      }
    }

    /**
     * @param {number} row
     * @returns {Band[]}
     */
    bands(row) {
      const { timeline } = this;
      const track = timeline.order[0];
      /** @type {Map<number, Band>} */
      const bands = new Map();
      for (const index of track.indices || []) {
        const found = timeline.loader.best(track.source, track.rank, false, track.level, index);
        if (!found) continue;
        const { tile } = found;
        for (const block of found.blocks) {
          // Where there are too many to tell apart they come as shares: no bands.
          if (track.source.meta.series[block.series].row !== row || !block.span) continue;
          for (let i = 0; i < block.count; i++) {
            const start = tile.start + (block.from[i] * tile.width) / 65536 + track.offset;
            const end = tile.start + (block.to[i] * tile.width) / 65536 + track.offset;
            const known = bands.get(block.span[i]);
            if (!known) bands.set(block.span[i], { span: block.span[i], start, end });
            else {
              known.start = Math.min(known.start, start);
              known.end = Math.max(known.end, end);
            }
          }
        }
      }
      return [...bands.values()].sort((a, b) => a.start - b.start);
    }

    /**
     * Steps that the recorder left out: nothing is known there, which is not idleness.
     * @returns {Gap[]}
     */
    unrecorded() {
      const bands = this.bands(Row.STEP);
      return bands.slice(1).map((band, at) => ({
        start: bands[at].end, end: band.start, first: bands[at].span + 1, last: band.span - 1,
      })).filter((gap) => gap.last >= gap.first && gap.end > gap.start);
    }
  }

  root.FsdpRulers = FsdpRulers;
  if (typeof module !== "undefined") module.exports = { FsdpRulers };
})(window);
