// What stands under an opened lane: a row for each depth of a thread or stream, its
// events in it, and at the lane's name a sign that says that it can be opened.
(function (root) {
  "use strict";
  if (root.FsdpOpenedRows) return;
  const { fitted } = root.fsdpCanvas;
  const { GUTTER, FONT } = root.fsdpLayout;
  const LETTERS_FROM = 34; // pixels
  const PART = 3; // pixels from which on neighbours are set apart
  /** @type {Record<number, string>} the colour of an event by what it is */
  const COLOURS = { 1: "kernel", 2: "memcpy", 3: "memcpy", 4: "call", 5: "annotation", 6: "operator" };

  class FsdpOpenedRows {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      this.found = ""; // what was searched for
    }

    paint() {
      const { timeline } = this;
      if (!timeline.opened.any) return;
      timeline.clipPlot(timeline.top, timeline.bottom);
      for (const track of timeline.order) {
        if (!timeline.onScreen(track)) continue;
        for (const box of track.boxes) {
          if (!box.lane) continue;
          const y = timeline.screenY(box.y);
          if (y + box.height <= timeline.top || y >= timeline.bottom) continue;
          timeline.pen.fillStyle = timeline.ink.lane; // over the hatching of the rank
          timeline.pen.fillRect(GUTTER, y - 1, timeline.plot, box.height + 2);
          if (box.line) this.line(track, box.lane, box.line, y, box.height);
          else this.words(box.lane.words || this.moreWords(box.lane), y, box.height);
        }
      }
      timeline.pen.restore();
    }

    /** @param {OpenLane} lane */
    moreWords(lane) {
      return lane.lines.length ? `and ${lane.more} more rows, of threads or streams with fewer events`
        : "the trace has nothing under this lane";
    }

    /**
     * @param {string} words
     * @param {number} y
     * @param {number} height
     */
    words(words, y, height) {
      const { timeline } = this;
      const { pen } = timeline;
      pen.textBaseline = "middle";
      pen.fillStyle = timeline.ink.faint;
      const text = fitted(pen, words, timeline.plot - 12, "11px");
      pen.fillText(text, GUTTER + 6, y + height / 2 + 0.5);
    }

    /**
     * @param {Track} track
     * @param {OpenLane} lane
     * @param {LaneLine} line
     * @param {number} y
     * @param {number} height
     */
    line(track, lane, line, y, height) {
      const { timeline } = this;
      const { pen, view } = timeline;
      const from = view.t0 - track.offset, to = view.t1 - track.offset;
      const sought = this.found && this.soughtNames(lane);
      pen.textBaseline = "middle";
      for (let at = firstAfter(line.end, from); at < line.start.length && line.start[at] < to; at++) {
        const x0 = timeline.x(line.start[at] + track.offset), x1 = timeline.x(line.end[at] + track.offset);
        const width = x1 - x0 > PART ? x1 - x0 - 1 : Math.max(x1 - x0, 0.8);
        const colour = COLOURS[line.cat[at]];
        pen.globalAlpha = line.count[at] > 1 ? 0.55 : 1;
        pen.fillStyle = timeline.colour[colour];
        pen.fillRect(x0, y, width, height);
        pen.globalAlpha = 1;
        if (sought && line.count[at] === 1 && sought.has(line.name[at])) {
          pen.strokeStyle = timeline.ink.select;
          pen.lineWidth = 1;
          pen.strokeRect(x0 + 0.5, y + 0.5, Math.max(1, width - 1), height - 1);
        }
        this.letters(lane, line, at, x0, x1, y, height);
      }
    }

    /**
     * @param {OpenLane} lane
     * @param {LaneLine} line
     * @param {number} at
     * @param {number} x0
     * @param {number} x1
     * @param {number} y
     * @param {number} height
     */
    letters(lane, line, at, x0, x1, y, height) {
      const { timeline } = this;
      const left = Math.max(x0, GUTTER), room = Math.min(x1, GUTTER + timeline.plot) - left - 6;
      if (room < LETTERS_FROM || line.count[at] > 1) return;
      const text = fitted(timeline.pen, lane.names[line.name[at]] || "", room, "9px");
      timeline.pen.fillStyle = timeline.rows.inkOn(COLOURS[line.cat[at]]);
      timeline.pen.fillText(text, left + 3, y + height / 2 + 0.5);
    }

    /**
     * The names of a lane that hold what was searched for.
     * @param {OpenLane} lane
     */
    soughtNames(lane) {
      if (!lane.sought || lane.sought.text !== this.found || lane.sought.names !== lane.names) {
        const of = Object.entries(lane.names).filter(([, name]) => name.toLowerCase().includes(this.found));
        lane.sought = { text: this.found, names: lane.names, ids: new Set(of.map(([id]) => Number(id))) };
      }
      return lane.sought.ids;
    }

    /**
     * What is under a point of an opened row: its place in the row, or -1.
     * @param {Place} place
     * @param {LaneLine} line
     */
    at(place, line) {
      const { timeline } = this;
      const offset = place.track ? place.track.offset : 0;
      const half = (timeline.view.t1 - timeline.view.t0) / timeline.plot / 2;
      const time = place.time - offset;
      const at = firstAfter(line.end, time - half);
      return at < line.start.length && line.start[at] <= time + half ? at : -1;
    }

    /**
     * The sign at a lane's name.
     * @param {Track} track
     * @param {Box} box
     * @param {number} middle
     */
    sign(track, box, middle) {
      const { timeline } = this;
      if (!timeline.opened.canOpen(box.row)) return;
      timeline.pen.font = `9px ${FONT}`;
      timeline.pen.fillText(track.open.has(box.row) ? "\u25be" : "\u25b8", GUTTER - 3, middle);
    }

    /**
     * The selected event, and lines to what it launched or was launched by.
     * @param {Pen} pen
     * @param {SelectedEvent} selected
     */
    selected(pen, { track, event, details }) {
      const { timeline } = this;
      const own = this.outlined(pen, track, event);
      if (!own || !details) return;
      for (const other of details.launch) {
        const place = this.outlined(pen, track, other);
        if (!place) continue;
        const [call, work] = event.kind === "call" ? [own, place] : [place, own];
        timeline.overlay.arrow(pen, call.x, call.y, work.x, work.y);
      }
    }

    /**
     * @param {Pen} pen
     * @param {Track} track
     * @param {TraceEvent} event
     */
    outlined(pen, track, event) {
      const { timeline } = this;
      const box = track.boxes.find((one) => one.line && one.line.key === event.key);
      if (!box) return null;
      const x0 = timeline.x(event.start + track.offset), x1 = timeline.x(event.end + track.offset);
      const y = timeline.screenY(box.y);
      pen.strokeStyle = timeline.ink.select;
      pen.lineWidth = 2;
      pen.strokeRect(x0 - 1, y - 1, Math.max(3, x1 - x0 + 2), box.height + 2);
      return { x: x0, y: y + box.height / 2 };
    }
  }

  /**
   * The first of ascending ends that lies after a moment.
   * @param {number[]} ends
   * @param {number} time
   */
  function firstAfter(ends, time) {
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  root.FsdpOpenedRows = FsdpOpenedRows;
  if (typeof module !== "undefined") module.exports = { FsdpOpenedRows };
})(window);
