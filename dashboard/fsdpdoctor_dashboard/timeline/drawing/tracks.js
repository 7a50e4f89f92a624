// The tracks of a timeline, one for each rank of each source: which there are, where
// their rows lie, and which tiles the shown view needs of them.
(function (root) {
  "use strict";
  if (root.fsdpTracks) return;
  const { Row } = root.fsdpTiles;
  const { TileLoader } = root.fsdpLoader;
  const { HEIGHT, LABEL, NO_ROW } = root.fsdpLayout;
  const GAP = 3;
  const COLLAPSED = 18;
  const LOWEST = 56; // of a rank in full: room for what stands beside it
  const TALLEST = 34; // of a condensed line, where there is room
  const MOST_EXPOSED = 1.5; // its ribbon has one line of words, whatever the room
  const GROWTH_PASSES = 3;
  const LINE = 12, WORDS = 16; // of an opened lane: a row of events, and what is said instead
  const MOST_GROWTH = 5; // of rows in full, where a window has more room than they need

  /**
   * Each source may be shifted, so that two runs or a run and its simulation start
   * together: a track shows the source's time t at t + offset. What was collapsed or
   * pinned before stays so.
   * @param {DataSource[]} sources
   * @param {Track[]} before
   * @returns {Track[]}
   */
  function tracksOf(sources, before) {
    const kept = new Map(before.map((track) => [track.key, track]));
    const tracks = [];
    for (const source of sources) {
      for (const rank of source.meta.ranks) {
        if (source.only && !source.only.includes(rank.rank)) continue;
        const key = `${source.id}|${rank.rank}`;
        const old = kept.get(key);
        tracks.push({
          key, source, rank: rank.rank, info: rank, offset: source.offset,
          label: labelOf(source, rank.rank, sources.length > 1),
          rows: rank.rows.filter((row) => HEIGHT[row] !== undefined),
          collapsed: old ? old.collapsed : false, pinned: old ? old.pinned : false,
          small: false, y: 0, height: 0, boxes: [], level: 0, indices: null,
          open: old ? old.open : new Map(),
        });
      }
    }
    // Of two runs, the same ranks stand under each other; ranks that were named stay
    // in the order in which they were.
    if (sources.length > 1 && !sources.some((s) => s.only)) tracks.sort((a, b) => a.rank - b.rank);
    return tracks;
  }

  /**
   * A simulated run has one rank, whose number says nothing.
   * @param {DataSource} source
   * @param {number} rank
   * @param {boolean} many
   */
  function labelOf(source, rank, many) {
    const { meta } = source;
    if (!many) return `rank ${rank}`;
    return meta.label === meta.id ? `${meta.label} rank ${rank}` : meta.label;
  }

  /**
   * Give every track its place; their order on the screen, and how high all are together.
   * @param {Track[]} tracks
   * @param {boolean} condensed
   * @param {number} room
   */
  function placeTracks(tracks, condensed, room) {
    const order = [...tracks].sort((a, b) => Number(b.pinned) - Number(a.pinned));
    const line = Math.max(7, Math.min(TALLEST, Math.floor(room / Math.max(1, order.length)) - 1));
    const fits = place(order, condensed, line, 1);
    if (fits >= room || order.every((track) => track.small)) return { order, content: fits };
    // Gaps and lowest heights do not grow: what they leave is shared out once more.
    let growth = 1, content = fits;
    for (let pass = 0; pass < GROWTH_PASSES; pass++) {
      const next = Math.min(MOST_GROWTH, Math.floor((20 * growth * room) / Math.max(1, content)) / 20);
      if (next <= growth) break;
      growth = next;
      content = place(order, condensed, line, growth);
    }
    return { order, content };
  }

  /**
   * @param {Track[]} order
   * @param {boolean} condensed
   * @param {number} line
   * @param {number} growth of the rows of tracks in full
   */
  function place(order, condensed, line, growth) {
    let y = 0;
    for (const track of order) {
      track.small = (condensed && !track.pinned) || track.collapsed;
      track.y = y;
      y = track.small ? placeSmall(track, y, condensed ? line : COLLAPSED) : placeTall(track, y, growth);
      track.height = y - track.y;
    }
    return y;
  }

  /**
   * @param {Track} track
   * @param {number} y
   * @param {number} height
   */
  function placeSmall(track, y, height) {
    const ribbon = Math.max(2, Math.round(height * 0.4));
    track.boxes = [
      { row: Row.EXPOSED, y, height: ribbon, label: "" },
      { row: Row.COMPUTE, y: y + ribbon, height: height - ribbon - 1, label: "" },
    ];
    return y + height + 1;
  }

  /**
   * @param {Track} track
   * @param {number} from
   * @param {number} growth
   */
  function placeTall(track, from, growth) {
    let y = from + 4;
    let labelled = false;
    track.boxes = [];
    for (const row of [Row.EXPOSED, ...track.rows.filter((r) => r !== Row.EXPOSED)]) {
      const window = row >= Row.UNSHARDED_ROOT;
      const label = LABEL[row] || (window && !labelled ? "unsharded" : "");
      const height = Math.floor(HEIGHT[row] * (row === Row.EXPOSED ? Math.min(growth, MOST_EXPOSED) : growth));
      track.boxes.push({ row, y, height, label });
      labelled = labelled || window;
      y += height + (window ? 1 : GAP);
      const lane = track.open.get(row);
      if (lane) y = placeLane(track, lane, y);
    }
    return Math.max(y + 5, from + LOWEST);
  }

  /**
   * What an opened lane has under it.
   * @param {Track} track
   * @param {OpenLane} lane
   * @param {number} y
   */
  function placeLane(track, lane, y) {
    for (const line of lane.lines) {
      track.boxes.push({ row: NO_ROW, y, height: LINE, label: line.label, lane, line });
      y += LINE + 1;
    }
    if (lane.words || lane.more || !lane.lines.length) {
      track.boxes.push({ row: NO_ROW, y, height: WORDS, label: "", lane });
      y += WORDS + 1;
    }
    return y + GAP;
  }

  /**
   * The tiles that a view needs, of the visible tracks and of the first, whose steps the
   * rulers show. Each track is told which they are.
   * @param {View} view
   * @param {Track[]} visible
   * @param {Track} rulers
   * @returns {Want[]}
   */
  function wantedTiles(view, visible, rulers) {
    const wants = [];
    for (const track of new Set([...visible, rulers])) {
      const meta = track.source.meta;
      // A condensed line has fewer pixels to be right about: one level coarser.
      const crowd = track.small && visible.length > 16 ? 1 : 0;
      const level = Math.min(meta.level, TileLoader.levelOf(view.t1 - view.t0, meta) + crowd);
      const size = Math.pow(2, level);
      const first = Math.max(0, Math.floor((view.t0 - track.offset) / size));
      const last = Math.min(Math.floor(meta.end / size), Math.floor((view.t1 - track.offset) / size));
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

  const api = { tracksOf, placeTracks, wantedTiles };
  root.fsdpTracks = api;
  if (typeof module !== "undefined") module.exports = api;
})(window);
