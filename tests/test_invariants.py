"""What must hold of any step, whatever a source says of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpdoctor.analysis.stall_causes import (
    CAUSES,
    queued_behind,
    split_stalls,
)
from fsdpdoctor.analysis.step_budget import divide
from fsdpdoctor.analysis.timeline import Collectives, Stalls, timeline_of
from fsdpdoctor.analysis.unit_times import innermost, own_compute
from fsdpdoctor.intervals import Int64s, intersect, single, subtract, total_ns, union
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COLLECTIVE_KINDS,
    DEVICE_WORK,
    NO_TIME,
    UNKNOWN,
    Evidence,
    Kind,
    Lane,
    RankHeader,
    Spans,
    StepRecord,
)
from fsdpdoctor.testing import RECORDED, TRACED

LANE_OF = {
    Kind.ALL_GATHER: Lane.ALL_GATHER,
    Kind.REDUCE_SCATTER: Lane.REDUCE_SCATTER,
    Kind.ALL_REDUCE: Lane.ALL_REDUCE,
    Kind.COLLECTIVE: Lane.OTHER_COMM,
    Kind.COPY_IN: Lane.COPY_IN,
    Kind.MEMCPY: Lane.COPY,
}
LENGTH = 60


@st.composite
def records(draw: st.DrawFn) -> StepRecord:
    """A step of up to 25 spans of any kinds, also outside the step's window."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(list(Kind)),
                st.integers(-5, LENGTH + 5),
                st.integers(0, 20),
                st.integers(UNKNOWN, 3),
                st.integers(-8, 8),
                st.integers(0, 2),
                st.integers(0, 3),
            ),
            max_size=25,
        )
    )
    kinds = np.array([r[0] for r in rows], dtype=np.int64)
    start = np.array([r[1] for r in rows], dtype=np.int64)
    spans = Spans.build(
        len(rows),
        kind=kinds,
        lane=[LANE_OF.get(k, Lane.COMPUTE) for k in kinds.tolist()],
        start_ns=start,
        end_ns=start + np.array([r[2] for r in rows], dtype=np.int64),
        unit=[r[3] for r in rows],
        op=[r[3] for r in rows],
        issued_ns=[
            s + r[4] if r[4] else NO_TIME for s, r in zip(start, rows, strict=True)
        ],
        group=0,
        phase=[r[6] for r in rows],
    )
    return StepRecord(
        step=0,
        start_ns=0,
        end_ns=LENGTH,
        host_start_ns=0,
        host_end_ns=LENGTH,
        micro_batches=1,
        spans=spans,
    )


def data(evidence: tuple[Evidence, ...], clock: str = "host") -> RankData:
    """A rank that shows so much."""
    return RankData(
        header=RankHeader(rank=0, world_size=1, evidence=evidence, clock=clock)
    )


@given(
    records(), st.sampled_from([RECORDED, TRACED]), st.sampled_from(["host", "cuda"])
)
@settings(max_examples=300)
def test_the_budget_is_a_partition(
    record: StepRecord, evidence: tuple[Evidence, ...], clock: str
) -> None:
    """No nanosecond is lost, none is counted twice, none is negative."""
    budget = divide(timeline_of(data(evidence, clock), record)).ns

    assert sum(budget.values()) == LENGTH
    assert min(budget.values()) >= 0


@given(records(), st.sampled_from([RECORDED, TRACED]))
@settings(max_examples=300)
def test_stalls_are_disjoint_and_inside_the_step(
    record: StepRecord, evidence: tuple[Evidence, ...]
) -> None:
    """So their sum is the exposed time, and the compute lane is idle in them."""
    line = timeline_of(data(evidence), record)
    stalls = union(line.stalls.start_ns, line.stalls.end_ns)

    assert int(line.stalls.duration_ns.sum()) == total_ns(stalls)
    assert total_ns(intersect(stalls, line.compute)) == 0
    assert total_ns(subtract(stalls, single(0, LENGTH))) == 0


