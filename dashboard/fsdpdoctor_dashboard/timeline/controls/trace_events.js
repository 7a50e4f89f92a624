// A single operator, call or kernel of an opened lane: pointed at, selected, searched for,
// and the ways from it to others. Its words stand where a span's do.
(function (root) {
  "use strict";
  if (root.FsdpTraceEvents) return;
  const format = root.fsdpFormat;
  const SEEN_PIXELS = 24; // of an event that is shown as it lies
  const ASK_AGAIN_MS = 300;
  /** @type {Record<number, string>} */
  const KINDS = { 1: "kernel", 2: "memcpy", 3: "memset", 4: "call", 5: "annotation", 6: "operator" };
  /** @type {Record<string, string>} */
  const NO_LAUNCH = {
    kernel: "The trace has no call of its correlation.", memcpy: "The trace has no call of its correlation.",
    memset: "The trace has no call of its correlation.",
  };

  class FsdpTraceEvents {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      /** @type {SelectedEvent | null} */
      this.selected = null;
      /** @type {{ asked: string, at: number } | null} the hit that was gone to last */
      this.walked = null;
    }

    // -- with the mouse

    /** @param {Place} place */
    hover(place) {
      const { timeline } = this;
      const { track, box } = place;
      const line = box && box.line, lane = box && box.lane;
      const at = line ? timeline.openedRows.at(place, line) : -1;
      if (!track || !line || !lane || at < 0) {
        timeline.hideTip();
        return;
      }
      const start = line.start[at], end = line.end[at];
      const many = line.count[at] > 1;
      timeline.panel.showTip(place, [
        [many ? `${line.count[at]} events` : lane.names[line.name[at]], "fd-tip-title"],
        [`${format.duration(end - start)}, ${timeline.panel.stretch(start, end)}`],
        [many ? `${track.label}: zoom in to tell them apart` : `${KINDS[line.cat[at]]}, ${track.label}`, "fd-faint"],
      ]);
    }

    /** @param {Place} place */
    click(place) {
      const { timeline } = this;
      const { track, box } = place;
      const line = box && box.line;
      const at = line ? timeline.openedRows.at(place, line) : -1;
      if (!track || !line || at < 0) timeline.selection.clear();
      else if (line.count[at] > 1) timeline.say(`${line.count[at]} events here: zoom in to select one`);
      else {
        this.select(track, { event: line.event[at], start: line.start[at], end: line.end[at], key: line.key, kind: "" });
      }
    }

    // -- one event

    /**
     * @param {Track} track
     * @param {TraceEvent} event
     */
    async select(track, event) {
      const { timeline } = this;
      /** @type {SelectedEvent} */
      const selected = { track, event, details: null };
      timeline.selected = timeline.area = null;
      this.selected = selected;
      timeline.focus = track;
      timeline.redraw();
      timeline.address.viewChanged();
      const { source } = track;
      if (!source.event) return;
      try {
        const details = await source.event(track.rank, event.event);
        if (this.selected !== selected || details.why || details.reading) return;
        selected.details = details;
        selected.event = details;
        this.show(selected, details);
        timeline.redrawOver();
      } catch (error) {
        timeline.sayError(error);
      }
    }

    /**
     * @param {SelectedEvent} selected
     * @param {EventDetails} details
     */
    show({ track }, details) {
      const { timeline } = this;
      const { panel } = timeline;
      panel.box.textContent = "";
      panel.box.hidden = false;
      const head = panel.add("div", "fd-head");
      panel.add("strong", "", details.title, head);
      panel.add("span", "", format.duration(details.end - details.start), head);
      panel.add("span", "fd-faint",
        `${details.kind}, ${track.label}, ${details.place}, ${panel.stretch(details.start, details.end)}`, head);
      const columns = panel.add("div", "fd-columns");
      const launches = details.kind === "call";
      if (details.launch.length) this.ways(columns, launches ? "Launched" : "Launched by", track, details, details.launch);
      else if (NO_LAUNCH[details.kind]) panel.add("p", "fd-hint", NO_LAUNCH[details.kind], columns);
      if (details.within.length) this.ways(columns, "Within", track, details, details.within);
      if (details.arguments.length) panel.facts(columns, details.arguments, "Arguments");
      timeline.say(`${details.title}, ${format.duration(details.end - details.start)}, ${track.label}`);
    }

    /**
     * Events that a click goes to.
     * @param {HTMLElement} parent
     * @param {string} title
     * @param {Track} track
     * @param {EventDetails} from
     * @param {TraceEventAt[]} events
     */
    ways(parent, title, track, from, events) {
      const { timeline } = this;
      const table = timeline.panel.table(parent, title);
      for (const event of events) {
        const after = event.start - from.start;
        const line = timeline.panel.row(table, ["", format.duration(event.end - event.start),
          `${after < 0 ? "-" : "+"}${format.duration(Math.abs(after))}`]);
        line.title = "duration, and when it began against this event";
        const way = timeline.make("button", "fd-way", line.cells[0]);
        way.type = "button";
        way.textContent = event.title;
        way.addEventListener("click", () => this.goTo(track, event));
      }
    }

    /**
     * Select an event and bring it into view, its lane opened.
     * @param {Track} track
     * @param {TraceEventAt} event
     */
    async goTo(track, event) {
      const { timeline } = this;
      const row = event.lanes.find((one) => track.open.has(one)) ?? event.lanes[0];
      if (row === undefined) {
        timeline.say(`${event.title} lies on a thread or stream that no lane shows`);
        return;
      }
      const start = event.start + track.offset, end = event.end + track.offset;
      const { t0, t1 } = timeline.view;
      const pixels = ((end - start) / (t1 - t0)) * timeline.plot;
      if (pixels < SEEN_PIXELS || end - start > (t1 - t0) * 0.8) timeline.jump(start, end, track);
      else if (start < t0 || end > t1) {
        const half = (t1 - t0) / 2;
        timeline.setView((start + end) / 2 - half, (start + end) / 2 + half);
      }
      await timeline.opened.open(track, row);
      this.scrollTo(track, event.key);
      await this.select(track, event);
    }

    /**
     * @param {Track} track
     * @param {string} key
     */
    scrollTo(track, key) {
      const { timeline } = this;
      const box = track.boxes.find((one) => one.line && one.line.key === key);
      if (!box) return;
      const y = timeline.screenY(box.y);
      if (y < timeline.top) timeline.scrollBy(y - timeline.top - box.height);
      else if (y + box.height > timeline.bottom) timeline.scrollBy(y + 2 * box.height - timeline.bottom);
    }

    /** @param {boolean} forward */
    async beside(forward) {
      const { timeline, selected } = this;
      if (!selected || !selected.track.source.beside) return;
      const { track, event } = selected;
      try {
        const found = await track.source.beside?.(track.rank, event.event, forward);
        if (found && found.event) await this.goTo(track, found.event);
        else timeline.say(forward ? "no event after this in its row" : "no event before this in its row");
      } catch (error) {
        timeline.sayError(error);
      }
    }

    // To what launched the selected event, or to what it launched.
    launch() {
      const { timeline, selected } = this;
      const details = selected && selected.details;
      if (!selected || !details) timeline.say("select an operator, a call or a kernel of an opened lane first");
      else if (details.launch.length) this.goTo(selected.track, details.launch[0]);
      else timeline.say(`the trace links nothing to ${details.title}`);
    }

    // -- search

    /**
     * Go to the next event whose name holds a text; its place among all, in words.
     * @param {string} text
     * @param {boolean} forward
     * @returns {Promise<string>}
     */
    async search(text, forward) {
      const { timeline } = this;
      const { focus } = timeline;
      const source = focus && focus.source;
      if (!source || !source.findEvent) return "none";
      const mine = timeline.order.filter((track) => track.source === source);
      const opened = mine.filter((track) => track.open.size);
      const ranks = (opened.length ? opened : [focus]).map((track) => track.rank);
      const asked = `${source.id}|${ranks}|${text}`;
      const before = this.walked && this.walked.asked === asked ? this.walked.at : 0;
      const at = before ? before + (forward ? 1 : -1) : 0;
      if (before && at < 1) return "this is the first";
      const found = await this.answered(source, ranks, text, at, forward);
      timeline.openedRows.found = found.total ? text : "";
      if (found.why) return found.why;
      if (!found.event) {
        timeline.redraw();
        return found.total ? `${found.total} events, none ${forward ? "after" : "before"} this` : "none";
      }
      this.walked = { asked, at: found.at };
      const track = timeline.track(found.event.rank, source.id);
      if (track) await this.goTo(track, found.event);
      return `${found.at} of ${found.total} events`;
    }

    /**
     * @param {DataSource} source
     * @param {number[]} ranks
     * @param {string} text
     * @param {number} at
     * @param {boolean} forward
     * @returns {Promise<FoundEvent>}
     */
    async answered(source, ranks, text, at, forward) {
      const { timeline } = this;
      const time = Math.round(timeline.selection.from(forward));
      for (;;) {
        const found = await /** @type {NonNullable<DataSource["findEvent"]>} */ (source.findEvent)(
          ranks, text, at, time - source.offset, forward);
        if (!found.reading || timeline.gone) return found;
        timeline.say(found.reading);
        await new Promise((resolve) => { setTimeout(resolve, ASK_AGAIN_MS); });
      }
    }
  }

  root.FsdpTraceEvents = FsdpTraceEvents;
  if (typeof module !== "undefined") module.exports = { FsdpTraceEvents };
})(window);
