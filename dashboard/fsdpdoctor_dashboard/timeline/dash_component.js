// The timeline as a Dash component: `window.fsdpdoctor_dashboard.Timeline`.
// Dash gives React; everything else is FsdpTimeline.
(function (root) {
  "use strict";
  const React = root.React;

  /** @param {TimelineProps} props */
  function Timeline(props) {
    // React puts the element there before it runs an effect.
    const place = React.useRef(/** @type {HTMLElement} */ (/** @type {unknown} */ (null)));
    const made = React.useRef(/** @type {Timeline | null} */ (null));
    const sources = JSON.stringify(props.runs || []);

    React.useEffect(() => {
      // The page may have painted a timeline before Dash was there: take that one over.
      const painted = root.fsdpFirstPaint && props.urlState
        && root.fsdpFirstPaint.take(props.runs, place.current);
      /**
       * @param {string} name
       * @returns {(value: unknown) => void}
       */
      const set = (name) => (value) => props.setProps && props.setProps({ [name]: value });
      const options = {
        theme: props.theme || "light", urlState: props.urlState, perfetto: props.perfetto,
        start: props.start,
        onView: set("view"), onSelect: set("selected"), onArea: set("area"),
      };
      let timeline = painted;
      if (timeline) Object.assign(timeline.options, options);
      else {
        const list = (props.runs || []).map((run) => {
          const source = new root.fsdpDataSource.ServerSource(props.base, run.id);
          source.offset = run.offset || 0;
          source.only = run.ranks;
          return source;
        });
        timeline = new root.FsdpTimeline(place.current, Object.assign(options, { sources: list }));
      }
      made.current = timeline;
      root.fsdpTimeline = timeline; // for the console, and for tests
      return () => {
        timeline.destroy();
        made.current = null;
      };
    }, [sources, props.base]);

    React.useEffect(() => {
      if (made.current && props.theme) made.current.setTheme(props.theme);
    }, [props.theme]);

    React.useEffect(() => {
      const timeline = made.current, jump = props.jump;
      if (!timeline || !jump) return;
      timeline.ready.then(() => {
        timeline.jump(jump.t0, jump.t1, timeline.track(jump.rank, jump.run));
      });
    }, [props.jump]);

    return React.createElement("div", { id: props.id, ref: place, className: "fd-host" });
  }

  Timeline.defaultProps = { runs: [], theme: "light", base: "/", urlState: true };
  root.fsdpdoctor_dashboard = Object.assign(root.fsdpdoctor_dashboard || {}, { Timeline });
})(window);
