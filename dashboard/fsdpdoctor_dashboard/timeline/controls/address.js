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
    }

    destroy() {
      clearTimeout(this.timer);
    }

    viewChanged() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.remember(), QUIET_MS);
    }

    remember() {
      const { timeline } = this;
      const { view, selected } = timeline;
      const state = { t0: Math.round(view.t0), t1: Math.round(view.t1) };
      if (timeline.options.onView) timeline.options.onView(state);
      if (!timeline.options.urlState) return;
      const query = new URLSearchParams(root.location.search);
      /**
       * @param {string} name
       * @param {string | null} value
       */
      const set = (name, value) => (value ? query.set(name, value) : query.delete(name));
      query.set("t0", String(state.t0));
      query.set("t1", String(state.t1));
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
      timeline.placeTracks();
      const [t0, t1] = [Number(query.get("t0")), Number(query.get("t1"))];
      if (query.has("t0") && t1 > t0) timeline.setView(t0, t1);
      this.restoreSelected(query.get("sel") || "");
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
