"""The timeline inside one HTML file: the same component, its data in the page.

Needs neither Dash nor a server, and the page loads nothing: it opens from disk.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import duration
from fsdpdoctor.renderers.html import Addition
from fsdpdoctor.report import Report
from fsdpdoctor.run import Run
from fsdpdoctor_dashboard.data.finding_marks import finding_marks
from fsdpdoctor_dashboard.data.kept.run_overview import whole_run
from fsdpdoctor_dashboard.data.queries import MEMORY_CURVES
from fsdpdoctor_dashboard.data.rank_tracks import (
    Stretch,
    shown_places,
    stretches_of,
    tracks_of,
)
from fsdpdoctor_dashboard.data.run_registry import Entry, Picture, meta_of
from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.data.slices import RankNames, Track
from fsdpdoctor_dashboard.data.store import Series, Store, build_store
from fsdpdoctor_dashboard.data.tiles import whole_level
from fsdpdoctor_dashboard.server.page_part import MARK_LIMIT, part_of
from fsdpdoctor_dashboard.timeline.scripts import SCRIPTS, script, style
from fsdpdoctor_dashboard.timeline.settings import settings_script

NOWHERE: Mapping[int, Sequence[Stretch]] = MappingProxyType({})
MOST_LIT = 200
"""Stretches that a finding lights up; the longest, of more."""
NOT_SAID = -1
"""In the page's columns. None of them can be negative."""
SAMPLE_LIMIT = 4_000
"""Memory samples of a rank: twice as many as a wide screen has pixels."""

START = """(async () => {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const page = read("fd-data");
  const host = document.getElementById("fd-timeline");
  const columns = await fsdpLocalSource.unpackColumns(page.columns, page.layout);
  const source = new fsdpLocalSource.LocalSource(page.meta, columns, page.memory);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => (dark.matches ? "dark" : "light");
  const timeline = new FsdpTimeline(host, { sources: [source], theme: theme() });
  dark.addEventListener("change", () => timeline.setTheme(theme()));
  window.fsdpTimeline = timeline;
  document.addEventListener("click", async ({ target }) => {
    const jump = target.closest("[data-jump]"), copy = target.closest("[data-copy]");
    if (jump) {
      const [rank, t0, t1] = jump.dataset.jump.split(",").map(Number);
      host.scrollIntoView({ block: "start" });
      timeline.jump(t0, t1, timeline.track(rank));
      timeline.selection.light(source, page.lit[jump.dataset.jump] || []);
    }
    if (target.closest("[data-picture]")) savePicture();
    if (!copy) return;
    const code = copy.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // ready for Ctrl+C
    }
  });
  // The shared picture, as other programs take it.
  async function savePicture() {
    const drawn = document.querySelector(".card img");
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: drawn.naturalWidth, height: drawn.naturalHeight });
    canvas.getContext("2d").drawImage(drawn, 0, 0);
    const link = document.createElement("a");
    link.href = canvas.toDataURL("image/png");
    link.download = "card.png";
    link.click();
  }
  const PAPER = 690; // pixels across an A4 page inside its margins
  addEventListener("beforeprint", () => {
    const { clientWidth: width, clientHeight: height } = host;
    timeline.setTheme("light");
    Object.assign(host.style, { width: `${width}px`, height: `${height}px` });
    host.style.zoom = Math.min(1, PAPER / width);
  });
  addEventListener("afterprint", () => {
    Object.assign(host.style, { width: "", height: "", zoom: "" });
    timeline.setTheme(theme());
  });
})();"""

PAGE_STYLE = """
#fd-timeline { height: 60vh; min-height: 480px; scroll-margin-top: 8px; }
@media print { #fd-timeline { break-inside: avoid; } .fd-tools { display: none; } }
"""


