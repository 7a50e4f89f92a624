"""Collectives of one communicator take turns, whatever their spans say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsdpdoctor.analysis.stall_causes import (
    begins_ns,
    held_back,
    own_durations,
    queued_behind,
)
from fsdpdoctor.analysis.timeline import Collectives, Stalls
from fsdpdoctor.quantities import MS
from fsdpdoctor.report.collectives_ranks import collective_rows
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Evidence
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import CUDA

TURNS = """
    backward             1111......0000000000
    reduce_scatter       ..11111.............
    issue                ...0................
    backward_all_gather  ...0000000..........
    backward_wait        ....000000..........
"""


def test_a_gather_is_timed_from_where_its_communicator_is_free() -> None:
    """Its stream is there at 3 ms; the reduction before it ends at 7, it at 10."""
    m = measured(draw(TURNS, CUDA))
    taken = {row.kind: row.median_ns for row in collective_rows(m)}

    assert taken == {"all_gather": 3 * MS, "reduce_scatter": 5 * MS}


def test_kernels_begin_where_their_bytes_do() -> None:
    """Two that run at once share the link: each took what it took."""
    m = measured(draw(TURNS, CUDA, evidence=(*RECORDED, Evidence.KERNELS)))
    (rank,) = m.ranks

    assert begins_ns(rank).tolist() == rank.collectives.start_ns.tolist()


def test_a_collective_that_waited_for_its_group_took_less() -> None:
    """The host sees an asynchronous one from its issue on; the group from its turn.
    One that ended before that has had none.
    """
    rows = Collectives.build(
        5,
        group=[0, 0, 1, 2, 0],
        seq=[0, 1, 0, 0, 2],
        step=0,
        start_ns=[0, 10, 20, 30, 40],
        end_ns=[100, 250, 90, 35, 200],
    )
    assert own_durations(rows).tolist() == [100, 150, 70, 5, 0]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=9
    )
)
def test_held_back_is_what_a_look_at_each_pair_finds(
    rows: list[tuple[int, int, int]],
) -> None:
    """One communicator runs in the order of issue, whatever its streams say."""
    issued = np.cumsum([early for early, *_ in rows], dtype=np.int64)
    start = issued + np.array([wait for _, wait, _ in rows], dtype=np.int64)
    end = start + np.array([length for *_, length in rows], dtype=np.int64)
    behind, held_ns = held_back(
        Collectives.build(
            len(rows),
            group=0,
            issued_ns=issued,
            start_ns=start,
            end_ns=end,
            seq=list(range(len(rows))),
        )
    )

    for at in range(len(rows)):
        before = [int(end[other]) for other in range(at)]
        over = max([*before, int(start[at])]) - int(start[at])
        assert held_ns[at] == over
        assert behind[at] == (before.index(max(before)) if over else UNKNOWN)


def test_what_ended_as_another_was_issued_is_not_before_it_in_the_queue() -> None:
    """It had left: nobody waited for it. A nanosecond later it had not."""
    stalls = Stalls.build(1, start_ns=10, end_ns=30, collective=[1])
    for end, behind in ((10, UNKNOWN), (11, 0)):
        rows = Collectives.build(
            2,
            group=0,
            issued_ns=[0, 10],
            start_ns=[0, 12],
            end_ns=[end, 30],
        )
        assert queued_behind(rows, stalls).tolist() == [behind]


def test_only_the_own_group_s_whose_issue_is_known_hold_back() -> None:
    """Of four that run at once: one of another group, and one whose order in the own
    group nobody knows.
    """
    behind, held_ns = held_back(
        Collectives.build(
            4,
            group=[1, 0, 0, 0],
            issued_ns=[0, NO_TIME, 1, 2],
            start_ns=[0, 1, 1, 5],
            end_ns=[40, 50, 20, 30],
            seq=[0, 0, 1, 2],
        )
    )

    assert behind.tolist() == [UNKNOWN, UNKNOWN, UNKNOWN, 2]
    assert held_ns.tolist() == [0, 0, 0, 15]
