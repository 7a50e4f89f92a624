// The bar above the picture: legend, search, buttons, and the list of all keys.
(function (root) {
  "use strict";
  if (root.FsdpToolbar) return;
  const { Row } = root.fsdpTiles;
  const format = root.fsdpFormat;
  const STEP_ROOM = 0.02; // of a step, on both sides of it
  const EDGE = 0.15; // of the view: a step that reaches in by less is not what is shown
  const SAVED_RANKS = 16; // up to so many go into one file, unasked
  const SEEN_PIXELS = 24; // of a span that is shown as it lies
  const WHEEL = "fsdpdoctor.wheel";

  /**
   * @param {string} name
   * @param {string} text
   */
  const isWhole = (name, text) => name === text || name.endsWith(`.${text}`);

  /**
   * The same, whatever the model.
   * @param {string} name
   * @param {string} text
   */
  const isNamed = (name, text) => isWhole(name, text) || isWhole(name.split(" of ")[0], text);

  class FsdpToolbar {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      /** @type {HTMLElement | null} */
      this.dialog = null;
      this.legend = timeline.make("div", "fd-legend", timeline.bar);
      this.tools = timeline.make("div", "fd-tools", timeline.bar);
      this.search = timeline.make("input", "fd-search", this.tools);
      this.search.type = "search";
      this.search.placeholder = "find  ( / )";
      this.search.title = "a unit, an operator or a kernel by its name; Enter goes on";
      this.search.setAttribute("aria-label", "find a unit, an operator or a kernel");
      this.found = timeline.make("span", "fd-found", this.tools);
      this.step = timeline.make("span", "fd-step", this.tools);
      this.search.addEventListener("keydown", (e) => this.searchKey(e));
      this.buttons();
    }

    buttons() {
      const { timeline } = this;
      this.button("\u2039 step", "the step before", () => this.goToStep(false));
      this.tools.append(this.step);
      this.button("step \u203a", "the next step", () => this.goToStep(true));
      this.button("Fit", "show the whole run (0)", () => timeline.fit());
      this.button("Ranks", "all ranks condensed, or in full (C)", () => this.toggleCondensed());
      this.button("PNG", "save this picture", () => this.savePng());
      if (timeline.options.perfetto) {
        this.button("Perfetto", "save a trace for ui.perfetto.dev: lanes, exposed time, its causes",
          () => this.savePerfetto());
      }
      this.button("?", "all keys", () => this.help());
    }

    /**
     * @param {string} text
     * @param {string} title
     * @param {() => unknown} act
     */
    button(text, title, act) {
      const { timeline } = this;
      const node = timeline.make("button", "fd-button", this.tools);
      node.type = "button";
      node.textContent = text;
      node.title = title;
      node.addEventListener("click", () => {
        act();
        timeline.stage.focus();
      });
    }

    // One whole step fills the picture: the one after the middle of what is shown, or the
    // one before its begin.
    /** @param {boolean} forward */
    async goToStep(forward) {
      const { timeline } = this;
      const [track] = timeline.tracks;
      if (!track) return;
      const { t0, t1 } = timeline.view;
      const middle = (t0 + t1) / 2;
      /** @param {number} time */
      const from = async (time) => (await track.source.neighbour(
        track.rank, Row.STEP, Math.round(time - track.offset), forward)).mark;
      try {
        const mark = await from(forward ? middle : t0) || (forward ? null : await from(middle));
        if (!mark) {
          timeline.say("there is no later step");
          return;
        }
        this.showStep([mark.span, mark.start, mark.end, mark.end - mark.start], track.offset);
      } catch (error) {
        timeline.sayError(error);
      }
    }

    /**
     * @param {StepBar} bar
     * @param {number} offset
     */
    showStep([step, start, end, length], offset) {
      const { timeline } = this;
      const room = (end - start) * STEP_ROOM;
      timeline.setView(start + offset - room, end + offset + room);
      timeline.say(`step ${step}: ${format.duration(length)}`);
    }

    // Which steps are in the picture, by the first run's.
    sayStep() {
      const { view, sources: [{ meta, offset }] } = this.timeline;
      const { bars, count } = meta.steps;
      const { t0, t1 } = view;
      const seen = bars.filter(([, start, end]) => {
        const inside = Math.min(t1, end + offset) - Math.max(t0, start + offset);
        return inside > EDGE * (t1 - t0) || inside > (end - start) / 2;
      });
      const first = seen[0], last = seen[seen.length - 1];
      const alone = bars.length === count;
      let words = "";
      if (first && seen.length === 1 && alone) words = `${first[0]} (${bars.indexOf(first) + 1} of ${count})`;
      else if (first && last) words = `${alone ? "" : "about "}${first[0]} - ${last[0]}`;
      if (this.step.textContent !== words) this.step.textContent = words;
    }

    toggleCondensed() {
      const { timeline } = this;
      timeline.condensed = !timeline.condensed;
      timeline.scroll = 0;
      timeline.tracksChanged();
    }

    // -- saving

    async savePng() {
      const { timeline } = this;
      const link = document.createElement("a");
      try {
        link.href = URL.createObjectURL(await timeline.png());
      } catch (error) {
        timeline.sayError(error);
        return;
      }
      link.download = "timeline.png";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }

    // All ranks of the first run in one file; of many only those that are looked at.
    savePerfetto() {
      const { timeline } = this;
      const [source] = timeline.sources;
      const every = timeline.tracks.filter((track) => track.source === source);
      const looked = every.filter((track) => track.pinned || track === timeline.focus);
      const few = every.length <= SAVED_RANKS || !looked.length;
      const ranks = few ? "" : `&ranks=${looked.map((track) => track.rank).join(",")}`;
      const link = document.createElement("a");
      link.href = timeline.options.perfetto + ranks;
      link.setAttribute("download", "");
      link.click();
      timeline.say(`saving ${few ? "all ranks" : `rank ${looked.map((t) => t.rank).join(", ")}: pin more with K`}`);
    }

    // -- the list of keys, and the one setting

    help() {
      const { timeline } = this;
      if (this.dialog) {
        this.dialog.remove();
        this.dialog = null;
        timeline.stage.focus();
        return;
      }
      const box = timeline.make("div", "fd-help", timeline.element);
      box.setAttribute("role", "dialog");
      box.setAttribute("aria-label", "keys");
      box.tabIndex = -1;
      // A click outside leaves it, as Escape does.
      root.setTimeout(() => document.addEventListener("click", (event) => {
        const outside = event.target instanceof Node && !box.contains(event.target);
        if (outside && this.dialog === box) this.help();
      }, { signal: timeline.ending.signal }), 0);
      for (const [key, what] of root.FsdpKeys.LIST) {
        timeline.make("kbd", "", box).textContent = key;
        timeline.make("span", "", box).textContent = what;
      }
      const label = timeline.make("label", "fd-setting", box);
      const check = timeline.make("input", "", label);
      check.type = "checkbox";
      check.checked = this.wheelZooms();
      check.addEventListener("change", () => {
        try { root.localStorage.setItem(WHEEL, check.checked ? "zoom" : "scroll"); } catch { /* no storage */ }
      });
      label.append(" a plain wheel zooms, and a plain drag moves");
      const close = timeline.make("button", "fd-button", box);
      close.textContent = "Close";
      close.addEventListener("click", () => this.help());
      this.dialog = box;
      box.focus();
    }

    wheelZooms() {
      try { return root.localStorage.getItem(WHEEL) === "zoom"; } catch { return false; }
    }

    // -- search

    /** @param {KeyboardEvent} event */
    async searchKey(event) {
      event.stopPropagation();
      const { timeline } = this;
      if (event.key === "Escape") {
        this.search.value = "";
        timeline.searched = null;
        timeline.openedRows.found = this.found.textContent = "";
        timeline.redraw();
        timeline.stage.focus();
      }
      if (event.key !== "Enter") return;
      event.preventDefault();
      const text = this.search.value.trim().toLowerCase();
      if (!text) return;
      try {
        this.found.textContent = await this.goTo(text, !event.shiftKey);
      } catch (error) {
        timeline.sayError(error);
      }
    }

    /**
     * A unit's name wins, but over what is opened only where it is one as it stands.
     * @param {string} text
     * @param {boolean} forward
     */
    async goTo(text, forward) {
      const { timeline } = this;
      const units = timeline.sources.flatMap((source) => source.meta.units.map((name) => name.toLowerCase()));
      const exact = units.some((name) => isNamed(name, text));
      const some = exact || (!timeline.opened.any && units.some((name) => name.includes(text)));
      timeline.openedRows.found = "";
      if (some) return this.goToUnit(text, forward);
      timeline.searched = null;
      const found = await timeline.events.search(text, forward);
      return found === "none" ? this.goToUnit(text, forward) : found;
    }

    /**
     * Go to the next span of the units that a text means; how many spans there are.
     * @param {string} text
     * @param {boolean} forward
     */
    async goToUnit(text, forward) {
      const { timeline } = this;
      for (const source of timeline.sources) {
        const wanted = unitsOf(source.meta, text);
        if (!wanted.length) continue;
        const ranks = source.meta.ranks.map((r) => r.rank);
        const at = Math.round(timeline.selection.from(forward) - source.offset);
        const found = await source.find(ranks, wanted, at, forward);
        const slice = found.mark;
        const track = slice && timeline.track(slice.rank, source.id);
        timeline.searched = { source, units: new Set(wanted) };
        if (!slice || !track) return `${found.total} spans, none ${forward ? "after" : "before"} this`;
        // What is too thin to be seen is gone to: the others are marked around it.
        const pixels = (slice.end - slice.start) / (timeline.view.t1 - timeline.view.t0) * timeline.plot;
        timeline.selection.goTo(track, slice, pixels >= SEEN_PIXELS);
        return `${found.at} of ${found.total} spans`;
      }
      timeline.searched = null;
      return "none";
    }
  }

  /**
   * A whole name wins over the many that contain it: layers.1 over layers.10. Where
   * there are several models it is one of each: "layers.1 of Actor".
   * @param {Meta} meta
   * @param {string} text
   */
  function unitsOf(meta, text) {
    const names = meta.units.map((name) => name.toLowerCase());
    const first = names.findIndex((name) => isWhole(name, text));
    if (first >= 0) return [first];
    const all = [...names.keys()];
    const exact = all.filter((unit) => isNamed(names[unit], text));
    return exact.length ? exact : all.filter((unit) => names[unit].includes(text));
  }

  root.FsdpToolbar = FsdpToolbar;
  if (typeof module !== "undefined") module.exports = { FsdpToolbar };
})(window);
