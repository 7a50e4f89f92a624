// What follows the mouse, on a canvas of its own: cursor, area, selected span and arrows.
(function (root) {
  "use strict";
  if (root.FsdpOverlay) return;
  const { Row } = root.fsdpTiles;
  const format = root.fsdpFormat;
  const { GUTTER, MINIMAP, AXIS, STEPS, FONT } = root.fsdpLayout;
  const LEAST_LIT = 2; // pixels of what is lit
  const FLOW = [Row.HOST, Row.COPIES, Row.ALL_GATHER, Row.REDUCE_SCATTER, Row.ALL_REDUCE,
    Row.EXPOSED, Row.COMPUTE];

  class FsdpOverlay {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      this.upperEmpty = false;
    }

    paint() {
      const { timeline } = this;
      const pen = timeline.over;
      pen.setTransform(timeline.ratio, 0, 0, timeline.ratio, 0, 0);
      const { area, selected, searched, hover, lit, events } = timeline;
      const needed = area || selected || searched || lit || events.selected || (hover && hover.x >= GUTTER);
      if (!needed && this.upperEmpty) return; // or the browser would lay it over again
      this.upperEmpty = !needed;
      pen.clearRect(0, 0, timeline.width, timeline.height);
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, MINIMAP, timeline.plot, timeline.height - MINIMAP);
      pen.clip();
      if (lit) this.lit(pen, lit);
      timeline.bookmarks.paint(pen, timeline.top, timeline.bottom);
      if (area) this.area(pen, area);
      if (searched) this.units(pen, searched.units);
      if (hover && hover.unit >= 0) this.units(pen, new Set([hover.unit]));
      if (selected) this.selected(pen, selected);
      const chosen = events.selected;
      if (chosen) this.within(pen, () => timeline.openedRows.selected(pen, chosen));
      if (hover && hover.x >= GUTTER) this.cursor(pen, hover);
      pen.restore();
    }

    /**
     * All but some stretches under a veil.
     * @param {Pen} pen
     * @param {{ source: DataSource, stretches: Lit[] }} lit
     */
    lit(pen, { source, stretches }) {
      const { timeline } = this;
      const { t0, t1 } = timeline.view;
      const right = GUTTER + timeline.plot;
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, timeline.top, timeline.plot, timeline.bottom - timeline.top);
      pen.clip();
      // A moment has nothing that could stand out: it is a line over what was there.
      if (stretches.some(([, start, end]) => end > start)) {
        pen.fillStyle = timeline.ink.veil;
        pen.fillRect(GUTTER, timeline.top, timeline.plot, timeline.bottom - timeline.top);
      }
      pen.fillStyle = pen.strokeStyle = timeline.ink.select;
      pen.lineWidth = 1.5;
      const tracks = new Map(timeline.order.filter((track) => track.source === source).map((track) => [track.rank, track]));
      for (const [rank, start, end] of stretches) {
        const track = tracks.get(rank);
        if (!track || end + track.offset < t0 || start + track.offset > t1) continue;
        const x0 = Math.max(GUTTER - 3, timeline.x(start + track.offset));
        const x1 = Math.max(x0 + LEAST_LIT, Math.min(right + 3, timeline.x(end + track.offset)));
        const y = timeline.screenY(track.y) + 1, height = track.height - 3;
        if (start === end) pen.fillRect(x0 - 1, y, LEAST_LIT, height);
        else pen.clearRect(x0, y, x1 - x0, height);
        if (x1 - x0 > 2 * LEAST_LIT) pen.strokeRect(x0 + 0.5, y + 0.5, x1 - x0 - 1, height - 1);
      }
      pen.restore();
    }

    /**
     * @param {Pen} pen
     * @param {View} area
     */
    area(pen, area) {
      const { timeline } = this;
      const x0 = timeline.x(area.t0), x1 = timeline.x(area.t1);
      pen.fillStyle = timeline.ink.area;
      pen.fillRect(x0, MINIMAP, x1 - x0, timeline.height - MINIMAP);
      pen.fillStyle = timeline.ink.cursor;
      pen.fillRect(x0, MINIMAP, 1, timeline.height);
      pen.fillRect(x1 - 1, MINIMAP, 1, timeline.height);
      const text = format.duration(area.t1 - area.t0);
      pen.font = `bold 11px ${FONT}`;
      const width = pen.measureText(text).width;
      if (width + 12 < x1 - x0) this.tag(pen, text, (x0 + x1 - width) / 2, MINIMAP + AXIS + STEPS / 2);
    }

    /**
     * @param {Pen} pen
     * @param {string} text
     * @param {number} x
     * @param {number} y
     */
    tag(pen, text, x, y) {
      const { timeline } = this;
      const width = pen.measureText(text).width;
      pen.fillStyle = timeline.ink.cursor;
      pen.fillRect(x - 4, y - 8, width + 8, 16);
      pen.fillStyle = timeline.ink.background;
      pen.textBaseline = "middle";
      pen.fillText(text, x, y + 0.5);
    }

    /**
     * @param {Pen} pen
     * @param {Set<number>} units
     */
    units(pen, units) {
      const { timeline } = this;
      pen.strokeStyle = timeline.ink.select;
      pen.lineWidth = 1;
      for (const slice of [...timeline.wide, ...timeline.bands]) {
        if (!units.has(slice.unit)) continue;
        const y = timeline.screenY(slice.box.y);
        if (y < timeline.top || y > timeline.bottom) continue;
        pen.strokeRect(GUTTER + slice.from + 0.5, y + 0.5, Math.max(1, slice.to - slice.from - 1), slice.box.height - 1);
      }
    }

    /**
     * @param {Pen} pen
     * @param {Hover} hover
     */
    cursor(pen, { x }) {
      const { timeline } = this;
      const time = timeline.time(x); // the view may have moved under a mouse that did not
      pen.fillStyle = timeline.ink.cursor;
      pen.globalAlpha = 0.45;
      pen.fillRect(Math.round(x), MINIMAP + AXIS, 1, timeline.height);
      pen.globalAlpha = 1;
      pen.font = `10px ${FONT}`;
      const step = (timeline.view.t1 - timeline.view.t0) / timeline.plot;
      const text = format.moment(time, step);
      const width = pen.measureText(text).width;
      const at = Math.min(Math.max(x - width / 2, GUTTER + 5), GUTTER + timeline.plot - width - 5);
      this.tag(pen, text, at, MINIMAP + AXIS / 2);
    }

    /**
     * @param {Track} track
     * @param {number} row
     */
    boxOf(track, row) {
      return track.boxes.find((b) => b.row === row) || (row >= Row.UNSHARDED_ROOT
        ? track.boxes.find((b) => b.row >= Row.UNSHARDED_ROOT) : null);
    }

    /**
     * @param {Pen} pen
     * @param {Selected} selected
     */
    selected(pen, { track, slice, details }) {
      const { timeline } = this;
      const spec = track.source.meta.series[slice.series];
      const box = this.boxOf(track, spec.row);
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, timeline.top, timeline.plot, timeline.bottom - timeline.top);
      pen.clip();
      if (box) {
        pen.strokeStyle = timeline.ink.select;
        pen.lineWidth = 2;
        const x0 = timeline.x(slice.start + track.offset), x1 = timeline.x(slice.end + track.offset);
        pen.strokeRect(x0 - 1, timeline.screenY(box.y) - 1, Math.max(3, x1 - x0 + 2), box.height + 2);
      }
      if (details) {
        this.peers(pen, track, details.peers);
        this.flow(pen, track, details.flow);
      }
      pen.restore();
    }

    /**
     * What is painted where ranks are, and nowhere else.
     * @param {Pen} pen
     * @param {() => void} paint
     */
    within(pen, paint) {
      const { timeline } = this;
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, timeline.top, timeline.plot, timeline.bottom - timeline.top);
      pen.clip();
      paint();
      pen.restore();
    }

    /**
     * @param {Pen} pen
     * @param {Track} track
     * @param {RelatedSpan[]} peers
     */
    peers(pen, track, peers) {
      const { timeline } = this;
      pen.setLineDash([3, 2]);
      pen.lineWidth = 1.5;
      for (const peer of peers) {
        const other = timeline.track(peer.rank, track.source.id);
        const box = other && this.boxOf(other, peer.row);
        if (!box) continue;
        const x0 = timeline.x(peer.start + other.offset), x1 = timeline.x(peer.end + other.offset);
        pen.strokeRect(x0 - 1, timeline.screenY(box.y) - 1, Math.max(3, x1 - x0 + 2), box.height + 2);
      }
      pen.setLineDash([]);
    }

    /**
     * From the host's call to the collective, to the end of the wait, to what used it.
     * @param {Pen} pen
     * @param {Track} track
     * @param {RelatedSpan[]} flow
     */
    flow(pen, track, flow) {
      const { timeline } = this;
      /** @param {RelatedSpan} place */
      const stage = (place) => FLOW.indexOf(place.row);
      const shown = flow.filter((place) => stage(place) >= 0)
        .sort((a, b) => stage(a) - stage(b) || a.start - b.start);
      for (let at = 1; at < shown.length; at++) {
        const from = shown[at - 1], to = shown[at];
        const box0 = this.boxOf(track, from.row), box1 = this.boxOf(track, to.row);
        if (!box0 || !box1 || from.row === to.row) continue;
        const y0 = timeline.screenY(box0.y) + box0.height / 2, y1 = timeline.screenY(box1.y) + box1.height / 2;
        const target = to.row === Row.EXPOSED ? to.end : to.start;
        this.arrow(pen, timeline.x(Math.min(from.end, target) + track.offset), y0,
          timeline.x(target + track.offset), y1);
      }
    }

    /**
     * @param {Pen} pen
     * @param {number} x0
     * @param {number} y0
     * @param {number} x1
     * @param {number} y1
     */
    arrow(pen, x0, y0, x1, y1) {
      const { timeline } = this;
      const bend = Math.max(12, Math.abs(x1 - x0) * 0.4);
      pen.strokeStyle = pen.fillStyle = timeline.ink.select;
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
      pen.stroke();
      pen.beginPath();
      pen.moveTo(x1 + 1, y1);
      pen.lineTo(x1 - 6, y1 - 3.5);
      pen.lineTo(x1 - 6, y1 + 3.5);
      pen.fill();
    }
  }

  root.FsdpOverlay = FsdpOverlay;
  if (typeof module !== "undefined") module.exports = { FsdpOverlay };
})(window);
