// What stands above the rows: the minimap, the axis, the steps and micro-batches.
(function (root) {
  "use strict";
  if (root.FsdpRulers) return;
  const { Row, BINS } = root.fsdpTiles;
  const format = root.fsdpFormat;
  const { fitted, penOf } = root.fsdpCanvas;
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

    minimap() {
      const { timeline } = this;
      const pen = timeline.pen;
      pen.fillStyle = timeline.ink.panel;
      pen.fillRect(0, 0, timeline.width, MINIMAP);
      pen.fillStyle = timeline.ink.faint;
      pen.font = `10px ${FONT}`;
      pen.textBaseline = "middle";
      pen.fillText(`whole run ${format.duration(timeline.end - timeline.start)}`, 8, MINIMAP / 2);
      const whole = timeline.end - timeline.start;
      const height = (MINIMAP - 6) / timeline.sources.length;
      timeline.sources.forEach((source, at) => {
        const map = source.meta.minimap;
        const bin = Math.pow(2, map.level) / BINS;
        const y = 3 + at * height;
        const image = this.minimapLine(map);
        const from = source.offset - timeline.start;
        const x = GUTTER + (from / whole) * timeline.plot;
        const width = ((bin * BINS) / whole) * timeline.plot;
        pen.save();
        pen.beginPath();
        pen.rect(GUTTER, 0, timeline.plot, MINIMAP);
        pen.clip();
        pen.drawImage(image, 0, 0, BINS, 1, x, y + height * 0.45, width, height * 0.5);
        pen.drawImage(image, 0, 1, BINS, 1, x, y, width, height * 0.45);
        pen.restore();
      });
      const x0 = Math.max(GUTTER, this.miniX(timeline.view.t0));
      const x1 = Math.min(GUTTER + timeline.plot, this.miniX(timeline.view.t1));
      pen.fillStyle = timeline.theme === "dark" ? "#0d1117b0" : "#ffffffb0";
      pen.fillRect(GUTTER, 0, Math.max(0, x0 - GUTTER), MINIMAP);
      pen.fillRect(x1, 0, Math.max(0, GUTTER + timeline.plot - x1), MINIMAP);
      pen.strokeStyle = timeline.ink.text;
      pen.lineWidth = 1;
      pen.strokeRect(Math.round(x0) + 0.5, 0.5, Math.max(2, Math.round(x1 - x0) - 1), MINIMAP - 1);
    }

    /** @param {number} time */
    miniX(time) {
      const { timeline } = this;
      return GUTTER + ((time - timeline.start) / (timeline.end - timeline.start)) * timeline.plot;
    }

    /** @param {number} x */
    miniTime(x) {
      const { timeline } = this;
      return timeline.start + ((x - GUTTER) / timeline.plot) * (timeline.end - timeline.start);
    }

    /** @param {Minimap} map */
    minimapLine(map) {
      const { timeline } = this;
      if (map.image && map.theme === timeline.theme) return map.image;
      const image = document.createElement("canvas");
      image.width = BINS;
      image.height = 2;
      const pen = penOf(image);
      const pixels = pen.createImageData(BINS, 2);
      const busy = format.rgb(timeline.colour.backward), exposed = format.rgb(timeline.ink.exposed);
      for (let i = 0; i < BINS; i++) {
        pixels.data.set([...busy, map.compute[i]], i * 4);
        const shown = map.exposed[i] ? Math.max(90, Math.min(255, map.exposed[i] * 3)) : 0;
        pixels.data.set([...exposed, shown], (BINS + i) * 4);
      }
      pen.putImageData(pixels, 0, 0);
      map.image = image;
      map.theme = timeline.theme;
      return image;
    }
  }

  root.FsdpRulers = FsdpRulers;
  if (typeof module !== "undefined") module.exports = { FsdpRulers };
})(window);
