// What the mouse does. Perfetto's habits where it has one: Ctrl and wheel, Shift and
// drag, a plain drag selects an area. And what lies under the mouse, exactly.
(function (root) {
  "use strict";
  if (root.FsdpMouse) return;
  const { GUTTER, LINE } = root.fsdpLayout;
  const STAR = { left: 80, top: 38, bottom: 56 }; // where a tall track is pinned
  const LANES = 88; // of the gutter, from where on its lanes' names stand
  const MOVED = 3; // pixels from which on a press is a drag
  const PATIENCE_MS = 35; // until what is hovered over is asked for

  class FsdpMouse {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      /** @type {Place | null} */
      this.place = null;
      /** @type {Drag | null} */
      this.drag = null;
      /** @type {AbortController | null} */
      this.asking = null;
      this.hoverTimer = 0;
      const { stage, ending: { signal } } = timeline;
      stage.addEventListener("wheel", (e) => this.wheel(e), { passive: false, signal });
      stage.addEventListener("pointerdown", (e) => this.down(e), { signal });
      stage.addEventListener("pointermove", (e) => this.move(e), { signal });
      stage.addEventListener("pointerup", (e) => this.up(e), { signal });
      stage.addEventListener("pointerleave", () => this.leave(), { signal });
      stage.addEventListener("dblclick", () => timeline.selection.fit(), { signal });
    }

    destroy() {
      clearTimeout(this.hoverTimer);
    }

    /** @param {MouseEvent} event */
    placeOf(event) {
      const box = this.timeline.stage.getBoundingClientRect();
      return this.timeline.at(event.clientX - box.left, event.clientY - box.top);
    }

    /** @param {WheelEvent} event */
    wheel(event) {
      const { timeline } = this;
      if (!timeline.tracks.length) return;
      const place = this.placeOf(event);
      if (event.ctrlKey || event.metaKey || timeline.toolbar.wheelZooms()) {
        event.preventDefault();
        timeline.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.0035), place.time);
        return;
      }
      const side = event.shiftKey ? event.deltaY : event.deltaX;
      if (Math.abs(side) > Math.abs(event.shiftKey ? event.deltaX : event.deltaY)) {
        event.preventDefault();
        timeline.pan(side / timeline.plot);
        return;
      }
      // At the end of the ranks the wheel is the page's again.
      if (timeline.scrollBy(event.deltaY)) {
        event.preventDefault();
        timeline.hideTip();
      }
    }

    /** @param {PointerEvent} event */
    down(event) {
      const { timeline } = this;
      if (event.button !== 0 || !timeline.tracks.length) return;
      const place = this.placeOf(event);
      timeline.stage.focus({ preventScroll: true });
      this.drag = { kind: this.kindOf(event, place), place, view: Object.assign({}, timeline.view), moved: false };
      timeline.stage.setPointerCapture(event.pointerId);
      if (this.drag.kind === "minimap") this.dragMinimap(place);
      if (this.drag.kind === "step") this.showStep(place);
    }

    /** @param {Place} place */
    showStep(place) {
      const found = this.timeline.minimap.at(place.x);
      if (found) this.timeline.toolbar.showStep(found.bar, found.source.offset);
    }

    /**
     * @param {PointerEvent} event
     * @param {Place} place
     */
    kindOf(event, place) {
      if (place.zone === "minimap") return place.y < LINE ? "step" : "minimap";
      if (place.zone === "gutter" || place.zone === "corner") return "none";
      return event.shiftKey !== this.timeline.toolbar.wheelZooms() ? "pan" : "area";
    }

    /** @param {Place} place */
    dragMinimap(place) {
      const { timeline } = this;
      const half = (timeline.view.t1 - timeline.view.t0) / 2;
      const centre = timeline.minimap.time(place.x);
      timeline.setView(centre - half, centre + half);
    }

    /** @param {PointerEvent} event */
    move(event) {
      const { timeline, drag } = this;
      if (!timeline.tracks.length) return;
      const place = this.placeOf(event);
      this.place = place;
      if (!drag) {
        this.hover(place);
        return;
      }
      if (drag.kind === "minimap") this.dragMinimap(place);
      if (drag.kind !== "pan" && drag.kind !== "area") return;
      if (Math.abs(place.x - drag.place.x) > MOVED) drag.moved = true;
      if (!drag.moved) return;
      if (drag.kind === "pan") {
        const per = (drag.view.t1 - drag.view.t0) / timeline.plot;
        const by = (drag.place.x - place.x) * per;
        timeline.setView(drag.view.t0 + by, drag.view.t1 + by);
      } else {
        const x = Math.max(GUTTER, place.x);
        const [a, b] = [drag.place.time, timeline.time(x)].sort((p, q) => p - q);
        timeline.area = { t0: Math.round(a), t1: Math.round(b) };
        timeline.hideTip();
        timeline.redrawOver();
      }
    }

    /** @param {PointerEvent} event */
    up(event) {
      const { timeline, drag } = this;
      this.drag = null;
      if (!drag) return;
      const place = this.placeOf(event);
      if (drag.kind === "none") this.clickGutter(place);
      else if (drag.kind === "area" && drag.moved) timeline.panel.showArea();
      else if (!drag.moved && drag.kind !== "minimap" && drag.kind !== "step") this.click(place);
    }

    leave() {
      const { timeline } = this;
      this.place = null;
      timeline.hover = null;
      timeline.hideTip();
      timeline.redrawOver();
    }

    /** @param {Place} place */
    clickGutter(place) {
      const { timeline } = this;
      const { track } = place;
      if (!track) return;
      const inside = place.y - timeline.screenY(track.y);
      const lane = place.box && place.x > LANES && !track.small && timeline.opened.canOpen(place.box.row);
      if (lane && place.box) {
        timeline.focus = track;
        timeline.opened.toggle(track, place.box.row);
        return;
      }
      const onStar = !track.small && inside > STAR.top && inside < STAR.bottom && place.x < STAR.left;
      if (onStar || timeline.condensed) track.pinned = !track.pinned;
      else track.collapsed = !track.collapsed;
      timeline.focus = track;
      timeline.tracksChanged();
    }

    /** @param {Place} place */
    async click(place) {
      const { timeline } = this;
      const { track, box } = place;
      if (!track || !box) {
        timeline.selection.clear();
        return;
      }
      if (box.lane) {
        timeline.events.click(place);
        return;
      }
      try {
        const { marks: slices, count } = await this.under(place, track, box);
        if (!slices.length) {
          if (count) timeline.say(`${count} spans here: zoom in to select one`);
          else timeline.selection.clear();
          return;
        }
        const at = place.time - track.offset;
        timeline.selection.select(track, slices.find((s) => s.start <= at && at < s.end) || slices[0]);
      } catch (error) {
        timeline.sayError(error);
      }
    }

    // -- hovering: what is known at once, then what the source says

    /** @param {Place} place */
    hover(place) {
      const { timeline } = this;
      const wide = this.wideAt(place);
      const unit = wide ? wide.unit : -1;
      timeline.hover = Object.assign({}, place, { unit });
      if (place.track && place.track !== timeline.focus && !timeline.selected) {
        timeline.focus = place.track;
        timeline.redraw();
      }
      timeline.redrawOver();
      clearTimeout(this.hoverTimer);
      if (this.asking) this.asking.abort();
      if (place.zone === "minimap" && place.x >= GUTTER) {
        const lines = timeline.minimap.tip(place.x);
        if (lines.length) timeline.panel.showTip(place, lines);
        else timeline.hideTip();
        return;
      }
      if (place.box && place.box.lane && place.zone === "plot") {
        timeline.events.hover(place);
        return;
      }
      const useful = (place.zone === "plot" && place.box) || place.zone === "memory";
      if (!useful || place.x < GUTTER) {
        timeline.hideTip();
        return;
      }
      this.hoverTimer = setTimeout(() => this.ask(place), PATIENCE_MS);
    }

    /** @param {Place} place */
    wideAt(place) {
      if (!place.box) return null;
      const x = place.x - GUTTER;
      const { timeline } = this;
      return [...timeline.wide, ...timeline.bands].find((slice) =>
        slice.track === place.track && slice.box === place.box && x >= slice.from && x <= slice.to) || null;
    }

    /**
     * The row's content under one pixel, exactly.
     * @param {Place} place
     * @param {Track} track
     * @param {Box} box
     * @param {AbortSignal} [signal]
     * @returns {Promise<Found>}
     */
    async under(place, track, box, signal) {
      const { timeline } = this;
      const half = (timeline.view.t1 - timeline.view.t0) / timeline.plot / 2;
      const t0 = Math.floor(place.time - half - track.offset);
      const t1 = Math.max(t0 + 1, Math.ceil(place.time + half - track.offset));
      const found = await track.source.under(track.rank, box.row, t0, t1, signal);
      return Object.assign(found, { t0, t1 });
    }

    /** @param {Place} place */
    async ask(place) {
      const { timeline } = this;
      this.asking = new AbortController();
      try {
        if (place.zone === "memory") await this.askMemory(place);
        else if (place.track && place.box) {
          const found = await this.under(place, place.track, place.box, this.asking.signal);
          if (this.place !== place) return;
          if (found.count === 0) timeline.hideTip();
          else timeline.panel.tip(place, place.track, place.box, found);
        }
      } catch (error) {
        timeline.sayError(error);
      }
    }

    /** @param {Place} place */
    async askMemory(place) {
      const { timeline } = this;
      const track = timeline.focus;
      if (!track) return;
      const time = Math.round(place.time - track.offset);
      const size = Math.pow(2, track.level);
      const found = timeline.curves.best(track, track.level, Math.floor(time / size));
      const live = await track.source.live(track.rank, time);
      if (this.place !== place) return;
      timeline.panel.memoryTip(place, track, found, live);
    }
  }

  root.FsdpMouse = FsdpMouse;
  if (typeof module !== "undefined") module.exports = { FsdpMouse };
})(window);
