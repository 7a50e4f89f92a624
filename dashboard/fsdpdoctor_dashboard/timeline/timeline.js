// The timeline: its state, its view, and when what is painted. The painting itself is in
// rows.js, rulers.js, memory.js and overlay.js; what a person does comes in through
// mouse.js, keys.js and toolbar.js; what stands below the picture is in details_panel.js.
//
//   const timeline = new FsdpTimeline(element, { sources: [source], theme: "light" });
//
// Two canvases: the lower holds the picture and is painted when the view or the data
// change, the upper one holds cursor, selection and arrows.
(function (root) {
  "use strict";
  if (root.FsdpTimeline) return;
  const { Row } = root.fsdpTiles;
  const { firstView } = root.fsdpFirstView;
  const { TileLoader, CurveLoader } = root.fsdpLoader;
  const { tracksOf, placeTracks, wantedTiles } = root.fsdpTracks;
  const { GUTTER, MINIMAP, AXIS, STEPS, BATCHES, MEMORY } = root.fsdpLayout;
  const CONDENSED_FROM = root.fsdpSettings.condensedFrom; // tracks
  const NARROWEST_NS = 200;
  const MOMENT_ROOM = 0.1; // of a step
  const GLIDE_MS = 140;
  const LATER_MS = 400; // when the first picture is there

  class FsdpTimeline extends root.FsdpSurface {
    /**
     * @param {HTMLElement} element
     * @param {TimelineOptions} options
     */
    constructor(element, options) {
      super(element);
      /** @type {TimelineOptions} */
      this.options = Object.assign({}, options);
      this.gone = false;
      this.ending = new AbortController(); // of what listens to the page

      /** @type {DataSource[]} */
      this.sources = [];
      /** @type {Track[]} */
      this.tracks = [];
      /** @type {Track[]} as they stand on the screen */
      this.order = [];
      this.start = 0;
      this.end = 1;
      /** @type {(View & { words: string }) | null} the first view, while it is shown */
      this.opening = null;
      this.hasBatches = this.hasMemory = false;

      /** @type {View} */
      this.view = { t0: 0, t1: 1 };
      this.scroll = 0;
      this.condensed = false;
      /** @type {Track | null} whose memory is shown */
      this.focus = null;
      /** @type {Hover | null} */
      this.hover = null;
      /** @type {Selected | null} */
      this.selected = null;
      /** @type {{ source: DataSource, units: Set<number> } | null} */
      this.searched = null;
      /** @type {{ source: DataSource, stretches: Lit[] } | null} what a finding is about */
      this.lit = null;
      /** @type {View | null} */
      this.area = null;

      this.top = this.bottom = 0; // of the tracks
      this.content = 0; // height of all of them

      /** @type {WideSlice[]} with room for a label, of the last picture */
      this.wide = [];
      /** @type {WideSlice[]} exposed stretches that may be hatched */
      this.bands = [];
      this.frame = this.frameMs = 0;
      this.dirty = this.memoryDirty = false;
      this.painted = this.sharp = false; // sharp: no tile of the picture is a coarser one

      this.loader = new TileLoader(() => this.redraw(), (error) => this.sayError(error));
      this.curves = new CurveLoader(() => this.redrawMemory(), (error) => this.sayError(error));
      this.opened = new root.FsdpOpenedLanes(this);
      this.openedRows = new root.FsdpOpenedRows(this);
      this.events = new root.FsdpTraceEvents(this);
      this.rows = new root.FsdpRows(this);
      this.unknown = new root.FsdpUnknown(this);
      this.rulers = new root.FsdpRulers(this);
      this.minimap = new root.FsdpMinimap(this);
      this.memory = new root.FsdpMemory(this);
      this.overlay = new root.FsdpOverlay(this);
      this.bookmarks = new root.FsdpBookmarks(this);
      this.selection = new root.FsdpSelection(this);
      this.address = new root.FsdpAddress(this);
      this.toolbar = new root.FsdpToolbar(this);
      this.mouse = new root.FsdpMouse(this);
      this.keys = new root.FsdpKeys(this);
      this.panel = new root.FsdpDetailsPanel(this);
      this.follower = new root.FsdpFollower(this);

      this.resizer = new ResizeObserver(() => this.resize());
      this.resizer.observe(this.stage);
      this.resize();
      this.setTheme(options.theme || "light");
      const { sources } = options;
      if (sources.every((source) => source.meta)) {
        this.begin(sources);
        this.ready = Promise.resolve();
      } else this.ready = this.load(sources);
    }

    destroy() {
      this.resizer.disconnect();
      this.ending.abort();
      this.mouse.destroy();
      this.address.destroy();
      this.follower.stop();
      this.loader.forget();
      cancelAnimationFrame(this.frame);
      this.gone = true;
      this.element.textContent = "";
    }

    // -- what is shown

    /** @param {DataSource[]} sources */
    async load(sources) {
      try {
        /** @param {string} text */
        const say = (text) => this.say(text);
        await Promise.all(sources.map((source) => source.meta || source.load(say)));
      } catch (error) {
        this.sayError(error);
        return;
      }
      if (!this.gone) this.begin(sources);
    }

    /** @param {DataSource[]} sources */
    begin(sources) {
      const { start, first } = this.options;
      if (first) this.loader.keepAll(sources[0], first);
      this.setSources(sources);
      const own = start ? null : firstView(sources);
      if (own) this.setView(own.t0, own.t1);
      if (start) this.setView(start.t0 - (start.t1 - start.t0) * 0.02, start.t1 + (start.t1 - start.t0) * 0.02);
      this.address.restore();
      this.opening = own && this.view.t0 === own.t0 ? own : null;
      this.say(this.opening ? this.opening.words : "");
      // At once, not with the next frame: a page that is still loading has none to give.
      this.paint();
      this.redraw();
      if (sources.some((source) => source.meta.live)) this.follower.start();
      setTimeout(() => this.loader.overviews(this.order.filter((track) => this.onScreen(track))), LATER_MS);
    }

    /** @param {DataSource[]} sources */
    setSources(sources) {
      this.sources = sources;
      this.tracks = tracksOf(sources, this.tracks);
      this.end = Math.max(...sources.map((s) => s.meta.end + s.offset), 1);
      this.start = Math.min(...sources.map((s) => s.offset), 0);
      this.focus = this.tracks[0] || null;
      this.hasBatches = sources.some((s) => s.meta.ranks.some((r) => r.rows.includes(Row.MICRO_BATCH)));
      this.hasMemory = sources.some((s) => s.meta.memory);
      if (this.tracks.length >= CONDENSED_FROM) this.condensed = true;
      this.fit();
      this.panel.legend();
      this.placeTracks();
    }

    /**
     * @param {number} rank
     * @param {string} [sourceId]
     */
    track(rank, sourceId) {
      return this.tracks.find((t) => t.rank === rank && (!sourceId || t.source.id === sourceId)) || null;
    }

    /** @param {Theme} theme */
    setTheme(theme) {
      this.dress(theme);
      this.panel.legend();
      this.redraw();
    }

    // -- geometry

    resize() {
      this.measure();
      if (this.tracks.length) this.placeTracks();
      this.redraw();
    }

    placeTracks() {
      this.top = MINIMAP + AXIS + STEPS + (this.hasBatches ? BATCHES : 0);
      this.bottom = this.height - (this.hasMemory ? MEMORY : 0);
      const room = this.bottom - this.top;
      const { order, content } = placeTracks(this.tracks, this.condensed, room);
      this.order = order;
      this.content = content;
      this.scroll = Math.min(this.scroll, Math.max(0, content - room));
    }

    // Some are pinned, collapsed or condensed, or no longer.
    tracksChanged() {
      this.placeTracks();
      this.redraw();
      this.address.viewChanged();
    }

    /** @param {number} time */
    x(time) {
      return GUTTER + ((time - this.view.t0) / (this.view.t1 - this.view.t0)) * this.plot;
    }

    /** @param {number} x */
    time(x) {
      return this.view.t0 + ((x - GUTTER) / this.plot) * (this.view.t1 - this.view.t0);
    }

    /** @param {number} y */
    screenY(y) {
      return this.top + y - this.scroll;
    }

    /** @param {Track} track */
    onScreen(track) {
      const y = this.screenY(track.y);
      return y + track.height > this.top && y < this.bottom;
    }

    /**
     * What lies under a point.
     * @param {number} x
     * @param {number} y
     * @returns {Place}
     */
    at(x, y) {
      const time = this.time(x);
      const other = { x, y, time, track: null, box: null };
      if (y < MINIMAP) return { ...other, zone: "minimap" };
      if (y < this.top) return { ...other, zone: x < GUTTER ? "corner" : "rulers" };
      if (y >= this.bottom) return { ...other, zone: "memory" };
      const inside = y - this.top + this.scroll;
      const track = this.order.find((t) => inside >= t.y && inside < t.y + t.height) || null;
      const box = track && (track.boxes.find((b) => inside >= b.y - 1 && inside < b.y + b.height + 1) || null);
      return { x, y, time, track, box, zone: x < GUTTER ? "gutter" : "plot" };
    }

    // -- the view

    /**
     * @param {number} t0
     * @param {number} t1
     */
    setView(t0, t1) {
      const whole = this.end - this.start;
      const width = Math.min(whole * 1.1, Math.max(NARROWEST_NS, t1 - t0));
      const margin = width * 0.5;
      const first = Math.min(Math.max(t0, this.start - margin), this.end + margin - width);
      this.view = { t0: first, t1: first + width };
      this.hideTip();
      // Asked for now, not with the frame: by then half the answer can be here.
      this.loader.want(this.wanted());
      this.redraw();
      this.address.viewChanged();
    }

    fit() {
      const margin = (this.end - this.start) * 0.005;
      this.view = { t0: this.start - margin, t1: this.end + margin };
      this.address.viewChanged();
      this.redraw();
    }

    /**
     * @param {number} factor
     * @param {number} [at] the moment that stays where it is
     */
    zoom(factor, at) {
      const { t0, t1 } = this.view;
      const centre = at === undefined ? (t0 + t1) / 2 : Math.min(t1, Math.max(t0, at));
      this.setView(centre - (centre - t0) * factor, centre + (t1 - centre) * factor);
    }

    /** @param {number} share of what is shown */
    pan(share) {
      const { t0, t1 } = this.view;
      const by = (t1 - t0) * share;
      this.setView(t0 + by, t1 + by);
    }

    /**
     * Whether there was anything left to scroll to.
     * @param {number} by
     */
    scrollBy(by) {
      const most = Math.max(0, this.content - (this.bottom - this.top));
      const next = Math.min(most, Math.max(0, this.scroll + by));
      if (next === this.scroll) return false;
      this.scroll = next;
      this.redraw();
      return true;
    }

    /**
     * Glide to a stretch, with a little room on both sides.
     * @param {number} t0
     * @param {number} t1
     * @param {Track | null} [track]
     */
    jump(t0, t1, track) {
      // A moment has no length of its own to be seen in: a part of a step is around it.
      const least = t1 > t0 ? 2000 : Math.max(2000, this.sources[0].meta.steps.usual * MOMENT_ROOM);
      const room = Math.max(t1 - t0, least) * 1.2;
      const target = { t0: t0 - room, t1: t1 + room };
      if (track) this.reveal(track);
      const from = Object.assign({}, this.view);
      const began = performance.now();
      /** @param {number} now */
      const glide = (now) => {
        if (this.gone) return;
        const share = Math.min(1, (now - began) / GLIDE_MS);
        const eased = 1 - Math.pow(1 - share, 3);
        this.setView(from.t0 + (target.t0 - from.t0) * eased, from.t1 + (target.t1 - from.t1) * eased);
        if (share < 1) requestAnimationFrame(glide);
      };
      requestAnimationFrame(glide);
    }

    /** @param {Track} track */
    reveal(track) {
      if (track.small && !track.pinned) {
        if (this.condensed) track.pinned = true;
        track.collapsed = false;
        this.placeTracks();
      }
      this.focus = track;
      const room = this.bottom - this.top;
      if (track.y < this.scroll) this.scroll = track.y;
      else if (track.y + track.height > this.scroll + room) {
        this.scroll = Math.min(track.y, track.y + track.height - room);
      }
      this.redraw();
    }

    // -- painting

    redraw() {
      this.dirty = true;
      this.redrawOver();
    }

    redrawMemory() {
      this.memoryDirty = true;
      this.redrawOver();
    }

    redrawOver() {
      if (this.frame) return;
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        if (this.gone || !this.tracks.length) return;
        if (this.dirty) this.paint();
        else if (this.memoryDirty && this.hasMemory) this.memory.paint();
        this.dirty = this.memoryDirty = false;
        this.overlay.paint();
      });
    }

    wanted() {
      const visible = this.order.filter((track) => this.onScreen(track));
      return this.order.length ? wantedTiles(this.view, visible, this.order[0]) : [];
    }

    paint() {
      const began = performance.now();
      const wants = this.wanted();
      this.sharp = this.loader.want(wants) === 0;
      this.opened.want();
      const pen = this.pen;
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      pen.fillStyle = this.ink.background;
      pen.fillRect(0, 0, this.width, this.height);
      this.wide = [];
      this.bands = [];
      const ticks = this.rulers.ticks(), gaps = this.rulers.unrecorded();
      this.rows.paint(ticks, gaps);
      this.rulers.paint(ticks, gaps);
      this.minimap.paint();
      if (this.hasMemory) this.memory.paint();
      this.rows.scrollbar();
      this.unknown.nothing();
      this.toolbar.sayStep(); // with this frame: one of its own costs as much again
      this.frameMs = performance.now() - began;
      if (!this.painted && wants.some((w) => this.loader.best(w.source, w.rank, w.condensed, w.level, w.index))) {
        performance.mark("fsdp-timeline-painted");
        this.painted = true;
      }
    }
  }

  root.FsdpTimeline = FsdpTimeline;
  if (typeof module !== "undefined") module.exports = { FsdpTimeline };
})(window);
