// A run that is being written: asked every now and then whether there is more of it.
(function (root) {
  "use strict";
  if (root.FsdpFollower) return;
  const FOLLOW_MS = 2000;

  class FsdpFollower {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      this.timer = 0;
    }

    start() {
      this.timer = setTimeout(async () => {
        if (this.timeline.gone) return;
        if (await this.ask() && !this.timeline.gone) this.start();
      }, FOLLOW_MS);
    }

    stop() {
      clearTimeout(this.timer);
    }

    // Whether there may be more later.
    async ask() {
      const { timeline } = this;
      let live = false;
      for (const source of timeline.sources) {
        if (!source.revision) continue;
        try {
          const found = await source.revision();
          if (found.loading || found.live) live = true;
          if (found.revision > source.meta.revision) await this.refresh();
        } catch (error) {
          live = true; // it may answer again
          timeline.sayError(error);
        }
      }
      return live;
    }

    // The same ranks, more time. The view follows the run's end where it stood at the
    // end before.
    async refresh() {
      const { timeline } = this;
      const before = timeline.end;
      const { t0, t1 } = timeline.view;
      const followed = t1 >= before - (t1 - t0) * 0.02;
      await Promise.all(timeline.sources.map((source) => source.load()));
      if (timeline.gone) return;
      timeline.loader.forget();
      timeline.curves.forget();
      timeline.setSources(timeline.sources);
      if (t0 <= timeline.start && t1 >= before) timeline.fit();
      else if (followed) timeline.setView(t0 + timeline.end - before, t1 + timeline.end - before);
      else timeline.setView(t0, t1);
    }
  }

  root.FsdpFollower = FsdpFollower;
  if (typeof module !== "undefined") module.exports = { FsdpFollower };
})(window);
