// The whole run above everything: a bar for each step, so that slow ones are seen at a
// glance, below them what was exposed and computed, and where in it the view is.
(function (root) {
  "use strict";
  if (root.FsdpMinimap) return;
  const { BINS } = root.fsdpTiles;
  const format = root.fsdpFormat;
  const { penOf } = root.fsdpCanvas;
  const { GUTTER, MINIMAP, LINE, FONT } = root.fsdpLayout;
  const SLOW = 1.25; // of a usual step: longer ones stand out
  const FULL = 1.6; // of a usual step: from there on a bar is as high as it can be
  const LEAST = 2; // pixels of a bar, in height
  const GAP_FROM = 4; // pixels of a bar from which on there is a gap after it

  class FsdpMinimap {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      /** @type {HTMLCanvasElement | null} the bars, as they were painted last */
      this.line = null;
      this.lineOf = "";
    }

    paint() {
      const { timeline } = this;
      const pen = timeline.pen;
      pen.fillStyle = timeline.ink.panel;
      pen.fillRect(0, 0, timeline.width, MINIMAP);
      this.words();
      const whole = timeline.end - timeline.start;
      const top = LINE + 2, height = (MINIMAP - top - 3) / timeline.sources.length;
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, 0, timeline.plot, MINIMAP);
      pen.clip();
      timeline.sources.forEach((source, at) => {
        const map = source.meta.minimap;
        const image = this.busyLine(map);
        const y = top + at * height;
        const x = this.x(source.offset);
        const width = (Math.pow(2, map.level) / whole) * timeline.plot;
        pen.drawImage(image, 0, 0, BINS, 1, x, y + height * 0.45, width, height * 0.5);
        pen.drawImage(image, 0, 1, BINS, 1, x, y, width, height * 0.45);
      });
      pen.drawImage(this.steps(), GUTTER, 0, timeline.plot, LINE);
      pen.restore();
      const x0 = Math.max(GUTTER, this.x(timeline.view.t0));
      const x1 = Math.min(GUTTER + timeline.plot, this.x(timeline.view.t1));
      pen.fillStyle = timeline.ink.veil;
      pen.fillRect(GUTTER, top, Math.max(0, x0 - GUTTER), MINIMAP - top);
      pen.fillRect(x1, top, Math.max(0, GUTTER + timeline.plot - x1), MINIMAP - top);
      pen.strokeStyle = timeline.ink.text;
      pen.lineWidth = 1;
      pen.strokeRect(Math.round(x0) + 0.5, 0.5, Math.max(2, Math.round(x1 - x0) - 1), MINIMAP - 1);
    }

    words() {
      const { timeline } = this;
      const pen = timeline.pen;
      pen.fillStyle = timeline.ink.faint;
      pen.font = `10px ${FONT}`;
      pen.textBaseline = "middle";
      const counts = timeline.sources.map(({ meta }) => meta.steps.count);
      const count = Math.max(...counts);
      const busy = (LINE + MINIMAP) / 2;
      if (count) pen.fillText(count === 1 ? "1 step" : `${counts.join(" and ")} steps, by length`, 8, LINE / 2 + 1);
      pen.fillText(`whole run ${format.duration(timeline.end - timeline.start)}`, 8, busy);
    }

    /** @param {number} time */
    x(time) {
      const { timeline } = this;
      return GUTTER + ((time - timeline.start) / (timeline.end - timeline.start)) * timeline.plot;
    }

    /** @param {number} x */
    time(x) {
      const { timeline } = this;
      return timeline.start + ((x - GUTTER) / timeline.plot) * (timeline.end - timeline.start);
    }

    /**
     * The step, or the steps that share a bar, at a place of the minimap.
     * @param {number} x
     * @returns {{ bar: StepBar, source: DataSource, together: number } | null}
     */
    at(x) {
      const { timeline } = this;
      const time = this.time(x);
      for (const source of timeline.sources) {
        const { bars, count } = source.meta.steps;
        const bar = bars.find(([, start, end]) => start <= time - source.offset && time - source.offset < end);
        if (bar) return { bar, source, together: Math.ceil(count / bars.length) };
      }
      return null;
    }

    /**
     * What a bar stands for, in words.
     * @param {number} x
     * @returns {TipLine[]}
     */
    tip(x) {
      const found = this.at(x);
      if (!found) return [];
      const { bar: [step, , , length], source, together } = found;
      const { usual } = source.meta.steps;
      const more = length / usual - 1;
      const side = Math.abs(more) < 0.0005 ? "as long as a usual step"
        : `${format.percent(Math.abs(more))} ${more > 0 ? "longer" : "shorter"} than a usual step (${format.duration(usual)})`;
      const name = together > 1 ? `step ${step}, the longest of ${together} here` : `step ${step}`;
      return [
        [`${name}: ${format.duration(length)}`, "fd-tip-title"], [side],
        ["click shows it", "fd-faint"],
      ];
    }

    // Bars as wide as their steps and as high as these are long. Painted once: a zoom
    // moves none of them.
    steps() {
      const { timeline } = this;
      const { ratio, plot, theme, sources } = timeline;
      const name = [plot, ratio, theme, ...sources.map((s) => `${s.meta.fingerprint}@${s.offset}`)].join();
      if (this.line && this.lineOf === name) return this.line;
      this.lineOf = name;
      this.line = document.createElement("canvas");
      this.line.width = Math.max(1, Math.round(plot * ratio));
      this.line.height = Math.round(LINE * ratio);
      const pen = penOf(this.line);
      pen.scale(ratio, ratio);
      const room = (LINE - 1) / sources.length;
      sources.forEach(({ meta, offset }, nth) => {
        const { bars, usual } = meta.steps;
        const floor = (nth + 1) * room;
        for (const [, start, end, length] of bars) {
          const x0 = this.x(start + offset) - GUTTER, x1 = this.x(end + offset) - GUTTER;
          const share = Math.min(1, length / (FULL * usual));
          const height = Math.max(LEAST, share * (room - 1));
          pen.fillStyle = length > SLOW * usual ? timeline.ink.text : timeline.ink.bar;
          pen.fillRect(x0, floor - height, Math.max(0.75, x1 - x0 - (x1 - x0 > GAP_FROM ? 1 : 0)), height);
        }
      });
      return this.line;
    }

    /** @param {Minimap} map */
    busyLine(map) {
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

  root.FsdpMinimap = FsdpMinimap;
  if (typeof module !== "undefined") module.exports = { FsdpMinimap };
})(window);