def timeline_page(
    store: Store,
    meta: dict[str, Any],
    *,
    limit: int | None = MARK_LIMIT,
    lit: Mapping[int, Sequence[Stretch]] = NOWHERE,
) -> Addition:
    """The timeline of a run, or of as many of its steps, and ranks, as `limit` marks
    hold.

    `meta` is what the server's `api/meta` says of the run; `lit` is by finding its
    first place, and after it all that it is about.
    """
    wanted = [stretches[0].rank for stretches in lit.values()]
    shown = store if limit is None else part_of(store, limit, wanted)
    ranks = {*shown.ranks}
    jumps = {
        at: ",".join(map(str, stretches[0]))
        for at, stretches in lit.items()
        if stretches[0].start < shown.end and stretches[0].rank in ranks
    }
    lights = {
        jump: [stretch for stretch in lit[at][1:] if stretch[0] in ranks]
        for at, jump in jumps.items()
    }
    scripts = [settings_script(), *map(script, SCRIPTS), START]
    data = _data(shown, meta, lights)
    body = [
        '<div id="fd-timeline"></div>',
        f'<script type="application/json" id="fd-data">{data}</script>',
        *(f"<script>{text}</script>" for text in scripts),
    ]
    return Addition(
        title="Timeline",
        note=_note(store, shown),
        style=style() + PAGE_STYLE,
        body="\n".join(body),
        policy=policy_of(scripts),
        jumps=jumps,
    )


def policy_of(scripts: Iterable[str]) -> str:
    """What a page may do: run these scripts, and load nothing."""
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in scripts)
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; "
        "img-src data: blob:"
    )


def timeline_of(
    run: Run, measures: Measures, report: Report, *, limit: int | None
) -> Addition:
    """The same of a run that no server has open."""
    return page_of(measures, store_of(run, measures), report, limit=limit)


Words = Callable[[str], str]
"""What is written in a name's place."""


def store_of(run: Run, measures: Measures, words: Words | None = None) -> Store:
    """A run's timeline, with `words` in the place of its names."""
    tracks = tracks_of(run, measures)
    if words is None:
        return build_store(tracks, run.header.run_id)
    return build_store((_renamed(track, words) for track in tracks), "shared")


OURS = re.compile(r"(FSDP|nccl|gloo|aten::|c10d|all_|reduce_|gather|broadcast|barrier)")
"""How names begin that torch gives, and nobody's script."""


def _renamed(track: Track, words: Words) -> Track:
    known = track.names
    names = [
        words(name) if OURS.match(name) else f"name {at}"
        for at, name in enumerate(known.names)
    ]
    groups = [f"group {at}" for at in range(len(known.groups))]
    units = tuple(map(words, known.units))
    return replace(
        track,
        names=RankNames(
            units=units,
            recorded=known.in_record,  # no page holds them
            groups=tuple(groups),
            names=tuple(names),
        ),
    )


def page_of(
    measures: Measures, store: Store, report: Report, *, limit: int | None
) -> Addition:
    """A timeline in a page, and where findings lie on it."""
    entry = Entry(id=store.fingerprint, path=Path(store.fingerprint))
    lit: dict[int, Sequence[Stretch]] = {}
    for at, row in enumerate(report.findings):
        places = stretches_of(measures, store, shown_places(measures, row)[:1])
        if places:
            lit[at] = [*places, *finding_marks(measures, store, row, MOST_LIT)]
    meta = meta_of(Picture(entry=entry, store=store))
    return timeline_page(store, meta, limit=limit, lit=lit)


def _note(store: Store, shown: Store) -> str:
    if shown is store:
        return f"The whole run, {duration(store.end)}. Press ? in it for all keys."
    shorter = shown.end < store.end
    some = len(shown.ranks) < len(store.ranks)
    part = f"The first {duration(shown.end)} of {duration(store.end)}"
    ranks = f"{len(shown.ranks):,} of {len(store.ranks):,} ranks"
    held = part if not some else f"{part}, {ranks}" if shorter else ranks.capitalize()
    which = ", those that findings lead to among them" if some else ""
    return (
        f"{held}{which}: --timeline full puts all of it in. Press ? in it for all keys."
    )


