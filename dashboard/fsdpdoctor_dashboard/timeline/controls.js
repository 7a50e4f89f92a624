// What the mouse and the keys do. Perfetto's habits where it has one: W S A D, Ctrl and
// wheel, Shift and drag, a plain drag selects an area, F, comma and full stop, slash.
(function (root) {
  "use strict";
  if (root.FsdpControls) return;
  const { Row } = root.fsdpTiles;
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
    ["C", "all ranks condensed, or in full"],
    ["K", "pin the rank under the mouse to the top"], ["E", "collapse or open it"],
    ["Q", "show or hide the details"], ["Esc", "clear, or close this list"], ["?", "this list"],
  ];
  const SAVED_RANKS = 16; // up to so many go into one file, unasked
  const HELD = { w: [0.965, 0], s: [1.036, 0], a: [1, -0.02], d: [1, 0.02] };

  class FsdpControls {
    constructor(timeline) {
      this.timeline = timeline;
      this.held = new Set();
      this.mouse = null;
      this.drag = null;
      this.off = [];
      const { stage } = timeline;
      this.on(stage, "wheel", (e) => this.wheel(e), { passive: false });
      this.on(stage, "pointerdown", (e) => this.down(e));
      this.on(stage, "pointermove", (e) => this.move(e));
      this.on(stage, "pointerup", (e) => this.up(e));
      this.on(stage, "pointerleave", () => this.leave());
      this.on(stage, "dblclick", () => this.fitSelected());
      this.on(document, "keydown", (e) => this.keydown(e));
      this.on(document, "keyup", (e) => this.held.delete(e.key.toLowerCase()));
      this.on(root, "blur", () => this.held.clear());
      this.buildBar();
    }

    on(target, name, act, options) {
      target.addEventListener(name, act, options);
      this.off.push(() => target.removeEventListener(name, act, options));
    }

    destroy() {
      this.off.forEach((undo) => undo());
      clearTimeout(this.viewTimer);
      clearTimeout(this.hoverTimer);
    }

    // -- the bar above the picture

    buildBar() {
      const { timeline } = this;
      const { bar, make } = timeline;
      timeline.legendBox = make("div", "fd-legend", bar);
      const tools = make("div", "fd-tools", bar);
      this.search = make("input", "fd-search", tools);
      this.search.type = "search";
      this.search.placeholder = "find a unit  ( / )";
      this.search.setAttribute("aria-label", "find a unit");
      this.found = make("span", "fd-found", tools);
      this.on(this.search, "keydown", (e) => this.searchKey(e));
      const button = (text, title, act) => {
        const node = make("button", "fd-button", tools);
        node.type = "button";
        node.textContent = text;
        node.title = title;
        this.on(node, "click", () => { act(); timeline.stage.focus(); });
        return node;
      };
      button("Fit", "show the whole run (0)", () => timeline.fit());
      this.modeButton = button("Ranks", "all ranks condensed, or in full (C)", () => this.toggleCondensed());
      button("PNG", "save this picture", () => this.savePng());
      if (timeline.options.perfetto) {
        button("Perfetto", "save a trace for ui.perfetto.dev: lanes, exposed time, its causes",
          () => this.savePerfetto());
      }
      button("?", "all keys", () => this.help());
    }

    async savePng() {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await this.timeline.png());
      link.download = "timeline.png";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }

    // All ranks of the first run in one file; of many only those that are looked at.
    savePerfetto() {
      const { timeline } = this;
      const [source] = timeline.sources;
      const mine = timeline.tracks.filter((track) => track.source === source);
      const looked = mine.filter((track) => track.pinned || track === timeline.focus);
      const few = mine.length <= SAVED_RANKS || !looked.length;
      const ranks = few ? "" : `&ranks=${looked.map((track) => track.rank).join(",")}`;
      const link = document.createElement("a");
      link.href = timeline.options.perfetto + ranks;
      link.setAttribute("download", "");
      link.click();
      timeline.say(`saving ${few ? "all ranks" : `rank ${looked.map((t) => t.rank).join(", ")}: pin more with K`}`);
    }

    help() {
      const { timeline } = this;
      if (this.dialog) {
        this.dialog.remove();
        this.dialog = null;
        return;
      }
      const box = timeline.make("div", "fd-help", timeline.element);
      box.setAttribute("role", "dialog");
      box.setAttribute("aria-label", "keys");
      for (const [key, what] of KEYS) {
        timeline.make("kbd", "", box).textContent = key;
        timeline.make("span", "", box).textContent = what;
      }
      const label = timeline.make("label", "fd-setting", box);
      const check = timeline.make("input", "", label);
      check.type = "checkbox";
      check.checked = this.wheelZooms();
      check.addEventListener("change", () => {
        try { root.localStorage.setItem("fsdpdoctor.wheel", check.checked ? "zoom" : "scroll"); } catch { /* no storage */ }
      });
      label.append(" a plain wheel zooms, and a plain drag moves");
      this.dialog = box;
    }

    wheelZooms() {
      try { return root.localStorage.getItem("fsdpdoctor.wheel") === "zoom"; } catch { return false; }
    }

    toggleCondensed() {
      const { timeline } = this;
      timeline.condensed = !timeline.condensed;
      timeline.scroll = 0;
      timeline.layout();
      timeline.redraw();
      this.viewChanged();
    }

    // -- the mouse

    place(event) {
      const box = this.timeline.stage.getBoundingClientRect();
      return this.timeline.at(event.clientX - box.left, event.clientY - box.top);
    }

    wheel(event) {
      const { timeline } = this;
      if (!timeline.tracks.length) return;
      const place = this.place(event);
      const zoom = event.ctrlKey || event.metaKey || this.wheelZooms();
      if (zoom) {
        event.preventDefault();
        this.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.0035), place.time);
        return;
      }
      const side = event.shiftKey ? event.deltaY : event.deltaX;
      if (Math.abs(side) > Math.abs(event.shiftKey ? event.deltaX : event.deltaY)) {
        event.preventDefault();
        this.pan(side / timeline.plot);
        return;
      }
      const room = timeline.bottom - timeline.top;
      const most = Math.max(0, timeline.content - room);
      const next = Math.min(most, Math.max(0, timeline.scroll + event.deltaY));
      // At the end of the ranks the wheel is the page's again.
      if (next !== timeline.scroll) {
        event.preventDefault();
        timeline.scroll = next;
        timeline.hideTip();
        timeline.redraw();
      }
    }

    zoom(factor, at) {
      const { t0, t1 } = this.timeline.view;
      const centre = at === undefined ? (t0 + t1) / 2 : Math.min(t1, Math.max(t0, at));
      this.timeline.setView(centre - (centre - t0) * factor, centre + (t1 - centre) * factor);
    }

    pan(share) {
      const { t0, t1 } = this.timeline.view;
      const by = (t1 - t0) * share;
      this.timeline.setView(t0 + by, t1 + by);
    }

    down(event) {
      const { timeline } = this;
      if (event.button !== 0 || !timeline.tracks.length) return;
      const place = this.place(event);
      timeline.stage.focus({ preventScroll: true });
      if (place.zone === "minimap") this.drag = { kind: "minimap" };
      else if (place.zone === "gutter" || place.zone === "corner") this.drag = { kind: "none", place };
      else {
        const moves = event.shiftKey !== this.wheelZooms();
        this.drag = { kind: moves ? "pan" : "area", place, view: Object.assign({}, timeline.view), moved: false };
      }
      timeline.stage.setPointerCapture(event.pointerId);
      if (this.drag.kind === "minimap") this.dragMinimap(place);
    }

    dragMinimap(place) {
      const { timeline } = this;
      const half = (timeline.view.t1 - timeline.view.t0) / 2;
      const centre = timeline.rulers.miniTime(place.x);
      timeline.setView(centre - half, centre + half);
    }

    move(event) {
      const { timeline, drag } = this;
      if (!timeline.tracks.length) return;
      const place = this.place(event);
      this.mouse = place;
      if (!drag) {
        this.hover(place);
        return;
      }
      if (drag.kind === "minimap") this.dragMinimap(place);
      if (drag.kind !== "pan" && drag.kind !== "area") return;
      if (Math.abs(place.x - drag.place.x) > 3) drag.moved = true;
      if (!drag.moved) return;
      if (drag.kind === "pan") {
        const per = (drag.view.t1 - drag.view.t0) / timeline.plot;
        const by = (drag.place.x - place.x) * per;
        timeline.setView(drag.view.t0 + by, drag.view.t1 + by);
      } else {
        const x = Math.max(root.fsdpLayout.GUTTER, place.x);
        const [a, b] = [drag.place.time, timeline.time(x)].sort((p, q) => p - q);
        timeline.area = { t0: Math.round(a), t1: Math.round(b) };
        timeline.hideTip();
        timeline.redrawOver();
      }
    }

    up(event) {
      const { timeline, drag } = this;
      this.drag = null;
      if (!drag) return;
      const place = this.place(event);
      if (drag.kind === "none") this.clickGutter(place);
      else if (drag.kind === "area" && drag.moved) timeline.panel.showArea();
      else if (!drag.moved && drag.kind !== "minimap") this.click(place);
    }

    leave() {
      const { timeline } = this;
      this.mouse = null;
      timeline.hover = null;
      timeline.hideTip();
      timeline.redrawOver();
    }

    clickGutter(place) {
      const { timeline } = this;
      const { track } = place;
      if (!track) return;
      const inside = place.y - timeline.screenY(track.y);
      if (!track.small && inside > 38 && inside < 56 && place.x < 80) track.pinned = !track.pinned;
      else if (timeline.condensed) track.pinned = !track.pinned;
      else track.collapsed = !track.collapsed;
      timeline.focus = track;
      timeline.layout();
      timeline.redraw();
      this.viewChanged();
    }

    // -- hovering: what is known at once, then what the source says

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
      const useful = (place.zone === "plot" && place.box) || place.zone === "memory";
      if (!useful || place.x < root.fsdpLayout.GUTTER) {
        timeline.hideTip();
        return;
      }
      this.hoverTimer = setTimeout(() => this.ask(place), 35);
    }

    wideAt(place) {
      if (!place.box) return null;
      const x = place.x - root.fsdpLayout.GUTTER;
      const { timeline } = this;
      return [...timeline.wide, ...timeline.bands].find((slice) =>
        slice.track === place.track && slice.box === place.box && x >= slice.from && x <= slice.to) || null;
    }

    // The row's content under one pixel, exactly.
    async under(place, signal) {
      const { timeline } = this;
      const { track, box } = place;
      const half = (timeline.view.t1 - timeline.view.t0) / timeline.plot / 2;
      const t0 = Math.floor(place.time - half - track.offset);
      const t1 = Math.max(t0 + 1, Math.ceil(place.time + half - track.offset));
      const found = await track.source.under(track.rank, box.row, t0, t1, signal);
      return Object.assign(found, { t0, t1 });
    }

    async ask(place) {
      const { timeline } = this;
      this.asking = new AbortController();
      try {
        if (place.zone === "memory") {
          await this.askMemory(place);
          return;
        }
        const found = await this.under(place, this.asking.signal);
        if (this.mouse !== place) return;
        if (found.count === 0) timeline.hideTip();
        else timeline.panel.tip(place, found);
      } catch (error) {
        if (error.name !== "AbortError") timeline.say(error.message);
      }
    }

    async askMemory(place) {
      const { timeline } = this;
      const track = timeline.focus;
      const time = Math.round(place.time - track.offset);
      const size = Math.pow(2, track.level);
      const found = timeline.curves.best(track, track.level, Math.floor(time / size));
      const live = await track.source.live(track.rank, time);
      if (this.mouse !== place) return;
      timeline.panel.memoryTip(place, track, found, live);
    }

    // -- selecting

    async click(place) {
      const { timeline } = this;
      if (!place.track || !place.box) {
        this.clear();
        return;
      }
      const found = await this.under(place);
      if (!found.marks.length) {
        if (found.count) timeline.say(`${found.count} spans here: zoom in to select one`);
        else this.clear();
        return;
      }
      const at = place.time - place.track.offset;
      const slice = found.marks.find((m) => m.start <= at && at < m.end) || found.marks[0];
      this.select(place.track, slice);
    }

    async select(track, slice) {
      const { timeline } = this;
      const selected = { track, slice, details: null };
      timeline.selected = selected;
      timeline.focus = track;
      timeline.redraw();
      this.viewChanged();
      try {
        const details = await track.source.details(slice.rank, slice.series, slice.span);
        if (timeline.selected !== selected) return;
        selected.details = details;
        timeline.panel.showSpan();
        timeline.redrawOver();
        if (timeline.options.onSelect) timeline.options.onSelect(slice);
      } catch (error) {
        timeline.say(error.message);
      }
    }

    clear() {
      const { timeline } = this;
      timeline.selected = null;
      timeline.area = null;
      timeline.panel.empty();
      timeline.say("");
      timeline.redrawOver();
      this.viewChanged();
    }

    fitSelected() {
      const { timeline } = this;
      const { selected, area } = timeline;
      if (area) timeline.jump(area.t0, area.t1);
      else if (selected) {
        const { slice, track } = selected;
        timeline.jump(slice.start + track.offset, slice.end + track.offset, track);
      } else timeline.fit();
    }

    // -- going from slice to slice

    from(forward) {
      const { timeline } = this;
      const { selected, view } = timeline;
      if (selected) return selected.slice.start + selected.track.offset;
      return forward ? view.t0 : view.t1;
    }

    async nextExposed(forward) {
      const { timeline } = this;
      // What a person cannot see at this zoom is not what they look for next.
      const least = Math.min((timeline.view.t1 - timeline.view.t0) / timeline.plot, 1e5);
      const from = this.from(forward);
      let best = null;
      for (const source of timeline.sources) {
        const offset = source.offset || 0;
        const ranks = timeline.order.filter((t) => t.source === source).map((t) => t.rank);
        const { mark: slice } = await source.nextExposed(ranks, Math.round(from - offset), forward, Math.round(least));
        if (slice && (!best || slice.start + offset < best.at === forward)) {
          best = { slice, at: slice.start + offset, source };
        }
      }
      if (!best) {
        timeline.say(forward ? "no exposed stretch after this" : "no exposed stretch before this");
        return;
      }
      this.goTo(timeline.track(best.slice.rank, best.source.id), best.slice);
    }

    async neighbour(forward) {
      const { timeline } = this;
      const { track, row, time } = this.standing();
      const from = timeline.selected ? time : time - forward;
      const found = await track.source.neighbour(track.rank, row, from, forward);
      if (found.mark) this.goTo(track, found.mark, true);
      else timeline.say(forward ? "no span after this in its row" : "no span before this in its row");
    }

    // Where the keys go from: the selected span, or the compute of the rank in focus.
    standing() {
      const { timeline } = this;
      const { selected, view } = timeline;
      if (!selected) {
        const track = timeline.focus;
        return { track, row: Row.COMPUTE, time: Math.round(view.t0 - track.offset) };
      }
      const { track, slice } = selected;
      return { track, row: track.source.meta.series[slice.series].row, time: slice.start };
    }

    // The span at or after this moment in the next row that has one, up or down.
    async otherRow(by) {
      const { timeline } = this;
      const { track, row, time } = this.standing();
      const rows = timeline.order.flatMap((t) => t.boxes.map((box) => ({ track: t, row: box.row })));
      const at = rows.findIndex((r) => r.track === track && r.row === row);
      const moment = time + track.offset;
      for (let to = at + by; to >= 0 && to < rows.length; to += by) {
        const next = rows[to];
        const { source, rank, offset } = next.track;
        const from = Math.round(moment - offset);
        const found = await source.neighbour(rank, next.row, from - 1, true);
        const slice = found.mark || (await source.neighbour(rank, next.row, from, false)).mark;
        if (slice) {
          this.goTo(next.track, slice, true);
          return;
        }
      }
      timeline.say(by > 0 ? "this is the last row" : "this is the first row");
    }

    // Select a slice and bring it into view; `gently` keeps the zoom where it fits.
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

    async searchKey(event) {
      event.stopPropagation();
      if (event.key === "Escape") {
        this.search.value = "";
        this.found.textContent = "";
        this.timeline.stage.focus();
      }
      if (event.key !== "Enter") return;
      event.preventDefault();
      const { timeline } = this;
      const text = this.search.value.trim().toLowerCase();
      if (!text) return;
      for (const source of timeline.sources) {
        const units = source.meta.units
          .map((name, unit) => [name.toLowerCase(), unit])
          .filter(([name]) => name.includes(text)).map(([, unit]) => unit);
        // A whole name wins over the many that contain it: layers.1 over layers.10.
        const exact = source.meta.units.findIndex((n) =>
          n.toLowerCase() === text || n.toLowerCase().endsWith(`.${text}`));
        const wanted = exact >= 0 ? [exact] : units;
        if (!wanted.length) continue;
        const ranks = source.meta.ranks.map((r) => r.rank);
        const offset = source.offset || 0;
        const at = Math.round(this.from(!event.shiftKey) - offset);
        const { mark: slice, total } = await source.find(ranks, wanted, at, !event.shiftKey);
        this.found.textContent = `${total} spans`;
        if (slice) this.goTo(timeline.track(slice.rank, source.id), slice, true);
        return;
      }
      this.found.textContent = "none";
    }

    // -- the keys

    keydown(event) {
      const { timeline } = this;
      const target = event.target;
      if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable) return;
      if (!timeline.element.isConnected || !timeline.tracks.length) return;
      const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
      if ((event.ctrlKey || event.metaKey) && key === "p") {
        event.preventDefault();
        this.search.focus();
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

    acts() {
      const { timeline } = this;
      const centre = this.mouse && this.mouse.x > root.fsdpLayout.GUTTER ? this.mouse.time : undefined;
      const scroll = (by) => {
        const most = Math.max(0, timeline.content - (timeline.bottom - timeline.top));
        timeline.scroll = Math.min(most, Math.max(0, timeline.scroll + by));
        timeline.redraw();
      };
      const track = (this.mouse && this.mouse.track) || timeline.focus;
      const change = (name) => {
        track[name] = !track[name];
        timeline.layout();
        timeline.redraw();
        this.viewChanged();
      };
      return {
        "+": () => this.zoom(0.7, centre), "=": () => this.zoom(0.7, centre),
        "-": () => this.zoom(1.4, centre), 0: () => timeline.fit(),
        ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1),
        ArrowUp: () => scroll(-60), ArrowDown: () => scroll(60),
        f: () => this.fitOrAll(), r: () => this.selectionToArea(),
        n: () => this.nextExposed(true), p: () => this.nextExposed(false),
        ".": () => this.neighbour(true), ",": () => this.neighbour(false),
        "/": () => this.search.focus(), c: () => this.toggleCondensed(),
        "Shift+ArrowUp": () => this.otherRow(-1), "Shift+ArrowDown": () => this.otherRow(1),
        m: () => timeline.bookmarks.toggle(), "Shift+m": () => timeline.bookmarks.clear(),
        "[": () => timeline.bookmarks.go(false), "]": () => timeline.bookmarks.go(true),
        k: () => change("pinned"), e: () => change("collapsed"),
        q: () => timeline.panel.toggle(), "?": () => this.help(),
        Escape: () => (this.dialog ? this.help() : this.clear()),
      };
    }

    fitOrAll() {
      const { timeline } = this;
      const { selected, view } = timeline;
      const width = view.t1 - view.t0;
      const fits = selected && selected.slice.end - selected.slice.start > width * 0.2;
      if (this.fitted && (fits || timeline.area)) {
        timeline.fit();
        this.fitted = false;
      } else {
        this.fitSelected();
        this.fitted = true;
      }
    }

    selectionToArea() {
      const { timeline } = this;
      if (!timeline.selected) return;
      const { slice, track } = timeline.selected;
      timeline.area = { t0: slice.start + track.offset, t1: slice.end + track.offset };
      timeline.panel.showArea();
      timeline.redrawOver();
    }

    // A held key moves every frame, by time and not by how often the keyboard repeats.
    hold(key) {
      const idle = this.held.size === 0;
      this.held.add(key);
      if (!idle) return;
      let before = performance.now();
      const centre = this.mouse && this.mouse.x > root.fsdpLayout.GUTTER ? this.mouse.x : undefined;
      const frame = (now) => {
        if (!this.held.size || this.timeline.gone) return;
        const ticks = Math.min(4, Math.max(0.5, (now - before) / 16.7));
        before = now;
        for (const held of this.held) {
          const [factor, share] = HELD[held];
          if (factor !== 1) {
            this.zoom(Math.pow(factor, ticks), centre === undefined ? undefined : this.timeline.time(centre));
          }
          if (share) this.pan(share * ticks);
        }
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    }

    // -- the address: a view that can be sent

    viewChanged() {
      clearTimeout(this.viewTimer);
      this.viewTimer = setTimeout(() => this.remember(), 150);
    }

    remember() {
      const { timeline } = this;
      const { view, selected } = timeline;
      const state = { t0: Math.round(view.t0), t1: Math.round(view.t1) };
      if (timeline.options.onView) timeline.options.onView(state);
      if (!timeline.options.urlState) return;
      const query = new URLSearchParams(root.location.search);
      const set = (name, value) => (value ? query.set(name, value) : query.delete(name));
      query.set("t0", state.t0);
      query.set("t1", state.t1);
      set("sel", selected && [selected.track.key, selected.slice.series, selected.slice.span].join("|"));
      set("pin", timeline.tracks.filter((t) => t.pinned).map((t) => t.key).join(","));
      set("marks", timeline.bookmarks.text());
      set("ranks", timeline.condensed ? "condensed" : "");
      root.history.replaceState(root.history.state, "", `?${query}${root.location.hash}`);
    }

    restore() {
      const { timeline } = this;
      if (!timeline.options.urlState) return;
      const query = new URLSearchParams(root.location.search);
      const pins = (query.get("pin") || "").split(",");
      timeline.tracks.forEach((track) => { track.pinned = pins.includes(track.key); });
      timeline.bookmarks.restore(query.get("marks"));
      if (query.has("ranks")) timeline.condensed = query.get("ranks") === "condensed";
      timeline.layout();
      const [t0, t1] = [Number(query.get("t0")), Number(query.get("t1"))];
      if (query.has("t0") && t1 > t0) timeline.setView(t0, t1);
      this.restoreSelected(query);
    }

    async restoreSelected(query) {
      const { timeline } = this;
      const parts = (query.get("sel") || "").split("|");
      if (parts.length < 4) return;
      const [series, span] = parts.slice(-2).map(Number);
      const track = timeline.tracks.find((t) => t.key === parts.slice(0, -2).join("|"));
      if (!track || !Number.isInteger(series) || !Number.isInteger(span)) return;
      try {
        const details = await track.source.details(track.rank, series, span);
        const slice = { rank: track.rank, series, span, start: details.start, end: details.end, unit: -1 };
        timeline.selected = { track, slice, details };
        timeline.reveal(track);
        timeline.panel.showSpan();
      } catch (error) {
        timeline.say(error.message);
      }
    }
  }

  root.FsdpControls = FsdpControls;
})(window);
