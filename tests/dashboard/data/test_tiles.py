"""Marks, store and tiles: what is shown for any area is what the analysis says."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpdoctor.intervals import Intervals, clip, join, subtract, total_ns, union
from fsdpdoctor.schema import WAIT_OF, Kind, Lane, Phase, Spans
from fsdpdoctor_dashboard.data import tile_cache, tiles
from fsdpdoctor_dashboard.data.pieces import innermost
from fsdpdoctor_dashboard.data.series import EXPOSED_SERIES, SERIES, Row
from fsdpdoctor_dashboard.data.slices import Exposed, RankNames, Track, marks_of
from fsdpdoctor_dashboard.data.store import (
    Store,
    build_store,
    save_store,
)
from fsdpdoctor_dashboard.data.tile_cache import TileShelf, has_tiles, make_tiles
from tests.dashboard.node import needs_node, required, run_js

KINDS = (
    (Kind.FORWARD, Lane.COMPUTE),
    (Kind.BACKWARD, Lane.COMPUTE),
    (Kind.COPY_OUT, Lane.COMPUTE),
    (Kind.KERNEL, Lane.COMPUTE),
    (Kind.ALL_GATHER_WAIT, Lane.COMPUTE),
    (Kind.REDUCE_SCATTER_WAIT, Lane.COMPUTE),
    (Kind.ALL_GATHER, Lane.ALL_GATHER),
    (Kind.REDUCE_SCATTER, Lane.REDUCE_SCATTER),
    (Kind.SYNC, Lane.HOST),
    (Kind.UNSHARDED, Lane.UNSHARDED),
)

span_rows = st.lists(
    st.tuples(
        st.integers(0, len(KINDS) - 1),
        st.integers(0, 40_000_000),
        st.one_of(st.integers(0, 2_000), st.integers(0, 3_000_000)),
        st.integers(-1, 4),
    ),
    min_size=1,
    max_size=300,
)


def spans_of(rows: list[tuple[int, int, int, int]]) -> Spans:
    """Random spans: nested, crossing, without length."""
    start = np.array([row[1] for row in rows], dtype=np.int64)
    return Spans.build(
        kind=[KINDS[row[0]][0] for row in rows],
        lane=[KINDS[row[0]][1] for row in rows],
        phase=Phase.FORWARD,
        unit=[row[3] for row in rows],
        start_ns=start,
        end_ns=start + [row[2] for row in rows],
    )


def track_of(spans: Spans, rank: int = 0) -> Track:
    """A rank whose stalls are its wait spans, made disjoint kind after kind."""
    parts: list[Exposed] = []
    taken = np.empty((0, 2), dtype=np.int64)
    for kind, wait in WAIT_OF.items():
        rows = spans.rows(spans.kind == wait)
        mine = subtract(union(rows.start_ns, rows.end_ns), taken)
        taken = join(taken, mine)
        parts.append(
            Exposed.build(len(mine), start_ns=mine[:, 0], end_ns=mine[:, 1], kind=kind)
        )
    return Track(
        rank=rank,
        spans=spans,
        exposed=Exposed.concat(parts),
        roots=frozenset({0}),
    )


def store_of(spans: Spans, rank: int = 0) -> Store:
    """The store of one rank."""
    return build_store([track_of(spans, rank)], "test")


def lane_busy(spans: Spans, lane: Lane) -> Intervals:
    """By interval algebra: when a lane was busy."""
    mine = spans.rows(
        (spans.lane == lane) & ~np.isin(spans.kind, list(WAIT_OF.values()))
    )
    return union(mine.start_ns, mine.end_ns)


@given(span_rows, st.integers(-10, 45_000_000), st.integers(0, 45_000_000))
@settings(max_examples=150)
def test_an_area_holds_what_the_interval_algebra_says(
    rows: list[tuple[int, int, int, int]], t0: int, width: int
) -> None:
    """Busy and exposed time of any area are those of the spans' unions, clipped."""
    spans = spans_of(rows)
    store = store_of(spans)
    origin = store.origin_ns
    found = store.area(t0 - origin, t0 + width - origin, [0])
    by_row: dict[Row, int] = {}
    for area in found:
        row = SERIES[area.series].row
        by_row[row] = by_row.get(row, 0) + area.busy_ns

    track = track_of(spans)
    exposed = union(track.exposed.start_ns, track.exposed.end_ns)
    for kind, series in EXPOSED_SERIES.items():
        mine = track.exposed.rows(track.exposed.kind == kind)
        expected = total_ns(clip(union(mine.start_ns, mine.end_ns), t0, t0 + width))
        assert sum(a.busy_ns for a in found if a.series == series) == expected
    for row, lane in (
        (Row.COMPUTE, Lane.COMPUTE),
        (Row.ALL_GATHER, Lane.ALL_GATHER),
        (Row.REDUCE_SCATTER, Lane.REDUCE_SCATTER),
        (Row.HOST, Lane.HOST),
    ):
        busy = lane_busy(spans, lane)
        if row == Row.COMPUTE:
            busy = subtract(busy, exposed)
        assert by_row.get(row, 0) == total_ns(clip(busy, t0, t0 + width))
    by_name = {SERIES[a.series].name: a.started for a in found}
    starts = spans.start_ns[spans.kind == Kind.BACKWARD]
    inside = int(((starts >= t0) & (starts < t0 + width)).sum())
    assert by_name.get("backward", 0) == inside


