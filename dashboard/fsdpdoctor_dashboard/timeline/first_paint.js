// Paints the timeline before Dash has started. Dash's own scripts take most of a page's
// first half second; the picture needs none of them. The Dash component takes the
// finished timeline over when it is there.
(function (root) {
  "use strict";
  const script = /** @type {HTMLScriptElement} */ (document.currentScript);
  const base = script.dataset.base || "/";
  const query = new URLSearchParams(root.location.search);
  const page = root.location.pathname.slice(base.length);
  const run = query.get("run") || script.dataset.run;
  if (page !== "timeline" || !run || query.has("with")) return;

  /** @returns {Theme} */
  const preferred = () => {
    try {
      const kept = root.localStorage.getItem("fsdpdoctor.theme");
      if (kept === "dark" || kept === "light") return kept;
    } catch { /* no storage */ }
    return root.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  const theme = preferred();
  document.documentElement.dataset.theme = theme;
  const overlay = document.createElement("div");
  overlay.id = "first-paint";
  document.body.prepend(overlay);
  const host = document.createElement("div");
  overlay.appendChild(host);
  host.style.height = "100%";
  const source = new root.fsdpDataSource.ServerSource(base, run);
  const given = document.getElementById("fd-first");
  let first = null;
  if (given) {
    const content = JSON.parse(given.textContent);
    if (content.run === run) {
      const bytes = Uint8Array.from(atob(content.tiles), (c) => c.charCodeAt(0));
      first = Object.assign(content, { tiles: root.fsdpTiles.decodeTiles(bytes.buffer) });
      source.meta = content.meta;
    }
  }
  const timeline = new root.FsdpTimeline(host, {
    sources: [source], theme, urlState: true, first,
    perfetto: `${base}export/perfetto?run=${encodeURIComponent(run)}`,
  });
  root.fsdpTimeline = timeline;
  root.fsdpFirstPaint = {
    // The timeline, moved into `place`; nothing where it shows other runs.
    take(runs, place) {
      root.fsdpFirstPaint = null;
      const fits = runs && runs.length === 1 && runs[0].id === run && !timeline.gone;
      if (fits) place.appendChild(host);
      else timeline.destroy();
      overlay.remove();
      return fits ? timeline : null;
    },
  };
})(window);
