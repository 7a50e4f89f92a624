"""What the timeline is told of one place, on two ranks that are drawn by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Flag,
    Kind,
    Lane,
    MemorySamples,
    Phase,
    Spans,
)
from fsdpdoctor_dashboard.data import queries
from fsdpdoctor_dashboard.data.queries import Details
from fsdpdoctor_dashboard.data.series import INDEX, Row
from fsdpdoctor_dashboard.data.slices import Exposed, RankNames, StepRows, Track
from fsdpdoctor_dashboard.data.store import Store, build_store
from fsdpdoctor_dashboard.data.tiles import BINS, BITS

ORIGIN = 1000
"""When the first mark begins; answers count from there."""


def spans(*rows: tuple[Kind, Lane, int, int, int, int, int]) -> Spans:
    """Rows of kind, lane, unit, op, start, end and number in the group."""
    kind, lane, unit, op, start, end, seq = zip(*rows, strict=True)
    of_wire = [bool(s >= 0) for s in seq]
    return Spans.build(
        kind=list(kind),
        lane=list(lane),
        phase=Phase.FORWARD,
        unit=list(unit),
        op=list(op),
        start_ns=np.array(start) + ORIGIN,
        end_ns=np.array(end) + ORIGIN,
        issued_ns=[ORIGIN + 2 if wire else NO_TIME for wire in of_wire],
        seq=list(seq),
        group=[0 if wire else UNKNOWN for wire in of_wire],
        bytes=[64 if u == 1 else 128 for u in unit],
        flags=[Flag.FIRST if wire else Flag.NONE for wire in of_wire],
    )


@pytest.fixture(scope="module")
def store() -> Store:
    """Rank 0 waits twice for gathers, the second time for one not in its record."""
    first = spans(
        (Kind.FORWARD, Lane.COMPUTE, 1, UNKNOWN, 0, 100, UNKNOWN),
        (Kind.UNSHARD, Lane.HOST, 1, 7, 2, 4, UNKNOWN),
        (Kind.ALL_GATHER, Lane.ALL_GATHER, 1, 7, 10, 50, 3),
        (Kind.ALL_GATHER, Lane.ALL_GATHER, 2, 8, 60, 90, 4),
        (Kind.UNSHARDED, Lane.UNSHARDED, 1, 7, 50, 110, UNKNOWN),
        (Kind.UNSHARDED, Lane.UNSHARDED, 2, 8, 90, 200, UNKNOWN),
    )
    stalls = Exposed.build(
        2,
        start_ns=[ORIGIN + 20, ORIGIN + 100],
        end_ns=[ORIGIN + 50, ORIGIN + 140],
        kind=Kind.ALL_GATHER,
        unit=[1, 2],
        flags=[Flag.FIRST, Flag.NONE],
        span=[2, UNKNOWN],
        host_late=[10, UNKNOWN],
        wire=[20, 40],
    )
    samples = MemorySamples.build(
        time_ns=np.array([0, 3, 9]) + ORIGIN, allocated_bytes=[5, 30, 20]
    )
    names = RankNames(units=("(root)", "layers.0", "layers.1"), groups=("shard",))
    other = spans((Kind.ALL_GATHER, Lane.ALL_GATHER, 1, 5, 14, 50, 3))
    steps = StepRows.build(1, step=[6], start_ns=[ORIGIN], end_ns=[ORIGIN + 200])
    tracks = [
        Track(
            rank=0,
            spans=first,
            exposed=stalls,
            memory=samples,
            names=names,
            steps=steps,
        ),
        Track(rank=1, spans=other, names=names),
    ]
    return build_store(tracks, "drawn")


def mark(series: str, start: int, end: int, span: int, unit: int) -> dict[str, Any]:
    """A mark of rank 0, as an answer has it."""
    named = {"start": start, "end": end, "span": span, "unit": unit}
    return {"rank": 0, "series": INDEX[series], **named}


WAITS = (
    mark("exposed all-gather", 20, 50, 0, 1),
    mark("exposed all-gather", 100, 140, 1, 2),
)


def test_what_lies_under_the_pointer(store: Store) -> None:
    """Up to two marks are told; of more, how many and how long."""
    assert queries.under(store, 0, Row.EXPOSED, 40, 45) == {
        "marks": [WAITS[0]],
        "count": 1,
        "busy": 5,
    }
    assert queries.under(store, 0, Row.EXPOSED, 0, 200) == {
        "marks": list(WAITS),
        "count": 2,
        "busy": 70,
    }
    assert queries.under(store, 0, Row.ALL_REDUCE, 0, 200) == {
        "marks": [],
        "count": 0,
        "busy": 0,
    }


def test_the_next_mark_of_a_row(store: Store) -> None:
    """Forward from a moment, back from it, and none beyond the last."""
    gathers = [
        mark("all-gather", 10, 50, 2, 1),
        mark("all-gather", 60, 90, 3, 2),
    ]
    row = Row.ALL_GATHER
    assert queries.neighbour(store, 0, row, 10, True) == {"mark": gathers[1]}
    assert queries.neighbour(store, 0, row, 60, False) == {"mark": gathers[0]}
    assert queries.neighbour(store, 0, row, 60, True) == {"mark": None}


def test_the_next_wait_that_matters(store: Store) -> None:
    """Of all ranks that are asked; shorter ones are passed over."""
    asked = (store, [0, 1])
    assert queries.next_exposed(*asked, 0, True, 0) == {"mark": WAITS[0]}
    assert queries.next_exposed(*asked, 0, True, 31) == {"mark": WAITS[1]}
    assert queries.next_exposed(*asked, 200, False, 0) == {"mark": WAITS[1]}
    assert queries.next_exposed(store, [1], 0, True, 0) == {"mark": None}


def test_finds_the_marks_of_a_unit(store: Store) -> None:
    """Windows are none; of all ranks the nearest in time, and how many there are."""
    unit = np.array([2])
    found = queries.find(store, [0, 1], unit, 0, True)
    assert found == {"mark": mark("all-gather", 60, 90, 3, 2), "total": 2, "at": 1}
    back = queries.find(store, [0, 1], unit, 200, False)
    assert back == {"mark": WAITS[1], "total": 2, "at": 2}
    assert queries.find(store, [0], unit, 200, True) == {
        "mark": None,
        "total": 2,
        "at": 1,
    }


def test_the_units_that_were_waited_for_most(store: Store) -> None:
    """Cut to the area; units without a wait are left out."""
    assert queries.largest_exposed(store, [0, 1], 0, 200, 3) == [(2, 40), (1, 30)]
    assert queries.largest_exposed(store, [0, 1], 40, 105, 3) == [(1, 10), (2, 5)]


def test_a_gather_has_its_flow_and_its_peers(store: Store) -> None:
    """The spans of its op by start, and the same number of the group elsewhere."""
    found = Details(store).of(0, INDEX["all-gather"], 2)

    assert found["title"] == "all-gather layers.0"
    assert (found["start"], found["end"]) == (10, 50)
    assert found["facts"] == [
        ["kind", "text", "all_gather"],
        ["lane", "text", "all_gather"],
        ["phase", "text", "forward"],
        ["unit", "text", "layers.0"],
        ["issued before its start", "ns", 8],
        ["bytes", "bytes", 64],
        ["group", "text", "shard"],
        ["number in group", "text", 3],
        ["flags", "text", "first"],
    ]
    assert [(p["kind"], p["row"], p["start"]) for p in found["flow"]] == [
        ("unshard", Row.HOST, 2),
        ("all_gather", Row.ALL_GATHER, 10),
        ("unsharded", Row.UNSHARDED_EVEN, 50),
    ]
    assert found["peers"] == [
        {
            "rank": 1,
            "row": Row.ALL_GATHER,
            "kind": "all_gather",
            "start": 14,
            "end": 50,
            "span": 0,
        }
    ]


def test_a_wait_has_its_causes(store: Store) -> None:
    """And the collective's own facts, where that is in the record; a step has none."""
    details = Details(store)
    known = details.of(0, INDEX["exposed all-gather"], 0)
    unknown = details.of(0, INDEX["exposed all-gather"], 1)

    assert (known["title"], known["first"]) == ("exposed all-gather layers.0", True)
    assert known["causes"] == [
        ["host_late", 10],
        ["queued", 0],
        ["straggler", 0],
        ["wire", 20],
        ["tail", 0],
    ]
    assert [place["kind"] for place in known["flow"]][1] == "all_gather"
    assert [place["rank"] for place in known["peers"]] == [1]
    assert (unknown["first"], unknown["facts"]) == (False, [])
    assert (unknown["flow"], unknown["peers"]) == ([], [])
    assert details.of(0, INDEX["step"], 6)["title"] == "step 6"