def test_waiting_is_cut_out_of_the_compute_around_it() -> None:
    """A wait within its parent's forward is exposed time and not compute."""
    spans = Spans.build(
        kind=[Kind.FORWARD, Kind.ALL_GATHER_WAIT, Kind.FORWARD],
        lane=Lane.COMPUTE,
        unit=[0, 1, 1],
        start_ns=[0, 10, 14],
        end_ns=[30, 14, 20],
    )
    marks = marks_of(track_of(spans))
    by_name = {
        SERIES[i].name: list(zip(m.start_ns, m.end_ns, m.unit, strict=True))
        for i, m in marks.items()
    }

    assert by_name == {
        "forward": [(0, 10, 0), (14, 20, 1), (20, 30, 0)],
        "exposed all-gather": [(10, 14, -1)],
    }


def test_a_collective_is_cut_where_the_last_rank_arrived() -> None:
    """Waiting for a rank and moving bytes are two series that add up."""
    spans = Spans.build(
        kind=Kind.ALL_GATHER,
        lane=Lane.ALL_GATHER,
        start_ns=[0, 10, 20],
        end_ns=[5, 15, 25],
    )
    arrived = np.array([2, np.iinfo(np.int64).min, 99], dtype=np.int64)
    track = Track(rank=0, spans=spans, arrived_ns=arrived)
    by_name = {
        SERIES[i].name: list(zip(m.start_ns, m.end_ns, strict=True))
        for i, m in marks_of(track).items()
    }

    assert by_name == {
        "all-gather": [(2, 5), (10, 15)],
        "all-gather, waiting for a rank": [(0, 2), (20, 25)],
    }


@given(span_rows)
@settings(max_examples=100)
def test_the_innermost_spans_cover_the_union(
    rows: list[tuple[int, int, int, int]],
) -> None:
    """Whatever nests or crosses, each moment has one owner, and none is lost."""
    spans = spans_of(rows)
    pieces = innermost(spans.start_ns, spans.end_ns)

    assert (pieces.end_ns > pieces.start_ns).all()
    assert (pieces.start_ns[1:] >= pieces.end_ns[:-1]).all()
    assert (spans.start_ns[pieces.owner] <= pieces.start_ns).all()
    assert (spans.end_ns[pieces.owner] >= pieces.end_ns).all()
    assert np.array_equal(
        union(pieces.start_ns, pieces.end_ns), union(spans.start_ns, spans.end_ns)
    )


@given(span_rows, st.integers(0, 9))
@settings(max_examples=50)
def test_every_level_adds_up_to_the_same(
    rows: list[tuple[int, int, int, int]], up: int
) -> None:
    """Over all tiles of a level, the bins' busy time is the series' own."""
    store = store_of(spans_of(rows))
    level = tiles.MIN_LEVEL + up
    count = (store.end >> level) + 1
    for series in store.series(0):
        busy = sum(
            int(series.busy(tiles.bin_edges(level, i)).sum()) for i in range(count)
        )
        assert busy == int(series.length.sum())


