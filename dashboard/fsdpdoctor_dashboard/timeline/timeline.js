// The timeline: its state, its layout, and when what is painted. The painting itself is
// in rows.js, rulers.js, memory.js and overlay.js; what the mouse and the keys do is in
// controls.js, what stands below the picture in details_panel.js.
//
//   const timeline = new FsdpTimeline(element, { sources: [source], theme: "light" });
//
// Two canvases: the lower holds the picture and is painted when the view or the data
// change, the upper one holds cursor, selection and arrows.
(function (root) {
  "use strict";
  if (root.FsdpTimeline) return;
  const { Row } = root.fsdpTiles;
  const format = root.fsdpFormat;
  const { RowRaster, hatching, dots } = root.fsdpRaster;
  const { TileLoader, CurveLoader } = root.fsdpLoader;

  const { GUTTER, MINIMAP, AXIS, STEPS, BATCHES, MEMORY, FONT, HEIGHT, LABEL } = root.fsdpLayout;
  const GAP = 3;
  const FOLLOW_MS = 2000;
  const COLLAPSED = 18;
  const LOWEST = 56; // of a rank in full: room for what stands beside it
  const TALLEST = 34; // of a condensed line, where there is room

  class FsdpTimeline {
    constructor(element, options) {
      this.element = element;
      this.options = Object.assign({ theme: "light", urlState: false }, options);
      this.tracks = [];
      this.view = { t0: 0, t1: 1 };
      this.scroll = 0;
      this.condensed = false;
      this.focus = null; // the track whose memory is shown
      this.hover = null; // {track, row, time}
      this.selected = null; // {track, slice, details}
      this.area = null; // {t0, t1}
      this.wide = []; // slices with room for a label, of the last picture
      this.bands = []; // exposed stretches wide enough to be hatched
      this.loader = new TileLoader(() => this.redraw(), (e) => this.say(e.message));
      this.curves = new CurveLoader(() => this.redrawMemory(), (e) => this.say(e.message));
      this.rows = new root.FsdpRows(this);
      this.rulers = new root.FsdpRulers(this);
      this.memory = new root.FsdpMemory(this);
      this.overlay = new root.FsdpOverlay(this);
      this.build();
      this.setTheme(this.options.theme);
      this.bookmarks = new root.FsdpBookmarks(this);
      this.controls = new root.FsdpControls(this);
      this.panel = new root.FsdpDetailsPanel(this);
      const { sources } = this.options;
      if (sources.every((source) => source.meta)) {
        this.begin(sources);
        this.ready = Promise.resolve();
      } else this.ready = this.load(sources);
    }

    // -- building

    build() {
      this.element.classList.add("fd-timeline");
      this.element.textContent = "";
      const make = (tag, name, parent) => {
        const node = document.createElement(tag);
        node.className = name;
        parent.appendChild(node);
        return node;
      };
      this.make = make;
      this.bar = make("div", "fd-bar", this.element);
      this.stage = make("div", "fd-stage", this.element);
      this.stage.tabIndex = 0;
      this.stage.setAttribute("role", "application");
      this.stage.setAttribute("aria-label",
        "Timeline. W and S zoom, A and D pan, N goes to the next exposed stretch, ? lists all keys.");
      this.lower = make("canvas", "fd-canvas", this.stage);
      this.upper = make("canvas", "fd-canvas", this.stage);
      this.pen = this.lower.getContext("2d", { alpha: false });
      this.over = this.upper.getContext("2d");
      this.tip = make("div", "fd-tip", this.stage);
      this.tip.hidden = true;
      this.status = make("div", "fd-status", this.element);
      this.status.setAttribute("role", "status");
      this.status.setAttribute("aria-live", "polite");
      this.resizer = new ResizeObserver(() => this.resize());
      this.resizer.observe(this.stage);
      this.resize();
    }

    destroy() {
      this.resizer.disconnect();
      this.controls.destroy();
      this.loader.forget();
      cancelAnimationFrame(this.frame);
      clearTimeout(this.followTimer);
      this.gone = true;
      this.element.textContent = "";
    }

    async load(sources) {
      try {
        const say = (text) => this.say(text);
        await Promise.all(sources.map((source) => source.meta || source.load(say)));
      } catch (error) {
        this.say(error.message);
        return;
      }
      if (!this.gone) this.begin(sources);
    }

    begin(sources) {
      const { start, first } = this.options;
      if (first) this.loader.keep(sources[0], first);
      this.setSources(sources);
      const own = start ? null : this.afterTheStart();
      if (own) this.setView(own.t0, own.t1);
      if (start) this.setView(start.t0 - (start.t1 - start.t0) * 0.02, start.t1 + (start.t1 - start.t0) * 0.02);
      this.controls.restore();
      this.say(own && this.view.t0 === own.t0 ? "the slow start of the run is left of this: 0 shows all" : "");
      // At once, not with the next frame: a page that is still loading has none to give.
      this.paint();
      this.redraw();
      if (sources.some((source) => source.meta.live)) this.follow();
    }

    // Where a run's first steps would fill the picture: the rest of it. See first_view.py.
    afterTheStart() {
      const views = this.sources.map(({ meta, offset }) => meta.start
        && { t0: meta.start.t0 + (offset || 0), t1: meta.start.t1 + (offset || 0) });
      if (!views.every(Boolean)) return null;
      return { t0: Math.min(...views.map((v) => v.t0)), t1: Math.max(...views.map((v) => v.t1)) };
    }

    // Ask a run that is being written, every now and then, whether there is more.
    follow() {
      this.followTimer = setTimeout(async () => {
        if (this.gone) return;
        let live = true;
        for (const source of this.sources) {
          if (!source.revision) continue;
          try {
            const found = await source.revision();
            live = found.loading || found.live;
            if (found.revision > source.meta.revision) await this.refresh();
          } catch (error) {
            // fetch() itself fails with a TypeError: nobody answers there.
            this.say(error instanceof TypeError
              ? "nobody answers: the dashboard has ended; `fsdpdoctor view` shows the run again"
              : error.message);
          }
        }
        if (live && !this.gone) this.follow();
      }, FOLLOW_MS);
    }

    // Each source may be shifted, so that two runs or a run and its simulation start
    // together: a track shows the source's time t at t + offset.
    setSources(sources) {
      this.sources = sources;
      const many = sources.length > 1;
      const kept = new Map(this.tracks.map((track) => [track.key, track]));
      this.tracks = [];
      for (const source of sources) {
        const meta = source.meta;
        for (const rank of meta.ranks) {
          if (source.only && !source.only.includes(rank.rank)) continue;
          const key = `${source.id}|${rank.rank}`;
          const old = kept.get(key);
          this.tracks.push({
            key, source, rank: rank.rank, info: rank, offset: source.offset || 0,
            label: this.labelOf(source, rank.rank),
            rows: rank.rows.filter((row) => HEIGHT[row] !== undefined),
            collapsed: old ? old.collapsed : false, pinned: old ? old.pinned : false,
          });
        }
      }
      // Of two runs, the same ranks stand under each other; ranks that were named stay
      // in the order in which they were.
      if (many && !sources.some((s) => s.only)) this.tracks.sort((a, b) => a.rank - b.rank);
      this.end = Math.max(...sources.map((s) => s.meta.end + (s.offset || 0)), 1);
      this.start = Math.min(...sources.map((s) => s.offset || 0), 0);
      this.focus = this.tracks[0] || null;
      this.hasBatches = sources.some((s) => s.meta.ranks.some((r) => r.rows.includes(Row.MICRO_BATCH)));
      this.hasMemory = sources.some((s) => s.meta.memory);
      if (this.tracks.length > 12) this.condensed = true;
      this.fit();
      this.panel.legend();
      this.layout();
    }

    // A simulated run has one rank, whose number says nothing.
    labelOf(source, rank) {
      const { meta } = source;
      if (this.sources.length === 1) return `rank ${rank}`;
      return meta.label === meta.id ? `${meta.label} rank ${rank}` : meta.label;
    }

    // A run that grows: the same ranks, more time. The view follows its end where it
    // stood at the end before.
    async refresh() {
      const before = this.end;
      const followed = this.view.t1 >= before - (this.view.t1 - this.view.t0) * 0.02;
      const view = Object.assign({}, this.view);
      await Promise.all(this.sources.map((source) => source.load()));
      if (this.gone) return;
      this.loader.forget();
      this.curves.forget();
      this.setSources(this.sources);
      const whole = view.t0 <= this.start && view.t1 >= before;
      if (whole) this.fit();
      else if (followed) this.setView(view.t0 + this.end - before, view.t1 + this.end - before);
      else this.setView(view.t0, view.t1);
    }

    setTheme(theme) {
      this.theme = theme;
      this.element.dataset.theme = theme;
      this.ink = root.fsdpFormat.THEMES[theme];
      this.colour = format.colours(theme);
      this.rgb = Object.fromEntries(
        Object.entries(this.colour).map(([key, hex]) => [key, format.rgb(hex)]));
      this.hatch = hatching(this.pen, this.ink.exposed, this.ink.exposed + "2e", 9);
      this.dots = dots(this.pen, this.ink.faint, 5);
      if (this.panel && this.sources) this.panel.legend();
      this.redraw();
    }

    // -- geometry

    resize() {
      const box = this.stage.getBoundingClientRect();
      this.ratio = root.devicePixelRatio || 1;
      this.width = Math.max(GUTTER + 50, box.width);
      this.height = Math.max(120, box.height);
      for (const canvas of [this.lower, this.upper]) {
        canvas.width = Math.round(this.width * this.ratio);
        canvas.height = Math.round(this.height * this.ratio);
        canvas.style.width = `${this.width}px`;
        canvas.style.height = `${this.height}px`;
      }
      this.plot = this.width - GUTTER - 6;
      this.pixels = Math.max(1, Math.round(this.plot * this.ratio));
      this.raster = new RowRaster(this.pixels);
      if (this.tracks.length) this.layout();
      this.redraw();
    }

    layout() {
      this.top = MINIMAP + AXIS + STEPS + (this.hasBatches ? BATCHES : 0);
      this.bottom = this.height - (this.hasMemory ? MEMORY : 0);
      const order = [...this.tracks].sort((a, b) => b.pinned - a.pinned);
      const room = this.bottom - this.top;
      const line = Math.max(7, Math.min(TALLEST, Math.floor(room / Math.max(1, order.length)) - 1));
      let y = 0;
      for (const track of order) {
        track.small = (this.condensed && !track.pinned) || track.collapsed;
        track.y = y;
        track.boxes = [];
        if (track.small) {
          const height = this.condensed ? line : COLLAPSED;
          const ribbon = Math.max(2, Math.round(height * 0.4));
          track.boxes.push({ row: Row.EXPOSED, y, height: ribbon });
          track.boxes.push({ row: Row.COMPUTE, y: y + ribbon, height: height - ribbon - 1 });
          y += height + 1;
        } else {
          y += 4;
          let labelled = false;
          for (const row of [Row.EXPOSED, ...track.rows.filter((r) => r !== Row.EXPOSED)]) {
            const window = row >= Row.UNSHARDED_ROOT;
            track.boxes.push({ row, y, height: HEIGHT[row], label: LABEL[row] || (window && !labelled ? "unsharded" : "") });
            labelled = labelled || window;
            y += HEIGHT[row] + (window ? 1 : GAP);
          }
          y = Math.max(y + 5, track.y + LOWEST);
        }
        track.height = y - track.y;
      }
      this.order = order;
      this.content = y;
      this.scroll = Math.min(this.scroll, Math.max(0, y - room));
    }

    x(time) {
      return GUTTER + ((time - this.view.t0) / (this.view.t1 - this.view.t0)) * this.plot;
    }
    time(x) {
      return this.view.t0 + ((x - GUTTER) / this.plot) * (this.view.t1 - this.view.t0);
    }
    screenY(y) {
      return this.top + y - this.scroll;
    }
    onScreen(track) {
      const y = this.screenY(track.y);
      return y + track.height > this.top && y < this.bottom;
    }

    // What lies under a point: {zone, track, box, time}.
    at(x, y) {
      const found = { x, y, time: this.time(x), zone: "plot", track: null, box: null };
      if (y < MINIMAP) found.zone = "minimap";
      else if (y < this.top) found.zone = "rulers";
      else if (y >= this.bottom) found.zone = "memory";
      else {
        const inside = y - this.top + this.scroll;
        found.track = this.order.find((t) => inside >= t.y && inside < t.y + t.height) || null;
        if (found.track) {
          found.box = found.track.boxes.find((b) => inside >= b.y - 1 && inside < b.y + b.height + 1) || null;
        }
        if (x < GUTTER) found.zone = "gutter";
      }
      if (found.zone === "rulers" && x < GUTTER) found.zone = "corner";
      return found;
    }

    // -- the view

    setView(t0, t1) {
      const whole = this.end - this.start;
      const width = Math.min(whole * 1.1, Math.max(200, t1 - t0));
      const margin = width * 0.5;
      const first = Math.min(Math.max(t0, this.start - margin), this.end + margin - width);
      this.view = { t0: first, t1: first + width };
      this.hideTip();
      // Asked for now, not with the frame: by then half the answer can be here.
      if (this.order) this.loader.want(this.wanted());
      this.redraw();
      this.controls.viewChanged();
    }

    fit() {
      const margin = (this.end - this.start) * 0.005;
      this.view = { t0: this.start - margin, t1: this.end + margin };
      if (this.controls) this.controls.viewChanged();
      this.redraw();
    }

    // Glide to a stretch, with a little room on both sides.
    jump(t0, t1, track) {
      const room = Math.max(t1 - t0, 2000) * 1.2;
      const target = { t0: t0 - room, t1: t1 + room };
      if (track) this.reveal(track);
      const from = Object.assign({}, this.view);
      const began = performance.now();
      const glide = (now) => {
        if (this.gone) return;
        const share = Math.min(1, (now - began) / 140);
        const eased = 1 - Math.pow(1 - share, 3);
        this.setView(from.t0 + (target.t0 - from.t0) * eased, from.t1 + (target.t1 - from.t1) * eased);
        if (share < 1) requestAnimationFrame(glide);
      };
      requestAnimationFrame(glide);
    }

    reveal(track) {
      if (track.small && !track.pinned) {
        if (this.condensed) track.pinned = true;
        track.collapsed = false;
        this.layout();
      }
      this.focus = track;
      const room = this.bottom - this.top;
      if (track.y < this.scroll) this.scroll = track.y;
      else if (track.y + track.height > this.scroll + room) {
        this.scroll = Math.min(track.y, track.y + track.height - room);
      }
      this.redraw();
    }

    track(rank, sourceId) {
      return this.tracks.find((t) => t.rank === rank && (!sourceId || t.source.id === sourceId)) || null;
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
      const wants = [];
      const width = this.view.t1 - this.view.t0;
      const visible = this.order.filter((track) => this.onScreen(track));
      const rulers = this.order[0];
      if (!rulers) return wants;
      for (const track of new Set([...visible, rulers])) {
        const meta = track.source.meta;
        // A condensed line has fewer pixels to be right about: one level coarser.
        const crowd = track.small && visible.length > 16 ? 1 : 0;
        const level = Math.min(meta.level, TileLoader.levelOf(width, meta) + crowd);
        const size = Math.pow(2, level);
        const first = Math.max(0, Math.floor((this.view.t0 - track.offset) / size));
        const last = Math.min(Math.floor(meta.end / size), Math.floor((this.view.t1 - track.offset) / size));
        track.level = level;
        track.indices = [];
        for (let index = first; index <= last; index++) {
          track.indices.push(index);
          const condensed = track.small && track !== rulers;
          wants.push({ source: track.source, rank: track.rank, condensed, level, index });
        }
      }
      return wants;
    }

    paint() {
      const began = performance.now();
      const wants = this.wanted();
      const missing = this.loader.want(wants);
      this.sharp = missing === 0;
      const pen = this.pen;
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      pen.fillStyle = this.ink.background;
      pen.fillRect(0, 0, this.width, this.height);
      this.wide = [];
      this.bands = [];
      const ticks = this.rulers.ticks(), gaps = this.rulers.unrecorded();
      this.rows.paint(ticks, gaps);
      this.rulers.paint(ticks, gaps);
      this.rulers.minimap();
      if (this.hasMemory) this.memory.paint();
      this.paintScrollbar();
      if (this.end <= 1) this.paintNothing();
      this.frameMs = performance.now() - began;
      if (!this.painted && wants.some((w) => this.loader.best(w.source, w.rank, w.condensed, w.level, w.index))) {
        performance.mark("fsdp-timeline-painted");
        this.painted = true;
      }
      if (this.sharp && this.options.onSharp) this.options.onSharp(this);
    }

    paintNothing() {
      const live = this.sources.some((source) => source.meta.live);
      const text = live ? "No step has been recorded yet: it appears here once it has ended."
        : "The run holds no span to draw: no step was recorded to its end.";
      this.pen.fillStyle = this.ink.faint;
      this.pen.font = `13px ${FONT}`;
      this.pen.textAlign = "center";
      this.pen.fillText(text, GUTTER + this.plot / 2, (this.top + this.bottom) / 2);
      this.pen.textAlign = "left";
    }

    clipPlot(from, to) {
      this.pen.save();
      this.pen.beginPath();
      this.pen.rect(GUTTER, from, this.plot, to - from);
      this.pen.clip();
    }

    // The text, shortened in the middle until it fits; "" where too little would be left.
    fitted(text, room, font) {
      const pen = this.pen;
      pen.font = `${font} ${FONT}`;
      if (text.length > 200) text = `${text.slice(0, 100)}\u2026${text.slice(-90)}`;
      if (pen.measureText(text).width <= room) return text;
      for (let keep = Math.min(text.length - 1, Math.floor(room / 4)); keep >= 6; keep--) {
        const head = Math.ceil(keep * 0.4);
        const short = `${text.slice(0, head)}\u2026${text.slice(text.length - (keep - head))}`;
        if (pen.measureText(short).width <= room) return short;
      }
      return "";
    }

    paintScrollbar() {
      const room = this.bottom - this.top;
      if (this.content <= room) return;
      const size = Math.max(24, (room / this.content) * room);
      const y = this.top + (this.scroll / (this.content - room)) * (room - size);
      this.pen.fillStyle = this.ink.faint;
      this.pen.fillRect(this.width - 5, y, 4, size);
    }

    // -- words

    say(text) {
      this.status.textContent = text;
    }

    hideTip() {
      this.tip.hidden = true;
    }

    png() {
      const whole = document.createElement("canvas");
      whole.width = this.lower.width;
      whole.height = this.lower.height;
      const pen = whole.getContext("2d");
      pen.drawImage(this.lower, 0, 0);
      pen.drawImage(this.upper, 0, 0);
      return new Promise((resolve) => whole.toBlob(resolve, "image/png"));
    }
  }

  root.FsdpTimeline = FsdpTimeline;
})(window);
