// The curve below the rows: the memory of the track that is looked at, and its peak.
(function (root) {
  "use strict";
  if (root.FsdpMemory) return;
  const { BINS } = root.fsdpTiles;
  const format = root.fsdpFormat;
  const { fitted } = root.fsdpCanvas;
  const { GUTTER, MEMORY, FONT } = root.fsdpLayout;

  class FsdpMemory {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
    }

    paint() {
      const { timeline } = this;
      const pen = timeline.pen, track = timeline.focus;
      const y = timeline.bottom, height = MEMORY;
      pen.fillStyle = timeline.ink.background;
      pen.fillRect(0, y, timeline.width, height);
      pen.fillStyle = timeline.ink.line;
      pen.fillRect(0, y, timeline.width, 1);
      pen.textBaseline = "middle";
      pen.fillStyle = timeline.ink.text;
      pen.font = `bold 11px ${FONT}`;
      pen.fillText("memory", 6, y + 14);
      if (!track || !track.indices) return;
      const { level } = track;
      if (timeline.sharp) timeline.curves.want(track, level, track.indices);
      const found = new Set(track.indices.flatMap((index) => timeline.curves.best(track, level, index) || []));
      const known = [...found].map(({ part }) => part).find(measured);
      pen.fillStyle = timeline.ink.faint;
      pen.font = `10px ${FONT}`;
      pen.fillText(fitted(timeline.pen, track.label, 100, "10px"), 6, y + 30);
      if (!known) {
        if (found.size) pen.fillText("not measured", 6, y + 44);
        return;
      }
      pen.fillText(known.curve.replace("_bytes", ""), 6, y + 44);
      this.scale(known, y, height);
      timeline.clipPlot(y, y + height);
      let columns = 0;
      for (const kept of found) if (measured(kept.part)) columns += this.part(track, kept.part, kept, y, height);
      if (!columns) {
        pen.fillStyle = timeline.ink.faint;
        pen.textAlign = "center";
        pen.fillText("no sample of memory in this stretch", GUTTER + timeline.plot / 2, y + height / 2);
        pen.textAlign = "left";
      }
      this.peak(track, known, y);
      pen.restore();
    }

    /**
     * @param {MemoryCurve} known
     * @param {number} y
     * @param {number} height
     */
    scale(known, y, height) {
      const { timeline } = this;
      const pen = timeline.pen;
      pen.textAlign = "right";
      pen.fillStyle = timeline.ink.faint;
      pen.font = `9px ${FONT}`;
      pen.fillText(format.bytes(known.top), GUTTER - 8, y + 16);
      pen.fillText("0 B", GUTTER - 8, y + height - 8);
      pen.textAlign = "left";
    }

    /**
     * @param {Track} track
     * @param {MemoryCurve} part
     * @param {KeptCurve} found
     * @param {number} y
     * @param {number} height
     * @returns {number} columns that were drawn
     */
    part(track, part, { width, start }, y, height) {
      const { timeline } = this;
      const pen = timeline.pen;
      const bin = width / BINS;
      const begin = start + track.offset;
      const scale = (height - 24) / (part.top || 1);
      const floor = y + height - 4;
      const per = (timeline.view.t1 - timeline.view.t0) / timeline.plot;
      const first = Math.max(0, Math.floor((timeline.view.t0 - begin) / bin));
      const last = Math.min(BINS, Math.ceil((timeline.view.t1 - begin) / bin));
      const group = Math.max(1, Math.floor(per / bin));
      const columns = [];
      for (let i = first; i < last; i += group) {
        let low = Infinity, high = -1;
        for (let j = i; j < Math.min(last, i + group); j++) {
          if (part.high[j] < 0) continue;
          low = Math.min(low, part.low[j]);
          high = Math.max(high, part.high[j]);
        }
        if (high < 0) continue;
        // Whole pixels, or columns of half-covered ones would show as stripes.
        const x = Math.round(timeline.x(begin + i * bin));
        const wide = Math.max(1, Math.round(timeline.x(begin + (i + group) * bin)) - x);
        columns.push([x, wide, low * scale, high * scale]);
      }
      // Colour by colour: changing it costs more than a column.
      pen.fillStyle = timeline.ink.memoryFill;
      for (const [x, wide, low] of columns) pen.fillRect(x, floor - low, wide, low);
      pen.fillStyle = timeline.ink.memory;
      for (const [x, wide, low, high] of columns) pen.fillRect(x, floor - high, wide, Math.max(1.2, high - low));
      return columns.length;
    }

    /**
     * @param {Track} track
     * @param {MemoryCurve} known
     * @param {number} y
     */
    peak(track, known, y) {
      const { timeline } = this;
      const x = timeline.x(known.peak.time + track.offset);
      if (x < GUTTER || x > GUTTER + timeline.plot) return;
      const pen = timeline.pen;
      const top = y + 20;
      pen.fillStyle = timeline.ink.text;
      pen.beginPath();
      pen.moveTo(x - 4, top - 7);
      pen.lineTo(x + 4, top - 7);
      pen.lineTo(x, top - 1);
      pen.fill();
      pen.font = `bold 9px ${FONT}`;
      const text = `peak ${format.bytes(known.peak.bytes)}`;
      const width = pen.measureText(text).width;
      const right = x + 8 + width < GUTTER + timeline.plot;
      pen.fillText(text, right ? x + 8 : x - 8 - width, y + 11);
    }
  }

  /**
   * @param {NoCurve | MemoryCurve} part
   * @returns {part is MemoryCurve}
   */
  function measured(part) {
    return part.curve !== null;
  }

  root.FsdpMemory = FsdpMemory;
  if (typeof module !== "undefined") module.exports = { FsdpMemory };
})(window);
