// Lanes that are opened: which, and the operators, calls and kernels under them, of what is
// in view and around it. They are asked for lane by lane, and drawn as they were until the
// answer is there.
(function (root) {
  "use strict";
  if (root.FsdpOpenedLanes) return;
  const { Row } = root.fsdpTiles;
  const AROUND = 0.5; // of the view, on both sides
  const FINER = 0.6, COARSER = 3; // than what is there, so that it is asked for anew
  const SHORTEST = 1.5; // pixels: what is shorter stands for its neighbours, too
  const ASK_AGAIN_MS = 300;
  const NO_SERVER = "this page has spans alone: fsdpdoctor view shows the operators and kernels of its trace";

  class FsdpOpenedLanes {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
    }

    /** @param {number} row */
    canOpen(row) {
      return row >= Row.COMPUTE && row <= Row.HOST;
    }

    get any() {
      return this.timeline.tracks.some((track) => track.open.size);
    }

    /**
     * @param {Track} track
     * @param {number} row
     */
    async toggle(track, row) {
      const { timeline } = this;
      const name = `${root.fsdpLayout.LABEL[row]} of ${track.label}`;
      if (track.open.delete(row)) {
        this.timeline.tracksChanged();
        timeline.say(`${name} closed`);
        return;
      }
      const lane = await this.open(track, row);
      timeline.say(lane.words || `${name}: ${lane.lines.length} rows of operators and kernels`);
    }

    /**
     * An open lane, whose lines or words are there.
     * @param {Track} track
     * @param {number} row
     * @returns {Promise<OpenLane>}
     */
    async open(track, row) {
      const { timeline } = this;
      const there = track.open.get(row);
      if (there) return there.known.then(() => there);
      timeline.reveal(track);
      /** @type {OpenLane} */
      const lane = {
        row, lines: [], words: "reading", names: {}, more: 0, t0: 0, t1: 0, pixel: 0, asking: false,
        known: Promise.resolve(),
      };
      track.open.set(row, lane);
      this.timeline.tracksChanged();
      lane.known = this.ask(track, lane);
      await lane.known;
      return lane;
    }

    // -- what is in view

    // Each lane on the screen has what the view needs, or it is asked for.
    want() {
      const { timeline } = this;
      for (const track of timeline.order) {
        if (track.small || !track.open.size || !timeline.onScreen(track)) continue;
        for (const lane of track.open.values()) {
          if (!lane.asking && !lane.words && !this.enough(track, lane)) this.ask(track, lane);
        }
      }
    }

    // Of one pixel, and a little more.
    get pixel() {
      const { timeline: { view, plot } } = this;
      return Math.max(1, Math.round(((view.t1 - view.t0) / plot) * SHORTEST));
    }

    /**
     * @param {Track} track
     * @param {OpenLane} lane
     */
    enough(track, lane) {
      const { view, start, end } = this.timeline;
      const from = Math.max(view.t0, start) - track.offset, to = Math.min(view.t1, end) - track.offset;
      const finer = this.pixel / lane.pixel;
      return from >= lane.t0 && to <= lane.t1 && finer > FINER && finer < COARSER;
    }

    /**
     * @param {Track} track
     * @param {OpenLane} lane
     */
    async ask(track, lane) {
      const { timeline } = this;
      const { source } = track;
      if (!source.lane) {
        this.take(lane, { why: NO_SERVER });
        return;
      }
      lane.asking = true;
      try {
        const { t0, t1 } = timeline.view;
        const margin = (t1 - t0) * AROUND;
        const asked = {
          t0: Math.round(t0 - margin - track.offset), t1: Math.round(t1 + margin - track.offset),
          pixel: this.pixel,
        };
        for (;;) {
          const found = await source.lane(track.rank, lane.row, asked);
          if (timeline.gone) return;
          if (!found.reading) {
            this.take(lane, Object.assign(found, asked));
            return;
          }
          lane.words = found.reading;
          timeline.redraw();
          await new Promise((resolve) => { setTimeout(resolve, ASK_AGAIN_MS); });
        }
      } catch (error) {
        timeline.sayError(error);
        if (lane.words) this.take(lane, { why: timeline.status.textContent || "" });
      } finally {
        lane.asking = false;
      }
    }

    /**
     * @param {OpenLane} lane
     * @param {LaneAnswer} found
     */
    take(lane, found) {
      const before = `${lane.words}|${lane.lines.length}`;
      lane.words = found.why || "";
      lane.lines = found.rows || [];
      lane.names = found.names || {};
      lane.more = found.more || 0;
      lane.t0 = found.t0 || 0;
      lane.t1 = found.t1 || 0;
      lane.pixel = found.pixel || 1;
      if (`${lane.words}|${lane.lines.length}` === before) this.timeline.redraw();
      else this.timeline.tracksChanged();
    }
  }

  root.FsdpOpenedLanes = FsdpOpenedLanes;
  if (typeof module !== "undefined") module.exports = { FsdpOpenedLanes };
})(window);
