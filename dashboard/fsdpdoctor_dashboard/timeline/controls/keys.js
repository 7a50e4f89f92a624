// What the keys do. Perfetto's habits where it has one: W S A D, F, comma and full stop,
// slash.
(function (root) {
  "use strict";
  if (root.FsdpKeys) return;
  const { GUTTER } = root.fsdpLayout;

  const KEYS = [
    ["W  S", "zoom in and out, at the mouse"], ["A  D", "move left and right"],
    ["+  -  0", "zoom in, out, show all"], ["Left  Right", "move a little"],
    ["Up  Down", "scroll ranks"], ["Ctrl + wheel", "zoom at the mouse"],
    ["Wheel", "scroll ranks"], ["Shift + drag", "move"],
    ["Drag", "select an area: statistics"], ["Click", "details of a span"],
    ["Double click", "fit a span"],
    ["N  P", "next, previous exposed stretch"], [".  ,", "next, previous span of the row"],
    ["Shift + Up, Down", "the row above or below, on to the next rank"],
    ["F", "fit the selection; again: show all"], ["R", "turn the selection into an area"],
    ["M", "mark the area, the span or the moment; again: unmark"],
    ["Shift + M", "remove all marks"], ["[  ]", "previous, next mark"],
    ["/  Ctrl + P", "search; Enter and Shift + Enter go on"],
    ["O", "open or close the lane under the mouse, or of the selected span: its operators and kernels"],
    ["L", "from a kernel to its launch, from a launch to its kernel"],
    ["C", "all ranks condensed, or in full"],
    ["K", "pin the rank under the mouse to the top"], ["E", "collapse or open it"],
    ["Q", "show or hide the details"], ["Esc", "clear, or close this list"], ["?", "this list"],
  ];
  /** @type {Record<string, [number, number]>} */
  const HELD = { w: [0.965, 0], s: [1.036, 0], a: [1, -0.02], d: [1, 0.02] };

  class FsdpKeys {
    static LIST = KEYS; // what `?` shows; a test holds it against `acts`

    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      /** @type {Set<string>} */
      this.held = new Set();
      const { signal } = timeline.ending;
      document.addEventListener("keydown", (e) => this.down(e), { signal });
      document.addEventListener("keyup", (e) => this.held.delete(e.key.toLowerCase()), { signal });
      root.addEventListener("blur", () => this.held.clear(), { signal });
    }

    /** @param {KeyboardEvent} event */
    down(event) {
      const { timeline } = this;
      const { target } = event;
      if (target instanceof HTMLElement
          && (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable)) return;
      if (!timeline.element.isConnected || !timeline.tracks.length) return;
      const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
      if ((event.ctrlKey || event.metaKey) && key === "p") {
        event.preventDefault();
        timeline.toolbar.search.focus();
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (HELD[key]) {
        event.preventDefault();
        this.hold(key);
        return;
      }
      const acts = this.acts();
      const act = (event.shiftKey && acts[`Shift+${key}`]) || acts[key];
      if (!act) return;
      event.preventDefault();
      act();
    }

    /** @returns {Record<string, () => unknown>} */
    acts() {
      const { timeline } = this;
      const { bookmarks, panel, selection, toolbar } = timeline;
      const { place } = timeline.mouse;
      const centre = place && place.x > GUTTER ? place.time : undefined;
      const track = (place && place.track) || timeline.focus;
      /** @param {"pinned" | "collapsed"} name */
      const change = (name) => {
        if (!track) return;
        track[name] = !track[name];
        timeline.tracksChanged();
      };
      return {
        "+": () => timeline.zoom(0.7, centre), "=": () => timeline.zoom(0.7, centre),
        "-": () => timeline.zoom(1.4, centre), 0: () => timeline.fit(),
        ArrowLeft: () => timeline.pan(-0.1), ArrowRight: () => timeline.pan(0.1),
        ArrowUp: () => timeline.scrollBy(-60), ArrowDown: () => timeline.scrollBy(60),
        f: () => selection.fitOrAll(), r: () => selection.toArea(),
        n: () => selection.nextExposed(true), p: () => selection.nextExposed(false),
        ".": () => selection.neighbour(true), ",": () => selection.neighbour(false),
        o: () => this.openLane(), l: () => timeline.events.launch(),
        "/": () => toolbar.search.focus(), c: () => toolbar.toggleCondensed(),
        "Shift+ArrowUp": () => selection.otherRow(-1), "Shift+ArrowDown": () => selection.otherRow(1),
        m: () => bookmarks.toggle(), "Shift+m": () => bookmarks.clear(),
        "[": () => bookmarks.go(false), "]": () => bookmarks.go(true),
        k: () => change("pinned"), e: () => change("collapsed"),
        q: () => panel.toggle(), "?": () => toolbar.help(),
        Escape: () => (toolbar.dialog ? toolbar.help() : selection.clear()),
      };
    }

    // The lane under the mouse; else that of what is selected, or the first.
    openLane() {
      const { timeline } = this;
      const { place } = timeline.mouse;
      const { opened, selection } = timeline;
      if (place && place.track && place.box) {
        const row = place.box.lane ? place.box.lane.row : place.box.row;
        if (opened.canOpen(row)) opened.toggle(place.track, row);
        else timeline.say("this row has nothing under it: compute, collectives, copies and host have");
        return;
      }
      const here = selection.standing();
      if (!here) return;
      const row = opened.canOpen(here.row) ? here.row : root.fsdpTiles.Row.COMPUTE;
      opened.toggle(here.track, row);
    }

    /**
     * A held key moves every frame, by time and not by how often the keyboard repeats.
     * @param {string} key
     */
    hold(key) {
      const { timeline } = this;
      const idle = this.held.size === 0;
      this.held.add(key);
      if (!idle) return;
      let before = performance.now();
      const { place } = timeline.mouse;
      const centre = place && place.x > GUTTER ? place.x : undefined;
      /** @param {number} now */
      const frame = (now) => {
        if (!this.held.size || timeline.gone) return;
        const ticks = Math.min(4, Math.max(0.5, (now - before) / 16.7));
        before = now;
        for (const held of this.held) {
          const moves = HELD[held];
          if (!moves) continue;
          const [factor, share] = moves;
          if (factor !== 1) {
            timeline.zoom(Math.pow(factor, ticks), centre === undefined ? undefined : timeline.time(centre));
          }
          if (share) timeline.pan(share * ticks);
        }
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    }
  }

  root.FsdpKeys = FsdpKeys;
  if (typeof module !== "undefined") module.exports = { FsdpKeys };
})(window);
