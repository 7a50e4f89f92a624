// The timeline: state, layout and painting. What the mouse and the keys do is in
// controls.js, what stands below the picture in drawer.js.
//
//   const timeline = new FsdpTimeline(element, { sources: [source], theme: "light" });
//
// Two canvases: the lower holds the picture and is painted when the view or the data
// change, the upper one holds cursor, selection and arrows.
(function (root) {
  "use strict";
  if (root.FsdpTimeline) return;
  const { Row, BINS } = root.fsdpTiles;
  const words = root.fsdpWords;
  const { RowRaster, hatching, dots } = root.fsdpRaster;
  const { TileLoader, CurveLoader } = root.fsdpLoader;

  const GUTTER = 168;
  const MINIMAP = 30, AXIS = 22, STEPS = 16, BATCHES = 8, MEMORY = 78;
  const FONT = "system-ui, -apple-system, 'Segoe UI', Inter, Roboto, sans-serif";
  const HEIGHT = {
    [Row.EXPOSED]: 11, [Row.COMPUTE]: 16, [Row.ALL_GATHER]: 13, [Row.REDUCE_SCATTER]: 13,
    [Row.ALL_REDUCE]: 13, [Row.OTHER_COMM]: 10, [Row.COPIES]: 9, [Row.HOST]: 9,
    [Row.UNSHARDED_ROOT]: 3, [Row.UNSHARDED_EVEN]: 5, [Row.UNSHARDED_ODD]: 5,
  };
  const LABEL = {
    [Row.COMPUTE]: "compute", [Row.ALL_GATHER]: "all-gather",
    [Row.REDUCE_SCATTER]: "reduce-scatter", [Row.ALL_REDUCE]: "all-reduce",
    [Row.OTHER_COMM]: "other comm", [Row.COPIES]: "copies", [Row.HOST]: "host",
  };
  const GAP = 3;
  const FOLLOW_MS = 2000;
  const COLLAPSED = 18;
  const LOWEST = 56; // of a rank in full: room for what stands beside it
  const TALLEST = 34; // of a condensed line, where there is room
  const FLOW = [Row.HOST, Row.COPIES, Row.ALL_GATHER, Row.REDUCE_SCATTER, Row.ALL_REDUCE,
    Row.EXPOSED, Row.COMPUTE];
  const HATCH_FROM = 5; // device pixels from which an exposed stretch is hatched

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
      this.selected = null; // {track, mark, details}
      this.area = null; // {t0, t1}
      this.wide = []; // marks with room for a label, of the last picture
      this.bands = []; // exposed stretches wide enough to be hatched
      this.loader = new TileLoader(() => this.redraw(), (e) => this.say(e.message));
      this.curves = new CurveLoader(() => this.redrawMemory(), (e) => this.say(e.message));
      this.build();
      this.setTheme(this.options.theme);
      this.notes = new root.FsdpNotes(this);
      this.controls = new root.FsdpControls(this);
      this.drawer = new root.FsdpDrawer(this);
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
      this.lines = document.createElement("canvas");
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
      this.drawer.legend();
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
      this.ink = root.fsdpWords.THEMES[theme];
      this.colour = words.colours(theme);
      this.rgb = Object.fromEntries(
        Object.entries(this.colour).map(([key, hex]) => [key, words.rgb(hex)]));
      this.hatch = hatching(this.pen, this.ink.exposed, this.ink.exposed + "2e", 9);
      this.dots = dots(this.pen, this.ink.faint, 5);
      if (this.drawer && this.sources) this.drawer.legend();
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
        else if (this.memoryDirty && this.hasMemory) this.paintMemory();
        this.dirty = this.memoryDirty = false;
        this.paintOver();
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
      const ticks = this.ticks();
      this.paintLanes(ticks);
      this.paintRows();
      this.paintWaits();
      this.paintBands();
      this.paintLabels();
      this.paintGutter();
      this.paintRulers(ticks);
      this.paintMinimap();
      if (this.hasMemory) this.paintMemory();
      this.paintScrollbar();
      if (this.end <= 1) this.paintNothing();
      this.frameMs = performance.now() - began;
      if (!this.marked && wants.some((w) => this.loader.best(w.source, w.rank, w.condensed, w.level, w.index))) {
        performance.mark("fsdp-timeline-painted");
        this.marked = true;
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

    ticks() {
      const span = this.view.t1 - this.view.t0;
      const rough = span / Math.max(2, this.plot / 110);
      const power = Math.pow(10, Math.floor(Math.log10(rough)));
      const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
      const found = [];
      for (let t = Math.ceil(this.view.t0 / step) * step; t <= this.view.t1; t += step) found.push(t);
      return { step, times: found };
    }

    clipPlot(from, to) {
      this.pen.save();
      this.pen.beginPath();
      this.pen.rect(GUTTER, from, this.plot, to - from);
      this.pen.clip();
    }

    paintLanes(ticks) {
      const pen = this.pen;
      this.clipPlot(this.top, this.bottom);
      pen.fillStyle = this.ink.lane;
      for (const track of this.order) {
        if (!this.onScreen(track)) continue;
        for (const box of track.boxes) {
          if (box.row !== Row.EXPOSED) pen.fillRect(GUTTER, this.screenY(box.y), this.plot, box.height);
        }
      }
      this.gaps = this.unrecorded();
      pen.fillStyle = this.ink.panel;
      for (const gap of this.gaps) {
        pen.fillRect(this.x(gap.start), this.top, this.x(gap.end) - this.x(gap.start), this.bottom - this.top);
      }
      pen.fillStyle = this.ink.grid;
      for (const t of ticks.times) pen.fillRect(Math.round(this.x(t)), this.top, 1, this.bottom - this.top);
      pen.restore();
    }

    // Steps that the recorder left out: nothing is known there, which is not idleness.
    unrecorded() {
      const bands = this.rulerBands(Row.STEP);
      return bands.slice(1).map((band, at) => ({
        start: bands[at].end, end: band.start, first: bands[at].span + 1, last: band.span - 1,
      })).filter((gap) => gap.last >= gap.first && gap.end > gap.start);
    }

    paintRows() {
      const boxes = [];
      for (const track of this.order) {
        if (!this.onScreen(track)) continue;
        for (const box of track.boxes) {
          const y = this.screenY(box.y);
          if (y + box.height > this.top && y < this.bottom) boxes.push([track, box, y]);
        }
      }
      if (!boxes.length) return;
      const image = new ImageData(this.pixels, boxes.length);
      boxes.forEach(([track, box], line) => this.rasterRow(track, box, image, line));
      this.lines.width = this.pixels;
      this.lines.height = boxes.length;
      this.lines.getContext("2d").putImageData(image, 0, 0);
      this.clipPlot(this.top, this.bottom);
      this.pen.imageSmoothingEnabled = false;
      boxes.forEach(([, box, y], line) => {
        this.pen.drawImage(this.lines, 0, line, this.pixels, 1, GUTTER, y, this.plot, box.height);
      });
      this.pen.restore();
    }

    // All series of a row, from the best tiles there are, into a line of pixels.
    rasterRow(track, box, image, line) {
      const { source, offset } = track;
      const specs = source.meta.series;
      const perPixel = (this.view.t1 - this.view.t0) / this.pixels;
      const t0 = this.view.t0 - offset;
      const size = Math.pow(2, track.level);
      this.raster.clear();
      const wide = (mark) => this.noteWide(track, box, mark);
      for (const index of track.indices || []) {
        const found = this.loader.best(source, track.rank, track.small, track.level, index);
        if (!found) continue;
        const first = Math.max(0, Math.round((index * size - t0) / perPixel));
        const last = Math.min(this.pixels, Math.round(((index + 1) * size - t0) / perPixel));
        for (const block of found.blocks) {
          const spec = specs[block.series];
          if (spec.row !== box.row) continue;
          this.raster.block(found.tile, block, this.rgb[spec.colour], first, last, t0, perPixel, wide);
          if (box.row === Row.EXPOSED && block.shares) {
            this.raster.runs(found.tile, block, first, last, t0, perPixel, wide);
          }
        }
      }
      this.raster.write(image, line, box.row === Row.EXPOSED);
    }

    // Marks arrive tile by tile; one that crosses a border is joined again.
    noteWide(track, box, mark) {
      const list = box.row === Row.EXPOSED ? this.bands : this.wide;
      const from = mark.from / this.ratio, to = mark.to / this.ratio;
      if (box.row !== Row.EXPOSED && mark.to - mark.from < 4 * this.ratio) return;
      for (let at = list.length - 1; at >= 0 && at > list.length - 6; at--) {
        const other = list[at];
        if (other.track === track && other.box === box && other.series === mark.series
            && other.span === mark.span && from <= other.to + 1 && to >= other.from - 1) {
          other.from = Math.min(other.from, from);
          other.to = Math.max(other.to, to);
          return;
        }
      }
      list.push({ track, box, series: mark.series, span: mark.span, unit: mark.unit, from, to });
    }

    spec(mark) {
      return mark.track.source.meta.series[mark.series];
    }

    // Waiting for a rank is dotted, moving bytes is plain.
    paintWaits() {
      this.clipPlot(this.top, this.bottom);
      this.pen.fillStyle = this.dots;
      for (const mark of this.wide) {
        if (!this.spec(mark).colour.endsWith("_wait") || mark.to - mark.from < 4) continue;
        this.pen.fillRect(GUTTER + mark.from, this.screenY(mark.box.y), mark.to - mark.from, mark.box.height);
      }
      this.pen.restore();
    }

    // Exposed stretches over all rows of their rank: hatched, edged and labelled.
    paintBands() {
      const pen = this.pen;
      this.clipPlot(this.top, this.bottom);
      for (const band of this.bands) {
        const { track } = band;
        const from = Math.max(band.from, -2), to = Math.min(band.to, this.plot + 2);
        if ((to - from) * this.ratio < HATCH_FROM || track.small) continue;
        const x = GUTTER + from;
        const y = this.screenY(track.y) + 4, height = track.height - 9;
        pen.fillStyle = this.hatch;
        pen.fillRect(x, y + HEIGHT[Row.EXPOSED], to - from, height - HEIGHT[Row.EXPOSED]);
        pen.fillStyle = this.ink.exposed;
        if (band.from > -2) pen.fillRect(x, y, 1, height);
        if (band.to < this.plot + 2) pen.fillRect(x + to - from - 1, y, 1, height);
        pen.fillRect(x, y, to - from, HEIGHT[Row.EXPOSED]);
        this.bandLabel(band, from, to, y);
      }
      pen.restore();
    }

    bandLabel(band, from, to, y) {
      const room = Math.min(to, this.plot) - Math.max(from, 0) - 8;
      if (room < 48) return;
      const unit = band.track.source.meta.units[band.unit];
      const label = this.exposedWords(unit, room, "bold 9px");
      this.pen.fillStyle = this.theme === "dark" ? "#1a0500" : "#ffffff";
      this.pen.textBaseline = "middle";
      this.pen.fillText(label, GUTTER + Math.max(from, 0) + 4, y + HEIGHT[Row.EXPOSED] / 2 + 0.5);
    }

    // The word is never shortened, the name beside it may be.
    exposedWords(unit, room, font) {
      const word = this.fitted("EXPOSED", room, font);
      if (!word || unit === undefined) return word;
      const name = this.fitted(unit, room - this.pen.measureText("EXPOSED ").width, font);
      return name ? `${word} ${name}` : word;
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

    paintLabels() {
      const pen = this.pen;
      this.clipPlot(this.top, this.bottom);
      pen.textBaseline = "middle";
      for (const mark of this.wide) {
        if (mark.track.small || mark.box.height < 12 || mark.unit < 0) continue;
        const from = Math.max(mark.from, 0), to = Math.min(mark.to, this.plot);
        if (to - from < 54) continue;
        const spec = this.spec(mark);
        const label = this.fitted(mark.track.source.meta.units[mark.unit] || "", to - from - 8, "10px");
        if (!label) continue;
        pen.fillStyle = this.inkOn(spec.colour);
        pen.fillText(label, GUTTER + from + 4, this.screenY(mark.box.y) + mark.box.height / 2 + 0.5);
      }
      pen.restore();
    }

    inkOn(colour) {
      const [r, g, b] = this.rgb[colour];
      return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1a1a1a" : "#ffffff";
    }

    paintGutter() {
      const pen = this.pen;
      pen.save();
      pen.beginPath();
      pen.rect(0, this.top, this.width, this.bottom - this.top);
      pen.clip();
      for (const track of this.order) {
        if (!this.onScreen(track)) continue;
        const y = this.screenY(track.y);
        pen.fillStyle = this.ink.line;
        if (!track.small) pen.fillRect(0, Math.round(y + track.height) - 2, this.width, 1);
        pen.textBaseline = "middle";
        if (track.small) this.smallGutter(track, y);
        else this.tallGutter(track, y);
      }
      pen.restore();
    }

    smallGutter(track, y) {
      if (track.height < 9) {
        if (this.order.indexOf(track) % 2) return;
      }
      const middle = y + track.height / 2;
      this.pen.fillStyle = this.ink.text;
      this.pen.fillText(this.fitted(`\u25b8 ${track.label}`, 92, track.height < 13 ? "9px" : "11px"), 6, middle);
      this.exposedShare(track, 104, middle, track.height < 13 ? "9px" : "bold 10px", "");
    }

    tallGutter(track, y) {
      const pen = this.pen;
      pen.fillStyle = this.ink.text;
      // Beside the exposed row, which has no label of its own: the whole gutter is free.
      pen.fillText(this.fitted(`\u25be ${track.label}`, GUTTER - 14, "bold 11px"), 6, y + 11);
      this.exposedShare(track, 17, y + 27, "bold 10px", " exposed");
      pen.fillStyle = track.pinned ? this.ink.text : this.ink.line;
      pen.font = `11px ${FONT}`;
      pen.fillText(track.pinned ? "\u2605 pinned" : "\u2606", 17, y + 43);
      pen.textAlign = "right";
      pen.fillStyle = this.ink.faint;
      for (const box of track.boxes) {
        if (!box.label) continue;
        pen.font = `${box.height > 11 ? 10 : 9}px ${FONT}`;
        pen.fillText(box.label, GUTTER - 8, this.screenY(box.y) + Math.min(box.height, 12) / 2 + 1);
      }
      pen.textAlign = "left";
    }

    exposedShare(track, x, y, font, suffix) {
      const share = track.info.exposed_share;
      this.pen.font = `${font} ${FONT}`;
      this.pen.fillStyle = share ? this.ink.exposed : this.ink.faint;
      const text = share === null ? "not measured" : words.percent(share) + suffix;
      this.pen.fillText(text, x, y);
    }

    paintRulers(ticks) {
      const pen = this.pen;
      pen.fillStyle = this.ink.panel;
      pen.fillRect(0, MINIMAP, this.width, this.top - MINIMAP);
      pen.textBaseline = "middle";
      pen.fillStyle = this.ink.text;
      pen.font = `11px ${FONT}`;
      pen.fillText(`${words.duration(this.view.t1 - this.view.t0)} shown`, 8, MINIMAP + AXIS / 2);
      pen.fillStyle = this.ink.faint;
      pen.font = `10px ${FONT}`;
      pen.textAlign = "right";
      pen.fillText("step", GUTTER - 8, MINIMAP + AXIS + STEPS / 2);
      if (this.hasBatches) {
        pen.font = `8px ${FONT}`;
        pen.fillText("micro-batch", GUTTER - 8, MINIMAP + AXIS + STEPS + BATCHES / 2);
      }
      pen.textAlign = "left";
      this.clipPlot(MINIMAP, this.top);
      pen.textAlign = "center";
      pen.font = `10px ${FONT}`;
      for (const t of ticks.times) {
        const x = this.x(t);
        const text = words.moment(t, ticks.step);
        const half = pen.measureText(text).width / 2 + 2;
        if (x - half < GUTTER || x + half > GUTTER + this.plot) continue;
        pen.fillText(text, x, MINIMAP + AXIS / 2);
      }
      pen.textAlign = "left";
      this.ruler(Row.STEP, MINIMAP + AXIS, STEPS, (span) => `step ${span}`);
      this.gapWords(MINIMAP + AXIS + STEPS / 2 + 0.5);
      if (this.hasBatches) this.ruler(Row.MICRO_BATCH, MINIMAP + AXIS + STEPS, BATCHES, null);
      pen.restore();
      pen.fillStyle = this.ink.line;
      pen.fillRect(0, this.top - 1, this.width, 1);
    }

    // The steps of the first track, in bands that alternate. A band that crosses tiles
    // is drawn as one.
    ruler(row, y, height, label) {
      const pen = this.pen;
      const bands = this.rulerBands(row);
      bands.forEach((band, at) => {
        const x0 = this.x(band.start), x1 = this.x(band.end);
        pen.fillStyle = (label ? band.span : at) % 2 ? this.ink.line : this.ink.grid;
        pen.fillRect(x0, y + 1, Math.max(0.5, x1 - x0 - (x1 - x0 > 3 ? 1 : 0)), height - 2);
        if (!label) return;
        const left = Math.max(x0, GUTTER);
        const text = this.fitted(label(band.span), Math.min(x1, GUTTER + this.plot) - left - 6, "9px");
        if (!text || text.includes("\u2026")) return;
        pen.fillStyle = this.ink.text;
        pen.fillText(text, left + 4, y + height / 2 + 0.5);
      });
    }

    gapWords(y) {
      const pen = this.pen;
      pen.fillStyle = this.ink.faint;
      for (const { start, end, first, last } of this.gaps) {
        const left = Math.max(this.x(start), GUTTER), right = Math.min(this.x(end), GUTTER + this.plot);
        const steps = first === last ? `step ${first}` : `steps ${first}-${last}`;
        for (const words of [`${steps} not recorded`, "not recorded"]) {
          const text = this.fitted(words, right - left - 8, "9px");
          if (text !== words) continue;
          pen.fillText(text, left + 4, y);
          break;
        }
      }
    }

    rulerBands(row) {
      const track = this.order[0], bands = new Map();
      for (const index of track.indices || []) {
        const found = this.loader.best(track.source, track.rank, false, track.level, index);
        if (!found) continue;
        const { tile } = found;
        for (const block of found.blocks) {
          // Where there are too many to tell apart they come as shares: no bands.
          if (track.source.meta.series[block.series].row !== row || !block.span) continue;
          for (let i = 0; i < block.count; i++) {
            const start = tile.start + (block.from[i] * tile.width) / 65536 + track.offset;
            const end = tile.start + (block.to[i] * tile.width) / 65536 + track.offset;
            const known = bands.get(block.span[i]);
            if (!known) bands.set(block.span[i], { span: block.span[i], start, end });
            else {
              known.start = Math.min(known.start, start);
              known.end = Math.max(known.end, end);
            }
          }
        }
      }
      return [...bands.values()].sort((a, b) => a.start - b.start);
    }

    paintMinimap() {
      const pen = this.pen;
      pen.fillStyle = this.ink.panel;
      pen.fillRect(0, 0, this.width, MINIMAP);
      pen.fillStyle = this.ink.faint;
      pen.font = `10px ${FONT}`;
      pen.textBaseline = "middle";
      pen.fillText(`whole run ${words.duration(this.end - this.start)}`, 8, MINIMAP / 2);
      const whole = this.end - this.start;
      const height = (MINIMAP - 6) / this.sources.length;
      this.sources.forEach((source, at) => {
        const map = source.meta.minimap;
        const bin = Math.pow(2, map.level) / BINS;
        const y = 3 + at * height;
        const image = this.minimapLine(source, map);
        const from = (source.offset || 0) - this.start;
        const x = GUTTER + (from / whole) * this.plot;
        const width = ((bin * BINS) / whole) * this.plot;
        pen.save();
        pen.beginPath();
        pen.rect(GUTTER, 0, this.plot, MINIMAP);
        pen.clip();
        pen.drawImage(image, 0, 0, BINS, 1, x, y + height * 0.45, width, height * 0.5);
        pen.drawImage(image, 0, 1, BINS, 1, x, y, width, height * 0.45);
        pen.restore();
      });
      const x0 = Math.max(GUTTER, this.miniX(this.view.t0));
      const x1 = Math.min(GUTTER + this.plot, this.miniX(this.view.t1));
      pen.fillStyle = this.theme === "dark" ? "#0d1117b0" : "#ffffffb0";
      pen.fillRect(GUTTER, 0, Math.max(0, x0 - GUTTER), MINIMAP);
      pen.fillRect(x1, 0, Math.max(0, GUTTER + this.plot - x1), MINIMAP);
      pen.strokeStyle = this.ink.text;
      pen.lineWidth = 1;
      pen.strokeRect(Math.round(x0) + 0.5, 0.5, Math.max(2, Math.round(x1 - x0) - 1), MINIMAP - 1);
    }

    miniX(time) {
      return GUTTER + ((time - this.start) / (this.end - this.start)) * this.plot;
    }
    miniTime(x) {
      return this.start + ((x - GUTTER) / this.plot) * (this.end - this.start);
    }

    minimapLine(source, map) {
      if (map.image && map.theme === this.theme) return map.image;
      const image = document.createElement("canvas");
      image.width = BINS;
      image.height = 2;
      const pen = image.getContext("2d");
      const pixels = pen.createImageData(BINS, 2);
      const busy = words.rgb(this.colour.backward), exposed = words.rgb(this.ink.exposed);
      for (let i = 0; i < BINS; i++) {
        pixels.data.set([...busy, map.compute[i]], i * 4);
        const shown = map.exposed[i] ? Math.max(90, Math.min(255, map.exposed[i] * 3)) : 0;
        pixels.data.set([...exposed, shown], (BINS + i) * 4);
      }
      pen.putImageData(pixels, 0, 0);
      map.image = image;
      map.theme = this.theme;
      return image;
    }

    // -- memory

    paintMemory() {
      const pen = this.pen, track = this.focus;
      const y = this.bottom, height = MEMORY;
      pen.fillStyle = this.ink.background;
      pen.fillRect(0, y, this.width, height);
      pen.fillStyle = this.ink.line;
      pen.fillRect(0, y, this.width, 1);
      pen.textBaseline = "middle";
      pen.fillStyle = this.ink.text;
      pen.font = `bold 11px ${FONT}`;
      pen.fillText("memory", 6, y + 14);
      if (!track.indices || track.level === undefined) return;
      if (this.sharp) this.curves.want(track, track.level, track.indices);
      const parts = new Set(track.indices.map((index) => this.curves.best(track, track.level, index)));
      parts.delete(null);
      const known = [...parts].map((found) => found.part).find((part) => part.curve);
      pen.fillStyle = this.ink.faint;
      pen.font = `10px ${FONT}`;
      pen.fillText(this.fitted(track.label, 100, "10px"), 6, y + 30);
      if (!known) {
        if (parts.size) pen.fillText("not measured", 6, y + 44);
        return;
      }
      pen.fillText(known.curve.replace("_bytes", ""), 6, y + 44);
      this.memoryScale(known, y, height);
      this.clipPlot(y, y + height);
      for (const found of parts) if (found.part.curve) this.memoryPart(track, found, y, height);
      this.memoryPeak(track, known, y, height);
      pen.restore();
    }

    memoryScale(known, y, height) {
      const pen = this.pen;
      pen.textAlign = "right";
      pen.fillStyle = this.ink.faint;
      pen.font = `9px ${FONT}`;
      pen.fillText(words.bytes(known.top), GUTTER - 8, y + 16);
      pen.fillText("0 B", GUTTER - 8, y + height - 8);
      pen.textAlign = "left";
    }

    memoryPart(track, { part, width, start }, y, height) {
      const pen = this.pen;
      const bin = width / BINS;
      const begin = start + track.offset;
      const scale = (height - 24) / (part.top || 1);
      const floor = y + height - 4;
      const per = (this.view.t1 - this.view.t0) / this.plot;
      const first = Math.max(0, Math.floor((this.view.t0 - begin) / bin));
      const last = Math.min(BINS, Math.ceil((this.view.t1 - begin) / bin));
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
        const x = Math.round(this.x(begin + i * bin));
        const wide = Math.max(1, Math.round(this.x(begin + (i + group) * bin)) - x);
        columns.push([x, wide, low * scale, high * scale]);
      }
      // Colour by colour: changing it costs more than a column.
      pen.fillStyle = this.ink.memoryFill;
      for (const [x, wide, low] of columns) pen.fillRect(x, floor - low, wide, low);
      pen.fillStyle = this.ink.memory;
      for (const [x, wide, low, high] of columns) pen.fillRect(x, floor - high, wide, Math.max(1.2, high - low));
    }

    memoryPeak(track, known, y, height) {
      const x = this.x(known.peak.time + track.offset);
      if (x < GUTTER || x > GUTTER + this.plot) return;
      const pen = this.pen;
      const top = y + 20;
      pen.fillStyle = this.ink.text;
      pen.beginPath();
      pen.moveTo(x - 4, top - 7);
      pen.lineTo(x + 4, top - 7);
      pen.lineTo(x, top - 1);
      pen.fill();
      pen.font = `bold 9px ${FONT}`;
      const text = `peak ${words.bytes(known.peak.bytes)}`;
      const width = pen.measureText(text).width;
      const right = x + 8 + width < GUTTER + this.plot;
      pen.fillText(text, right ? x + 8 : x - 8 - width, y + 11);
    }

    paintScrollbar() {
      const room = this.bottom - this.top;
      if (this.content <= room) return;
      const size = Math.max(24, (room / this.content) * room);
      const y = this.top + (this.scroll / (this.content - room)) * (room - size);
      this.pen.fillStyle = this.ink.faint;
      this.pen.fillRect(this.width - 5, y, 4, size);
    }

    // -- the upper canvas

    paintOver() {
      const pen = this.over;
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      const needed = this.area || this.selected || (this.hover && this.hover.x >= GUTTER);
      if (!needed && this.upperEmpty) return; // or the browser would lay it over again
      this.upperEmpty = !needed;
      pen.clearRect(0, 0, this.width, this.height);
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, MINIMAP, this.plot, this.height - MINIMAP);
      pen.clip();
      this.notes.paint(pen, this.top, this.bottom);
      if (this.area) this.overArea(pen);
      if (this.hover && this.hover.unit >= 0) this.overUnit(pen);
      if (this.selected) this.overSelected(pen);
      if (this.hover && this.hover.x >= GUTTER) this.overCursor(pen);
      pen.restore();
    }

    overArea(pen) {
      const x0 = this.x(this.area.t0), x1 = this.x(this.area.t1);
      pen.fillStyle = this.ink.area;
      pen.fillRect(x0, MINIMAP, x1 - x0, this.height - MINIMAP);
      pen.fillStyle = this.ink.cursor;
      pen.fillRect(x0, MINIMAP, 1, this.height);
      pen.fillRect(x1 - 1, MINIMAP, 1, this.height);
      const text = words.duration(this.area.t1 - this.area.t0);
      pen.font = `bold 11px ${FONT}`;
      const width = pen.measureText(text).width;
      if (width + 12 < x1 - x0) this.tag(pen, text, (x0 + x1 - width) / 2, MINIMAP + AXIS + STEPS / 2);
    }

    tag(pen, text, x, y) {
      const width = pen.measureText(text).width;
      pen.fillStyle = this.ink.cursor;
      pen.fillRect(x - 4, y - 8, width + 8, 16);
      pen.fillStyle = this.ink.background;
      pen.textBaseline = "middle";
      pen.fillText(text, x, y + 0.5);
    }

    overUnit(pen) {
      pen.strokeStyle = this.ink.select;
      pen.lineWidth = 1;
      for (const mark of [...this.wide, ...this.bands]) {
        if (mark.unit !== this.hover.unit) continue;
        const y = this.screenY(mark.box.y);
        if (y < this.top || y > this.bottom) continue;
        pen.strokeRect(GUTTER + mark.from + 0.5, y + 0.5, Math.max(1, mark.to - mark.from - 1), mark.box.height - 1);
      }
    }

    overCursor(pen) {
      const { x, time } = this.hover;
      pen.fillStyle = this.ink.cursor;
      pen.globalAlpha = 0.45;
      pen.fillRect(Math.round(x), MINIMAP + AXIS, 1, this.height);
      pen.globalAlpha = 1;
      pen.font = `10px ${FONT}`;
      const step = (this.view.t1 - this.view.t0) / this.plot;
      const text = words.moment(time, step);
      const width = pen.measureText(text).width;
      const at = Math.min(Math.max(x - width / 2, GUTTER + 5), GUTTER + this.plot - width - 5);
      this.tag(pen, text, at, MINIMAP + AXIS / 2);
    }

    boxOf(track, row) {
      if (!track) return null;
      return track.boxes.find((b) => b.row === row) || (row >= Row.UNSHARDED_ROOT
        ? track.boxes.find((b) => b.row >= Row.UNSHARDED_ROOT) : null);
    }

    overSelected(pen) {
      const { track, mark, details } = this.selected;
      const spec = track.source.meta.series[mark.series];
      const box = this.boxOf(track, spec.row);
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, this.top, this.plot, this.bottom - this.top);
      pen.clip();
      if (box) {
        pen.strokeStyle = this.ink.select;
        pen.lineWidth = 2;
        const x0 = this.x(mark.start + track.offset), x1 = this.x(mark.end + track.offset);
        pen.strokeRect(x0 - 1, this.screenY(box.y) - 1, Math.max(3, x1 - x0 + 2), box.height + 2);
      }
      if (details) {
        this.overPeers(pen, track, details.peers);
        this.overFlow(pen, track, details.flow);
      }
      pen.restore();
    }

    overPeers(pen, track, peers) {
      pen.setLineDash([3, 2]);
      pen.lineWidth = 1.5;
      for (const peer of peers) {
        const other = this.track(peer.rank, track.source.id);
        const box = this.boxOf(other, peer.row);
        if (!box) continue;
        const x0 = this.x(peer.start + other.offset), x1 = this.x(peer.end + other.offset);
        pen.strokeRect(x0 - 1, this.screenY(box.y) - 1, Math.max(3, x1 - x0 + 2), box.height + 2);
      }
      pen.setLineDash([]);
    }

    // From the host's call to the collective, to the end of the wait, to what used it.
    overFlow(pen, track, flow) {
      const stage = (place) => FLOW.indexOf(place.row);
      const shown = flow.filter((place) => stage(place) >= 0)
        .sort((a, b) => stage(a) - stage(b) || a.start - b.start);
      for (let at = 1; at < shown.length; at++) {
        const from = shown[at - 1], to = shown[at];
        const boxes = [this.boxOf(track, from.row), this.boxOf(track, to.row)];
        if (!boxes[0] || !boxes[1] || from.row === to.row) continue;
        const [y0, y1] = boxes.map((box) => this.screenY(box.y) + box.height / 2);
        const target = to.row === Row.EXPOSED ? to.end : to.start;
        this.arrow(pen, this.x(Math.min(from.end, target) + track.offset), y0,
          this.x(target + track.offset), y1);
      }
    }

    arrow(pen, x0, y0, x1, y1) {
      const bend = Math.max(12, Math.abs(x1 - x0) * 0.4);
      pen.strokeStyle = pen.fillStyle = this.ink.select;
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

  FsdpTimeline.GUTTER = GUTTER;
  FsdpTimeline.LABEL = LABEL;
  root.FsdpTimeline = FsdpTimeline;
})(window);
