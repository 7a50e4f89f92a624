// The selected span: selecting it, showing it, and going on from it to another one.
(function (root) {
  "use strict";
  if (root.FsdpSelection) return;
  const { Row } = root.fsdpTiles;

  class FsdpSelection {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      this.fitted = false;
    }

    /**
     * @param {Track} track
     * @param {Slice} slice
     */
    async select(track, slice) {
      const { timeline } = this;
      /** @type {Selected} */
      const selected = { track, slice, details: null };
      timeline.selected = selected;
      timeline.events.selected = null;
      timeline.focus = track;
      timeline.redraw();
      timeline.address.viewChanged();
      try {
        const details = await track.source.details(slice.rank, slice.series, slice.span);
        if (timeline.selected !== selected) return;
        selected.details = details;
        timeline.panel.showSpan(track, slice, details);
        timeline.redrawOver();
        if (timeline.options.onSelect) timeline.options.onSelect(slice);
      } catch (error) {
        timeline.sayError(error);
      }
    }

    clear() {
      const { timeline } = this;
      timeline.selected = timeline.events.selected = null;
      timeline.area = null;
      timeline.panel.empty();
      timeline.say("");
      timeline.redrawOver();
      timeline.address.viewChanged();
    }

    /**
     * What a finding is about; everything else steps back. Nothing: all is as it was.
     * @param {DataSource | null} source
     * @param {Lit[]} stretches
     */
    light(source, stretches) {
      this.timeline.lit = source && stretches.length ? { source, stretches } : null;
      this.timeline.redrawOver();
    }

    // -- the selection in the picture

    // What is selected, a span or an event of an opened lane, as the picture counts.
    stretch() {
      const { selected, events } = this.timeline;
      const there = selected || events.selected;
      if (!there) return null;
      const { track } = there;
      const { start, end } = "slice" in there ? there.slice : there.event;
      return { t0: start + track.offset, t1: end + track.offset, track };
    }

    fit() {
      const { timeline } = this;
      const { area } = timeline;
      const here = this.stretch();
      if (area) timeline.jump(area.t0, area.t1);
      else if (here) timeline.jump(here.t0, here.t1, here.track);
      else timeline.fit();
    }

    fitOrAll() {
      const { timeline } = this;
      const { view } = timeline;
      const here = this.stretch();
      const fits = here && here.t1 - here.t0 > (view.t1 - view.t0) * 0.2;
      if (this.fitted && (fits || timeline.area)) {
        timeline.fit();
        this.fitted = false;
      } else {
        this.fit();
        this.fitted = true;
      }
    }

    toArea() {
      const { timeline } = this;
      const here = this.stretch();
      if (!here) return;
      timeline.area = { t0: here.t0, t1: here.t1 };
      timeline.panel.showArea();
      timeline.redrawOver();
    }

    // -- going from slice to slice

    /** @param {boolean} forward */
    from(forward) {
      const { view } = this.timeline;
      const here = this.stretch();
      if (here) return here.t0;
      return forward ? view.t0 : view.t1;
    }

    /**
     * Where the keys go from: the selected span, or the compute of the rank in focus.
     * @returns {{track: Track, row: number, time: number} | null}
     */
    standing() {
      const { selected, view, focus } = this.timeline;
      if (!selected) {
        return focus && { track: focus, row: Row.COMPUTE, time: Math.round(view.t0 - focus.offset) };
      }
      const { track, slice } = selected;
      return { track, row: track.source.meta.series[slice.series].row, time: slice.start };
    }

    /** @param {boolean} forward */
    async nextExposed(forward) {
      const { timeline } = this;
      try {
        const best = await this.nearestExposed(forward);
        const track = best && timeline.track(best.slice.rank, best.source.id);
        if (track) this.goTo(track, best.slice);
        else timeline.say(forward ? "no exposed stretch after this" : "no exposed stretch before this");
      } catch (error) {
        timeline.sayError(error);
      }
    }

    /**
     * @param {boolean} forward
     * @returns {Promise<{slice: Slice, at: number, source: DataSource} | null>}
     */
    async nearestExposed(forward) {
      const { timeline } = this;
      // What a person cannot see at this zoom is not what they look for next.
      const least = Math.min((timeline.view.t1 - timeline.view.t0) / timeline.plot, 1e5);
      const from = this.from(forward);
      let best = null;
      for (const source of timeline.sources) {
        const { offset } = source;
        const ranks = timeline.order.filter((t) => t.source === source).map((t) => t.rank);
        const { mark: slice } = await source.nextExposed(ranks, Math.round(from - offset), forward, Math.round(least));
        if (slice && (!best || slice.start + offset < best.at === forward)) {
          best = { slice, at: slice.start + offset, source };
        }
      }
      return best;
    }

    /** @param {boolean} forward */
    async neighbour(forward) {
      const { timeline } = this;
      if (timeline.events.selected) {
        timeline.events.beside(forward);
        return;
      }
      const here = this.standing();
      if (!here) return;
      const { track, row, time } = here;
      const from = timeline.selected ? time : time - Number(forward);
      try {
        const { mark: slice } = await track.source.neighbour(track.rank, row, from, forward);
        if (slice) this.goTo(track, slice, true);
        else timeline.say(forward ? "no span after this in its row" : "no span before this in its row");
      } catch (error) {
        timeline.sayError(error);
      }
    }

    /** @param {number} by */
    async otherRow(by) {
      const { timeline } = this;
      try {
        const found = await this.inOtherRow(by);
        if (found) this.goTo(found.track, found.slice, true);
        else timeline.say(by > 0 ? "this is the last row" : "this is the first row");
      } catch (error) {
        timeline.sayError(error);
      }
    }

    /**
     * The span at or after this moment in the next row that has one, up or down.
     * @param {number} by
     * @returns {Promise<{track: Track, slice: Slice} | null>}
     */
    async inOtherRow(by) {
      const here = this.standing();
      if (!here) return null;
      const rows = this.timeline.order.flatMap((track) => track.boxes.filter((box) => !box.lane).map((box) => ({ track, row: box.row })));
      const at = rows.findIndex((r) => r.track === here.track && r.row === here.row);
      const moment = here.time + here.track.offset;
      for (let to = at + by; to >= 0 && to < rows.length; to += by) {
        const { track, row } = rows[to];
        const from = Math.round(moment - track.offset);
        const after = await track.source.neighbour(track.rank, row, from - 1, true);
        const slice = after.mark || (await track.source.neighbour(track.rank, row, from, false)).mark;
        if (slice) return { track, slice };
      }
      return null;
    }

    /**
     * Select a slice and bring it into view; `gently` keeps the zoom where it fits.
     * @param {Track} track
     * @param {Slice} slice
     * @param {boolean} [gently]
     */
    goTo(track, slice, gently) {
      const { timeline } = this;
      const start = slice.start + track.offset, end = slice.end + track.offset;
      const { t0, t1 } = timeline.view;
      const width = t1 - t0;
      if (gently && end - start < width * 0.8) {
        timeline.reveal(track);
        if (start < t0 || end > t1) {
          timeline.setView((start + end) / 2 - width / 2, (start + end) / 2 + width / 2);
        }
      } else timeline.jump(start, end, track);
      this.select(track, slice);
    }
  }

  root.FsdpSelection = FsdpSelection;
  if (typeof module !== "undefined") module.exports = { FsdpSelection };
})(window);
