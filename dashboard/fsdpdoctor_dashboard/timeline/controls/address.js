// The view in the page's address, so that it can be sent and found again.
(function (root) {
  "use strict";
  if (root.FsdpAddress) return;
  const QUIET_MS = 150; // the view has stood still for so long

  class FsdpAddress {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      this.timer = 0;
      this.path = root.location.pathname; // no other page's address is touched
    }

    // What the tab remembers of these runs, for when their page is opened again.
    get name() {
      return `fsdpdoctor.view.${this.timeline.sources.map((source) => source.meta.id).join("|")}`;
    }

    destroy() {
      if (this.timer) this.keep(); // the view was moved a moment ago
      clearTimeout(this.timer);
    }

    viewChanged() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.remember(), QUIET_MS);
    }

    remember() {
      this.timer = 0;
      const { timeline } = this;
      this.forgetOpening();
      const state = { t0: Math.round(timeline.view.t0), t1: Math.round(timeline.view.t1) };
      if (timeline.options.onView) timeline.options.onView(state);
      this.keep();
      if (!timeline.options.urlState || root.location.pathname !== this.path) return;
      const query = new URLSearchParams(root.location.search);
      for (const [name, value] of this.state()) {
        if (value) query.set(name, value);
        else query.delete(name);
      }
      root.history.replaceState(root.history.state, "", `?${query}${root.location.hash}`);
    }

    // What was said of the first view holds for that view alone.
    forgetOpening() {
      const { timeline } = this;
      const { opening } = timeline;
      if (!opening || timeline.view.t0 === opening.t0) return;
      if (timeline.status.textContent === opening.words) timeline.say("");
      timeline.opening = null;
    }

    // What an address says of the view; what is empty it does not say.
    state() {
      const { timeline } = this;
      const { view, selected } = timeline;
      const span = selected && [selected.track.key, selected.slice.series, selected.slice.span];
      return new URLSearchParams({
        t0: String(Math.round(view.t0)),
        t1: String(Math.round(view.t1)),
        sel: span ? span.join("|") : "",
        pin: timeline.tracks.filter((track) => track.pinned).map((track) => track.key).join(","),
        marks: timeline.bookmarks.text() || "",
        ranks: timeline.condensed ? "condensed" : "",
        open: timeline.tracks.flatMap((track) => [...track.open.keys()].map((row) => `${track.key}|${row}`)).join(","),
      });
    }

    keep() {
      const { timeline } = this;
      if (!timeline.options.urlState || !timeline.tracks.length) return;
      try {
        root.sessionStorage.setItem(this.name, this.state().toString());
      } catch { /* no storage: the address has it */ }
    }

    // The address's view, else the one that was left.
    asked() {
      const query = new URLSearchParams(root.location.search);
      if (query.has("t0")) return query;
      try {
        return new URLSearchParams(root.sessionStorage.getItem(this.name) || query);
      } catch {
        return query; // no storage
      }
    }

    restore() {
      const { timeline } = this;
      if (!timeline.options.urlState) return;
      const query = this.asked();
      const pins = (query.get("pin") || "").split(",");
      timeline.tracks.forEach((track) => { track.pinned = pins.includes(track.key); });
      timeline.bookmarks.restore(query.get("marks"));
      if (query.has("ranks")) timeline.condensed = query.get("ranks") === "condensed";
      timeline.placeTracks();
      const [t0, t1] = [Number(query.get("t0")), Number(query.get("t1"))];
      if (query.has("t0") && t1 > t0) timeline.setView(t0, t1);
      this.restoreSelected(query.get("sel") || "");
      for (const text of (query.get("open") || "").split(",")) {
        const [row, ...key] = text.split("|").reverse();
        const track = timeline.tracks.find((one) => one.key === key.reverse().join("|"));
        if (track && timeline.opened.canOpen(Number(row))) timeline.opened.open(track, Number(row));
      }
    }

    /** @param {string} text */
    async restoreSelected(text) {
      const { timeline } = this;
      const parts = text.split("|");
      if (parts.length < 4) return;
      const [series, span] = parts.slice(-2).map(Number);
      const track = timeline.tracks.find((t) => t.key === parts.slice(0, -2).join("|"));
      if (!track || !Number.isInteger(series) || !Number.isInteger(span)) return;
      try {
        const details = await track.source.details(track.rank, series, span);
        const { start, end } = details;
        if (typeof start !== "number" || typeof end !== "number") return;
        const slice = { rank: track.rank, series, span, start, end, unit: -1 };
        timeline.selected = { track, slice, details };
        timeline.reveal(track);
        timeline.panel.showSpan(track, slice, details);
      } catch (error) {
        timeline.sayError(error);
      }
    }
  }

  root.FsdpAddress = FsdpAddress;
  if (typeof module !== "undefined") module.exports = { FsdpAddress };
})(window);