def test_no_exposed_nanosecond_is_invisible() -> None:
    """One exposed ns in an hour still lights its bin at the coarsest level."""
    starts = np.arange(200, dtype=np.int64) * 18_000_000_000
    spans = Spans.build(
        kind=Kind.ALL_GATHER_WAIT,
        lane=Lane.COMPUTE,
        start_ns=starts,
        end_ns=starts + 1,
    )
    store = store_of(spans)
    level = tiles.whole_level(store)
    tile = tiles.tile(store, level, 0, [0], condensed=False)
    assert struct.unpack_from("<BBI", tile, 22) == (
        store.series(0)[0].series,
        tiles.BINS_MODE,
        tiles.BINS,
    )
    shares = np.frombuffer(tile, dtype=np.uint8, count=tiles.BINS, offset=28)

    lit = np.unique(starts >> (level - tiles.BITS))
    assert np.flatnonzero(shares).tolist() == lit.tolist()


def test_an_id_that_stands_for_nothing_has_no_name() -> None:
    """Not said, or beyond what the rank knows."""
    names = RankNames(units=("a", "b"), groups=("g",), names=("n",))

    assert [names.unit(i) for i in (None, -1, 0, 1, 2)] == [None, None, "a", "b", None]
    assert [names.group(i) for i in (0, 1)] == ["g", None]
    assert [names.name(i) for i in (0, -1)] == ["n", None]


def test_tiles_made_beforehand_are_the_tiles(tmp_path: Path) -> None:
    """A shelf answers as the maker does: coarse and fine, condensed, beyond the end."""
    spans = spans_of([(i % 10, i * 900, 1500, i % 5) for i in range(4000)])
    store = build_store([track_of(spans, 0), track_of(spans, 3)], "test")
    save_store(store, tmp_path / "cache")
    make_tiles(store, tmp_path / "cache")
    whole = tiles.whole_level(store)
    asks = [
        (level, index, ranks, condensed)
        for level in range(tiles.MIN_LEVEL, whole + 2)
        for index in (0, store.end >> level, (store.end >> level) + 1, 1 << 20)
        for ranks in ([0], [3, 0])
        for condensed in (False, True)
    ]

    assert has_tiles(tmp_path / "cache")
    for shelf in (TileShelf(store, tmp_path / "cache"), TileShelf(store)):
        for _ in ("made", "kept"):
            found = [shelf.tile(k, i, r, condensed=c) for k, i, r, c in asks]
            assert found == [
                tiles.tile(store, k, i, r, condensed=c) for k, i, r, c in asks
            ]


@pytest.mark.parametrize(("ranks", "levels"), [(1, 8), (3, 8), (4, 7), (40, 4)])
def test_of_many_ranks_fewer_levels_are_made_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, levels: int
) -> None:
    """All of them together are not more than those of a few ranks."""
    monkeypatch.setattr(tile_cache, "MOST_MADE", 3 * 255)
    spans = spans_of([(i % 10, i * 90_000, 1500, i % 5) for i in range(400)])
    store = build_store([track_of(spans, rank) for rank in range(ranks)], "test")
    together: list[int] = []

    def counted(store: Store, level: int, index: int, of: Any, **how: bool) -> Any:
        together.append(len(of))
        return tiles.rank_blocks(store, level, index, of, condensed=how["condensed"])

    with monkeypatch.context() as patch:
        patch.setattr(tile_cache, "AT_A_TIME", 16)
        patch.setattr(tile_cache, "rank_blocks", counted)
        make_tiles(store, tmp_path)
    with np.load(tmp_path / "tiles.npz") as index:
        made = len(index["blocks"])
    assert (max(together), sum(together)) == (min(ranks, 16), made)
    whole = tiles.whole_level(store)

    assert made == ranks * ((1 << levels) - 1) <= 3 * 255
    shelf = TileShelf(store, tmp_path)
    for level in (whole, whole - levels + 1, whole - levels):
        expected = tiles.tile(store, level, 0, [0], condensed=False)
        assert shelf.tile(level, 0, [0], condensed=False) == expected