@given(records())
@settings(max_examples=300)
def test_a_traces_stalls_cover_the_classic_exposed_time(record: StepRecord) -> None:
    """All of it; beyond it only gaps before a copy-out, or under a copy-in."""
    line = timeline_of(data(TRACED), record)
    rows = record.spans.rows(np.isin(record.spans.kind, COLLECTIVE_KINDS))
    running = intersect(union(rows.start_ns, rows.end_ns), single(0, LENGTH))
    kernels = record.spans.rows(np.isin(record.spans.kind, DEVICE_WORK))
    classic = subtract(running, union(kernels.start_ns, kernels.end_ns))
    stalls = union(line.stalls.start_ns, line.stalls.end_ns)

    assert total_ns(subtract(classic, stalls)) == 0
    if not np.isin(record.spans.kind, [Kind.COPY_OUT, Kind.COPY_IN]).any():
        assert total_ns(stalls) == total_ns(classic)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.integers(0, 30),
            st.one_of(st.just(NO_TIME), st.integers(-5, 40)),
            st.integers(-5, 40),
            st.integers(0, 20),
            st.one_of(st.just(NO_TIME), st.integers(-5, 60)),
        ),
        max_size=8,
    )
)
def test_causes_add_up_to_every_stall(rows: list[tuple[int, ...]]) -> None:
    """Whatever order issue, start, arrival and end come in."""

    def at(column: int) -> Int64s:
        return np.array([r[column] for r in rows], dtype=np.int64)

    count = len(rows)
    collectives = Collectives.build(
        count, issued_ns=at(2), start_ns=at(3), end_ns=at(3) + at(4), group=0
    )
    stalls = Stalls.build(
        count, collective=np.arange(count), start_ns=at(0), end_ns=at(0) + at(1)
    )

    causes = split_stalls(collectives, stalls, at(5))

    assert list(causes) == list(CAUSES)
    assert sum(causes.values()).tolist() == at(1).tolist()  # type: ignore[union-attr]
    assert all((part >= 0).all() for part in causes.values())


def test_queued_behind_the_latest_of_its_group() -> None:
    """Row 2 was issued at 3, and started at 9 when row 1 of its group had ended."""
    collectives = Collectives.build(
        3, issued_ns=[0, 1, 3], start_ns=[0, 4, 9], end_ns=[4, 9, 12], group=[0, 0, 0]
    )
    stalls = Stalls.build(1, collective=[2], start_ns=[5], end_ns=[12])

    assert queued_behind(collectives, stalls).tolist() == [1]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.integers(0, 8),
            st.one_of(st.just(NO_TIME), st.integers(-2, 10)),
            st.integers(UNKNOWN, 1),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_queued_behind_is_what_a_look_at_each_pair_finds(
    rows: list[tuple[int, int, int, int]],
) -> None:
    """Every collective is waited for; each of the others is tried in turn."""

    def before(row: int) -> int:
        start, _, early, group = rows[row]
        best, latest = UNKNOWN, start - early  # when it was issued
        if early == NO_TIME or early <= 0 or group == UNKNOWN:
            return UNKNOWN
        for other, (begin, length, _, its_group) in enumerate(rows):
            end = begin + length
            if other != row and its_group == group and latest < end <= start:
                best, latest = other, end
        return best

    collectives = Collectives.build(
        len(rows),
        start_ns=[start for start, *_ in rows],
        end_ns=[start + length for start, length, *_ in rows],
        issued_ns=[NO_TIME if e == NO_TIME else start - e for start, _, e, _ in rows],
        group=[group for *_, group in rows],
    )
    stalls = Stalls.build(len(rows), collective=list(range(len(rows))))

    assert queued_behind(collectives, stalls).tolist() == [
        *map(before, range(len(rows)))
    ]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=10))
def test_each_instant_has_one_innermost_span(rows: list[tuple[int, int]]) -> None:
    """The pieces cover what the spans cover, once, each inside its own span."""
    start = np.array([r[0] for r in rows], dtype=np.int64)
    end = start + np.array([r[1] for r in rows], dtype=np.int64)

    pieces = innermost(start, end)

    covered = union(pieces.start_ns, pieces.end_ns)
    assert int((pieces.end_ns - pieces.start_ns).sum()) == total_ns(covered)
    assert covered.tolist() == union(start, end).tolist()
    assert (pieces.start_ns >= start[pieces.span]).all()
    assert (pieces.end_ns <= end[pieces.span]).all()


@given(records())
@settings(max_examples=200)
def test_own_compute_is_never_more_than_the_spans(record: StepRecord) -> None:
    """Summed over units it is at most the time the calls cover."""
    line = timeline_of(data(RECORDED), record)
    for calls, own_ns in own_compute(line):
        assert (own_ns >= 0).all()
        covered = total_ns(union(calls.start_ns, calls.end_ns))
        assert int(own_ns.sum()) <= covered
