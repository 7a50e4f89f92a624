// The rows of every track: lanes, slices, exposed stretches, their labels, and the gutter.
(function (root) {
  "use strict";
  if (root.FsdpRows) return;
  const { Row } = root.fsdpTiles;
  const format = root.fsdpFormat;
  const { fitted, penOf, unitFitted } = root.fsdpCanvas;
  const { GUTTER, FONT } = root.fsdpLayout;
  const HATCH_FROM = 5; // device pixels from which an exposed stretch is hatched

  class FsdpRows {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      this.lines = document.createElement("canvas"); // a line of pixels for each row
      this.linesPen = penOf(this.lines);
    }

    /**
     * @param {Ticks} ticks
     * @param {Gap[]} gaps
     */
    paint(ticks, gaps) {
      this.lanes(ticks, gaps);
      this.rows();
      this.waits();
      this.bands();
      this.labels();
      this.timeline.openedRows.paint();
      this.timeline.unknown.ends();
      this.gutter();
    }

    /**
     * @param {Ticks} ticks
     * @param {Gap[]} gaps
     */
    lanes(ticks, gaps) {
      const { timeline } = this;
      const pen = timeline.pen;
      timeline.clipPlot(timeline.top, timeline.bottom);
      pen.fillStyle = timeline.ink.lane;
      for (const track of timeline.order) {
        if (!timeline.onScreen(track)) continue;
        for (const box of track.boxes) {
          if (box.row !== Row.EXPOSED) pen.fillRect(GUTTER, timeline.screenY(box.y), timeline.plot, box.height);
        }
      }
      pen.fillStyle = timeline.ink.panel;
      for (const gap of gaps) {
        pen.fillRect(timeline.x(gap.start), timeline.top, timeline.x(gap.end) - timeline.x(gap.start), timeline.bottom - timeline.top);
      }
      pen.fillStyle = timeline.ink.grid;
      for (const t of ticks.times) pen.fillRect(Math.round(timeline.x(t)), timeline.top, 1, timeline.bottom - timeline.top);
      pen.restore();
    }

    rows() {
      const { timeline } = this;
      /** @type {[Track, Box, number][]} */
      const boxes = [];
      for (const track of timeline.order) {
        if (!timeline.onScreen(track)) continue;
        for (const box of track.boxes) {
          const y = timeline.screenY(box.y);
          if (!box.lane && y + box.height > timeline.top && y < timeline.bottom) boxes.push([track, box, y]);
        }
      }
      if (!boxes.length) return;
      const image = new ImageData(timeline.pixels, boxes.length);
      boxes.forEach(([track, box], line) => this.rasterRow(track, box, image, line));
      this.lines.width = timeline.pixels;
      this.lines.height = boxes.length;
      this.linesPen.putImageData(image, 0, 0);
      timeline.clipPlot(timeline.top, timeline.bottom);
      timeline.pen.imageSmoothingEnabled = false;
      boxes.forEach(([, box, y], line) => {
        timeline.pen.drawImage(this.lines, 0, line, timeline.pixels, 1, GUTTER, y, timeline.plot, box.height);
      });
      timeline.pen.restore();
    }

    /**
     * All series of a row, from the best tiles there are, into a line of pixels.
     * @param {Track} track
     * @param {Box} box
     * @param {ImageData} image
     * @param {number} line
     */
    rasterRow(track, box, image, line) {
      const { timeline } = this;
      const { source, offset } = track;
      const specs = source.meta.series;
      const perPixel = (timeline.view.t1 - timeline.view.t0) / timeline.pixels;
      const t0 = timeline.view.t0 - offset;
      const size = Math.pow(2, track.level);
      timeline.raster.clear();
      /** @param {RasterSlice} slice */
      const wide = (slice) => this.keepWide(track, box, slice);
      for (const index of track.indices || []) {
        const found = timeline.loader.best(source, track.rank, track.small, track.level, index);
        if (!found) continue;
        const first = Math.max(0, Math.round((index * size - t0) / perPixel));
        const last = Math.min(timeline.pixels, Math.round(((index + 1) * size - t0) / perPixel));
        for (const block of found.blocks) {
          const spec = specs[block.series];
          if (spec.row !== box.row) continue;
          timeline.raster.block(found.tile, block, timeline.rgb[spec.colour], first, last, t0, perPixel, wide);
          if (box.row === Row.EXPOSED && block.shares) {
            timeline.raster.runs(found.tile, block, first, last, t0, perPixel, wide);
          }
        }
      }
      timeline.raster.write(image, line, box.row === Row.EXPOSED);
    }

    /**
     * Slices arrive tile by tile; one that crosses a border is joined again.
     * @param {Track} track
     * @param {Box} box
     * @param {RasterSlice} slice
     */
    keepWide(track, box, slice) {
      const { timeline } = this;
      const list = box.row === Row.EXPOSED ? timeline.bands : timeline.wide;
      const from = slice.from / timeline.ratio, to = slice.to / timeline.ratio;
      if (box.row !== Row.EXPOSED && slice.to - slice.from < 4 * timeline.ratio) return;
      for (let at = list.length - 1; at >= 0 && at > list.length - 6; at--) {
        const other = list[at];
        if (other.track === track && other.box === box && other.series === slice.series
            && other.span === slice.span && from <= other.to + 1 && to >= other.from - 1) {
          other.from = Math.min(other.from, from);
          other.to = Math.max(other.to, to);
          return;
        }
      }
      list.push({ track, box, series: slice.series, span: slice.span, unit: slice.unit, from, to });
    }

    /** @param {WideSlice} slice */
    spec(slice) {
      return slice.track.source.meta.series[slice.series];
    }

    // Waiting for a rank is dotted, moving bytes is plain.
    waits() {
      const { timeline } = this;
      timeline.clipPlot(timeline.top, timeline.bottom);
      timeline.pen.fillStyle = timeline.dots;
      for (const slice of timeline.wide) {
        if (!this.spec(slice).colour.endsWith("_wait") || slice.to - slice.from < 4) continue;
        timeline.pen.fillRect(GUTTER + slice.from, timeline.screenY(slice.box.y), slice.to - slice.from, slice.box.height);
      }
      timeline.pen.restore();
    }

    // Exposed stretches over all rows of their rank: hatched, edged and labelled.
    bands() {
      const { timeline } = this;
      const pen = timeline.pen;
      timeline.clipPlot(timeline.top, timeline.bottom);
      for (const band of timeline.bands) {
        const { track } = band;
        const from = Math.max(band.from, -2), to = Math.min(band.to, timeline.plot + 2);
        if ((to - from) * timeline.ratio < HATCH_FROM || track.small) continue;
        const x = GUTTER + from;
        const y = timeline.screenY(track.y) + 4, height = track.height - 9;
        const ribbon = band.box.height;
        pen.fillStyle = timeline.hatch;
        pen.fillRect(x, y + ribbon, to - from, height - ribbon);
        pen.fillStyle = timeline.ink.exposed;
        if (band.from > -2) pen.fillRect(x, y, 1, height);
        if (band.to < timeline.plot + 2) pen.fillRect(x + to - from - 1, y, 1, height);
        pen.fillRect(x, y, to - from, ribbon);
        this.bandLabel(band, from, to, y);
      }
      pen.restore();
    }

    /**
     * @param {WideSlice} band
     * @param {number} from
     * @param {number} to
     * @param {number} y
     */
    bandLabel(band, from, to, y) {
      const { timeline } = this;
      const room = Math.min(to, timeline.plot) - Math.max(from, 0) - 8;
      if (room < 48) return;
      const unit = band.track.source.meta.units[band.unit];
      const label = this.exposedWords(unit, room, band.box.height > 14 ? "bold 11px" : "bold 9px");
      timeline.pen.fillStyle = timeline.theme === "dark" ? "#1a0500" : "#ffffff";
      timeline.pen.textBaseline = "middle";
      timeline.pen.fillText(label, GUTTER + Math.max(from, 0) + 4, y + band.box.height / 2 + 0.5);
    }

    /**
     * The word is never shortened, the name beside it may be.
     * @param {string | undefined} unit
     * @param {number} room
     * @param {string} font
     */
    exposedWords(unit, room, font) {
      const { timeline } = this;
      const word = fitted(timeline.pen, "EXPOSED", room, font);
      if (!word || unit === undefined) return word;
      const name = unitFitted(timeline.pen, unit, room - timeline.pen.measureText("EXPOSED ").width, font);
      return name ? `${word} ${name}` : word;
    }

    labels() {
      const { timeline } = this;
      const pen = timeline.pen;
      timeline.clipPlot(timeline.top, timeline.bottom);
      pen.textBaseline = "middle";
      for (const slice of timeline.wide) {
        if (slice.track.small || slice.box.height < 12 || slice.unit < 0) continue;
        const from = Math.max(slice.from, 0), to = Math.min(slice.to, timeline.plot);
        if (to - from < 54) continue;
        const spec = this.spec(slice);
        const label = unitFitted(timeline.pen, slice.track.source.meta.units[slice.unit] || "", to - from - 8, slice.box.height > 20 ? "12px" : "10px");
        if (!label) continue;
        pen.fillStyle = this.inkOn(spec.colour);
        pen.fillText(label, GUTTER + from + 4, timeline.screenY(slice.box.y) + slice.box.height / 2 + 0.5);
      }
      pen.restore();
    }

    /** @param {string} colour */
    inkOn(colour) {
      const { timeline } = this;
      const [r, g, b] = timeline.rgb[colour];
      return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1a1a1a" : "#ffffff";
    }

    gutter() {
      const { timeline } = this;
      const pen = timeline.pen;
      pen.save();
      pen.beginPath();
      pen.rect(0, timeline.top, timeline.width, timeline.bottom - timeline.top);
      pen.clip();
      for (const track of timeline.order) {
        if (!timeline.onScreen(track)) continue;
        const y = timeline.screenY(track.y);
        pen.fillStyle = timeline.ink.line;
        if (!track.small) pen.fillRect(0, Math.round(y + track.height) - 2, timeline.width, 1);
        pen.textBaseline = "middle";
        if (track.small) this.smallGutter(track, y);
        else this.tallGutter(track, y);
      }
      pen.restore();
    }

    /**
     * @param {Track} track
     * @param {number} y
     */
    smallGutter(track, y) {
      const { timeline } = this;
      if (track.height < 9) {
        if (timeline.order.indexOf(track) % 2) return;
      }
      const middle = y + track.height / 2;
      timeline.pen.fillStyle = timeline.ink.text;
      timeline.pen.fillText(fitted(timeline.pen, `\u25b8 ${track.label}`, 92, track.height < 13 ? "9px" : "11px"), 6, middle);
      this.exposedShare(track, 104, middle, track.height < 13 ? "9px" : "bold 10px", "");
    }

    /**
     * @param {Track} track
     * @param {number} y
     */
    tallGutter(track, y) {
      const { timeline } = this;
      const pen = timeline.pen;
      pen.fillStyle = timeline.ink.text;
      // Beside the exposed row, which has no label of its own: the whole gutter is free.
      pen.fillText(fitted(timeline.pen, `\u25be ${track.label}`, GUTTER - 14, "bold 11px"), 6, y + 11);
      this.exposedShare(track, 17, y + 27, "bold 10px", " exposed");
      pen.fillStyle = track.pinned ? timeline.ink.text : timeline.ink.line;
      pen.font = `11px ${FONT}`;
      pen.fillText(track.pinned ? "\u2605 pinned" : "\u2606", 17, y + 43);
      pen.textAlign = "right";
      pen.fillStyle = timeline.ink.faint;
      for (const box of track.boxes) {
        if (!box.label) continue;
        const middle = timeline.screenY(box.y) + (box.height > 20 ? box.height : Math.min(box.height, 12)) / 2 + 1;
        pen.font = `${box.height > 11 && !box.lane ? 10 : 9}px ${FONT}`;
        pen.fillText(box.label, GUTTER - 13, middle);
        timeline.openedRows.sign(track, box, middle);
      }
      pen.textAlign = "left";
    }

    /**
     * @param {Track} track
     * @param {number} x
     * @param {number} y
     * @param {string} font
     * @param {string} suffix
     */
    exposedShare(track, x, y, font, suffix) {
      const { timeline } = this;
      const share = track.info.exposed_share;
      timeline.pen.font = `${font} ${FONT}`;
      timeline.pen.fillStyle = share ? timeline.ink.exposed : timeline.ink.faint;
      const text = share === null ? "not measured" : format.percent(share) + suffix;
      timeline.pen.fillText(text, x, y);
    }

    scrollbar() {
      const { timeline } = this;
      const room = timeline.bottom - timeline.top;
      if (timeline.content <= room) return;
      const size = Math.max(24, (room / timeline.content) * room);
      const y = timeline.top + (timeline.scroll / (timeline.content - room)) * (room - size);
      timeline.pen.fillStyle = timeline.ink.faint;
      timeline.pen.fillRect(timeline.width - 5, y, 4, size);
    }
  }

  root.FsdpRows = FsdpRows;
  if (typeof module !== "undefined") module.exports = { FsdpRows };
})(window);