def test_the_units_that_are_unsharded_at_a_moment(store: Store) -> None:
    """The largest first; at its end a window holds nothing any more."""
    details = Details(store)
    both = [{"unit": "layers.1", "bytes": 128}, {"unit": "layers.0", "bytes": 64}]

    assert details.live(0, 100) == both
    assert details.live(0, 110) == both[:1]
    assert details.live(1, 100) == []


def test_memory_between_samples_is_that_of_the_last(store: Store) -> None:
    """Bins of 4 ns: held until the next sample, and nothing after the last one."""
    found = queries.memory_curve(store, 0, BITS + 2, range(1))

    assert found["curve"] == "allocated_bytes"
    assert (found["top"], found["peak"]) == (30, {"time": 3, "bytes": 30})
    assert found["low"][:5] == [5, 30, 20, -1, -1]
    assert found["high"][:5] == [30, 30, 30, -1, -1]
    assert queries.memory_curve(store, 1, BITS, range(1)) == {"curve": None}


def test_the_minimap_is_the_mean_of_the_ranks(store: Store) -> None:
    """Bins of 64 ns, of both ranks 128: rank 0 waits for 30, 28 and 12 of them, and
    computes for 34 and 36; shares are of 255, those of waits rounded up.
    """
    found = queries.minimap(store)

    assert found["level"] == BITS + 6
    assert found["exposed"] == [60, 56, 24, *[0] * (BINS - 3)]
    assert found["compute"] == [67, 71, *[0] * (BINS - 2)]


def test_peers_are_looked_for_on_the_ranks_next_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of too many: and it is said how many others were left out."""
    ranks = [*range(0, 40, 2)]
    assert queries.nearest(ranks, 8) == [rank for rank in ranks if rank != 8]
    monkeypatch.setattr(queries, "MOST_PEERS", 4)
    assert queries.nearest(ranks, 8) == [4, 6, 10, 12]
    assert queries.nearest(ranks, 0) == [2, 4, 6, 8]
    assert queries.nearest(ranks, 38) == [30, 32, 34, 36]
    assert queries.nearest([5], 5) == []
    spans = spans_of_peers()
    names = RankNames(units=("(root)",), groups=("shard",))
    tracks = [Track(rank=rank, spans=spans, names=names) for rank in range(10)]
    found = queries.Details(build_store(tracks, "many")).of(3, INDEX["all-gather"], 0)

    assert [peer["rank"] for peer in found["peers"]] == [1, 2, 4, 5]
    assert found["others"] == 5


def spans_of_peers() -> Spans:
    """One all-gather."""
    return spans((Kind.ALL_GATHER, Lane.ALL_GATHER, 0, 5, 14, 50, 3))