def _sha256(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return base64.b64encode(digest).decode()


def _data(
    store: Store, meta: dict[str, Any], lit: Mapping[str, Sequence[Stretch]]
) -> str:
    layout, planes = [], []
    for rank in store.ranks:
        for series in store.series(rank):
            part, content = _packed(series)
            more, details = _extra(store, series)
            layout.append(part | more)
            planes += [content, details]
    packed = zlib.compress(b"".join(planes), 9)
    shown_ranks = {*store.ranks}
    page = {
        "meta": {
            **meta,
            "ranks": [r for r in meta["ranks"] if r["rank"] in shown_ranks],
            "live": False,
            "end": store.end,
            "level": whole_level(store),
            **whole_run(store),
        },
        "layout": layout,
        "columns": base64.b64encode(packed).decode(),
        "memory": {rank: _curve(store, rank) for rank in store.ranks},
        "lit": lit,
    }
    # `<` could end the script element, whatever a unit is called.
    return json.dumps(page, separators=(",", ":")).replace("<", "\\u003c")


def _packed(series: Series) -> tuple[dict[str, Any], bytes]:
    """One series as byte planes: gaps, lengths, units, and starts where they differ.

    Marks are disjoint, so the gap to the one before says where a mark begins.
    """
    length = series.length.astype(np.int64)
    ends = series.start + length
    gaps = np.diff(series.start, prepend=0)
    gaps[1:] = series.start[1:] - ends[:-1]
    columns = [gaps, length, series.unit.astype(np.int64) + 1]
    same = np.array_equal(series.starts, series.start)
    if not same:
        columns.append(np.diff(series.starts, prepend=0))
    widths = [_width(column) for column in columns]
    part: dict[str, Any] = {
        "rank": series.rank,
        "series": series.series,
        "count": len(series.start),
        "widths": widths,
    }
    if not same:
        part["starts"] = len(series.starts)
    if SERIES[series.series].row == Row.STEP:
        part["steps"] = series.span.tolist()
    planes = [
        _planes(column, width) for column, width in zip(columns, widths, strict=True)
    ]
    return part, b"".join(planes)


def _extra(store: Store, series: Series) -> tuple[dict[str, Any], bytes]:
    """What the details of a mark say beside its unit: bytes, causes, and its op.

    Each as its first value and the steps from mark to mark, folded so that none is
    negative: neighbours are mostly alike, and what is alike takes no room.
    """
    row = SERIES[series.series].row
    if row in (Row.STEP, Row.MICRO_BATCH):
        return {}, b""
    spans: Int64s = series.span.astype(np.int64)
    found: dict[str, Int64s] = {}
    if row == Row.EXPOSED:
        stalls = store.exposed[series.rank]
        found = {cause: stalls.column(cause)[spans] for cause in CAUSES}
        spans = stalls.column("span")[spans]
    table = store.spans[series.rank]
    here = spans >= 0  # a stall whose collective is not in the record has none
    for name in ("bytes", "op"):
        column = table.column(name)
        found[name] = np.where(here, column[np.where(here, spans, 0)], NOT_SAID)
    layout, planes = [], []
    for name, values in found.items():
        said = np.maximum(values, NOT_SAID)
        if (said == NOT_SAID).all():
            continue
        steps = np.diff(said, prepend=said[:1])
        folded = (steps << 1) ^ (steps >> 63)
        width = _width(folded)
        layout.append([name, width, int(said[0])])
        planes.append(_planes(folded, width))
    return {"extra": layout}, b"".join(planes)


def _width(column: Int64s) -> int:
    """Bytes that the largest value needs."""
    most = int(column.max()) if len(column) else 0
    return (most.bit_length() + 7) // 8


def _planes(column: Int64s, width: int) -> bytes:
    """All lowest bytes first, then all next ones: like bytes pack well together."""
    table: npt.NDArray[np.uint8] = column.astype("<i8").view(np.uint8).reshape(-1, 8)
    return table[:, :width].T.tobytes()


def _curve(store: Store, rank: int) -> dict[str, Any] | None:
    table = store.memory.get(rank)
    if table is None or not len(table):
        return None
    for name in MEMORY_CURVES:
        values = table.column(name)
        known = values >= 0
        if not (values > 0).any():
            continue
        times = table.column("time_ns")[known] - store.origin_ns
        inside = times <= store.end
        at = _kept(values[known][inside])
        return {
            "curve": name,
            "time": times[inside][at].tolist(),
            "value": values[known][inside][at].tolist(),
        }
    return None


def _kept(values: Int64s) -> Int64s:
    """Which samples stay: of each run of them the lowest and the highest."""
    if len(values) <= SAMPLE_LIMIT:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), SAMPLE_LIMIT // 2 + 1).astype(np.int64)
    kept = {0, len(values) - 1}
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[low:high]
        kept |= {low + int(part.argmin()), low + int(part.argmax())}
    return np.array(sorted(kept), dtype=np.int64)