def test_a_rank_named_twice_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept stays counted right: when all of it gives way, nothing is left."""
    store = store_of(spans_of([(i % 10, i * 900, 1500, i % 5) for i in range(400)]))
    whole = tiles.whole_level(store)
    twice = tiles.tile(store, whole, 0, [0, 0], condensed=False)
    monkeypatch.setattr(tile_cache, "KEPT_BYTES", len(twice) * 3 // 4)
    shelf = TileShelf(store)

    for _ in range(3):
        assert shelf.tile(whole, 0, [0, 0], condensed=False) == twice
        assert shelf.tile(whole, 1, [0], condensed=False)


def test_half_written_tiles_are_none(tmp_path: Path) -> None:
    """A shelf over a damaged cache makes its tiles itself."""
    store = store_of(spans_of([(i % 10, i * 900, 1500, i % 5) for i in range(400)]))
    make_tiles(store, tmp_path)
    whole = tiles.whole_level(store)
    expected = tiles.tile(store, whole, 0, [0], condensed=False)
    (tmp_path / "tiles.bin").write_bytes(b"half")

    assert TileShelf(store, tmp_path).tile(whole, 0, [0], condensed=False) == expected


def columns_json(store: Store, rank: int) -> list[dict[str, object]]:
    """The columns of a rank, as a page without a server is given them."""
    return [
        {
            "rank": s.rank,
            "series": s.series,
            "start": s.start.tolist(),
            "length": s.length.tolist(),
            "span": s.span.tolist(),
            "unit": s.unit.tolist(),
            "starts": s.starts.tolist(),
        }
        for s in store.series(rank)
    ]


@needs_node
def test_python_and_javascript_make_the_same_tiles() -> None:
    """Byte for byte, for random spans, levels, tiles and areas."""
    rng = np.random.default_rng(0)
    rows = [
        (int(k), int(t), int(d), int(u))
        for k, t, d, u in zip(
            rng.integers(0, len(KINDS), 4000),
            rng.integers(0, 400_000_000, 4000),
            rng.integers(0, 400_000, 4000),
            rng.integers(-1, 5, 4000),
            strict=True,
        )
    ]
    store = store_of(spans_of(rows))
    asks = []
    for level in range(tiles.MIN_LEVEL, tiles.whole_level(store) + 2):
        last = store.end >> level
        asks += [
            (level, int(i), bool(i % 2))
            for i in {0, last, last + 1, last // 2, last // 3}
        ]
    areas = np.sort(rng.integers(-5, store.end + 5, (40, 2)), axis=1).tolist()
    script = f"""
    const t = {required("data/tiles.js")};
    const store = new t.LocalStore(given.series, given.columns);
    const hex = (b) => Buffer.from(b).toString("hex");
    console.log(JSON.stringify({{
      tiles: given.asks.map(([k, i, c]) => hex(store.tile(k, i, [0], c))),
      areas: given.areas.map(([a, b]) => store.area(a, b, [0])),
    }}));
    """
    given = {
        "series": [spec._asdict() for spec in SERIES],
        "columns": columns_json(store, 0),
        "asks": asks,
        "areas": areas,
    }
    answer = run_js(script, given)

    assert isinstance(answer, dict)
    assert answer["tiles"] == [
        tiles.tile(store, level, index, [0], condensed=condensed).hex()
        for level, index, condensed in asks
    ]
    assert answer["areas"] == [
        [list(area) for area in store.area(t0, t1, [0])] for t0, t1 in areas
    ]


def test_a_view_is_small() -> None:
    """The tiles of one view of five ranks stay under 300 kB, whatever they hold."""
    start = np.arange(0, 400_000_000, 4_000, dtype=np.int64)
    parts = [
        Spans.build(
            kind=kind, lane=lane, start_ns=start, end_ns=start + 1_000, unit=unit
        )
        for unit, (kind, lane) in enumerate(KINDS)
    ]
    spans = Spans.concat(parts)
    tracks = [track_of(spans, rank) for rank in range(5)]
    store = build_store(tracks, "test")
    level = tiles.whole_level(store) - 1
    sizes = [
        len(tiles.tile(store, level, index, range(5), condensed=False))
        for index in range(2)
    ]

    assert sum(sizes) < 300_000
    assert struct.unpack_from(
        "<III", tiles.tile(store, 20, 1, [0], condensed=True)
    ) == (
        tiles.MAGIC,
        20,
        1,
    )
