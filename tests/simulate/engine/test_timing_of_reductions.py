"""When reductions run, and on a host without streams everything."""

from __future__ import annotations

import pytest

from fsdpdoctor.simulate.engine.opcodes import (
    COMPUTE,
    FINALIZE,
    FLUSH,
    HOST,
    POST_FORWARD_COMM,
    REDUCE_COMM,
    RESHARD,
    ROOT,
    SHARD_COMM,
    SYNC,
    WAIT_GATHER,
    WAIT_POST,
    WAIT_SCATTER,
    Op,
)
from fsdpdoctor.simulate.engine.timing import (
    Clock,
    Exposed,
    Times,
    Walk,
)
from tests.simulate.engine.operations import (
    FIRST,
    LAST,
    NONE,
    WORLD_1,
    gather,
    on_host,
    on_streams,
    reduce,
    use,
)


def test_reductions_run_behind_each_other_on_one_stream() -> None:
    """Whatever their communicators; the lane goes on after the copy-in.

    host     aab
    compute  ..........aaab
    wire     .............aaaabbbb
    """
    walk = on_streams(
        reduce(0, 2, 3, 4), reduce(1, 1, 1, 4, SHARD_COMM), (HOST, 1), compute=10
    )
    assert walk.times[:2] == [
        (0, 2, 10, 13, 13, 17, 17, 17),
        (2, 3, 13, 14, 17, 21, 21, 21),
    ]
    assert walk.end == Clock(4, 14)


def test_a_reduction_begins_once_the_host_issues_it() -> None:
    """At 22: the lane was idle from 10 on."""
    walk = on_streams(reduce(0, 2, 3, 4), host=20, compute=10)

    assert walk.times == [(20, 22, 22, 25, 25, 29, 29, 29)]


@pytest.mark.parametrize(
    ("wire", "more", "first", "second"),
    [
        (4, 20, (13, 17, 17, 37), (17, 21, 37, 57)),
        (4, NONE, (13, 17, 17, 17), (17, 21, 21, 21)),
        (NONE, 20, (13, 13, 13, 33), (14, 14, 33, 53)),  # nothing is sharded
        (4, 0, (13, 17, 17, 67), (17, 21, 67, 117)),
        (0, NONE, (13, 63, 63, 63), (63, 113, 113, 113)),
    ],
)
def test_all_reduces_have_a_stream_of_their_own(
    wire: int, more: int, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """The second reduce-scatter runs beside the first all-reduce.

    compute  ..........aaab
    scatter  .............aaaabbbb
    reduce   .................aaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbb
    """
    walk = on_streams(
        reduce(0, 2, 3, wire, more=more), reduce(1, 1, 1, wire, more=more), compute=10
    )
    assert [times[4:] for times in walk.times] == [first, second]


REDUCED = (reduce(0, 2, 3, 4, more=20), reduce(1, 1, 1, 4, more=5))
"""From 10: scattered at 17 and 21, all-reduced at 37 and 42; the lane is free at 14."""


@pytest.mark.parametrize(
    ("op", "until", "exposed"),
    [
        ((WAIT_SCATTER, 0), (17, 17), Exposed(0, 3, 0)),
        ((WAIT_SCATTER, 1), (21, 21), Exposed(0, 7, 0)),
        ((WAIT_POST, 0), (17, 37), Exposed(0, 3, 20)),
        ((WAIT_POST, 1), (21, 42), Exposed(0, 7, 21)),
        ((FINALIZE, LAST), (21, 42), Exposed(0, 7, 21)),
    ],
)
def test_the_lane_waits_for_reductions(
    op: Op, until: tuple[int, int], exposed: Exposed
) -> None:
    """From 14, for the scatter and then for what is reduced further."""
    walk = on_streams(*REDUCED, op, compute=10)

    assert walk.times[2] == (3, 3, 14, *until)
    assert walk.end == Clock(3, until[1])
    assert walk.exposed == exposed


@pytest.mark.parametrize("op", [(WAIT_SCATTER, 0), (WAIT_POST, 0), (FINALIZE, LAST)])
def test_without_an_all_reduce_there_is_the_scatter_to_wait_for(op: Op) -> None:
    """From 13 until 17; then the optimizer may run."""
    walk = on_streams(reduce(0, 2, 3, 4), op, (COMPUTE, 5, NONE), compute=10)

    assert walk.times[1:] == [(2, 2, 13, 17, 17), (2, 2, 17, 22)]
    assert walk.exposed == Exposed(0, 4, 0)


@pytest.mark.parametrize(
    "op", [(WAIT_SCATTER, 0), (WAIT_POST, 0), (WAIT_GATHER, 0), (FINALIZE, LAST)]
)
def test_a_wait_for_what_is_done_does_not_hold_the_lane_up(op: Op) -> None:
    """The host comes to it at 53, long after all; the lane is idle since 14."""
    walk = on_streams(gather(0, 1, 1, 1), *REDUCED, (HOST, 49), op, compute=10)

    assert walk.times[4] == (53, 53, 53, 53, 53)
    assert walk.end == Clock(53, 14)
    assert walk.exposed == Exposed(0, 0, 0)


def test_an_unused_gather_is_waited_for() -> None:
    """From 2 until 15, as FSDP2's last callback does."""
    walk = on_streams(FIRST, (WAIT_GATHER, 0))

    assert walk.times[1] == (2, 2, 2, 15, 15)
    assert walk == Walk(walk.times, Clock(2, 15), Exposed(13, 0, 0))


@pytest.mark.parametrize(
    ("op", "times"),
    [
        ((COMPUTE, 5, 2), (10, 17, 12, 17)),
        ((COMPUTE, 5, NONE), (10, 15, 10, 15)),
        ((COMPUTE, 5, 0), (10, 65, 60, 65)),
        ((HOST, 7), (10, 17)),
        ((ROOT, 7), (10, 17)),
        ((SYNC,), (10, 10)),
        ((FLUSH,), (10, 10)),
        (use(WORLD_1, 1, 2), (10, 13, 10, 10, 11, 13)),
        ((RESHARD, 0, NONE), (10, 10, 10)),
        ((RESHARD, 0, 5), (10, 15, 15)),
        ((RESHARD, 0, 0), (10, 60, 60)),
        ((WAIT_SCATTER, 0), (10, 10, 10, 10, 10)),
        ((WAIT_POST, 0), (10, 10, 10, 10, 10)),
        ((FINALIZE, LAST), (10, 10, 10, 10, 10)),
    ],
)
def test_a_host_without_streams_does_it_all_itself(op: Op, times: Times) -> None:
    """One after the other, from 10; nothing is left to wait for."""
    walk = on_host(op, host=10)

    assert walk == Walk([times], Clock(times[1], times[1]), Exposed(0, 0, 0))


def test_such_a_host_stands_still_inside_a_gather() -> None:
    """12 and 15 are the ends of call and copy-in; in use there is nothing to wait for.

    host  aaAAA----uUU
    """
    walk = on_host(gather(0, 2, 3, 4), use(0, 1, 2), host=10)

    assert walk.times == [(10, 19, 12, 15, 15, 19), (19, 22, 19, 19, 20, 22)]
    assert walk == Walk(walk.times, Clock(22, 22), Exposed(4, 0, 0))


@pytest.mark.parametrize(("comm", "start"), [(SHARD_COMM, 34), (POST_FORWARD_COMM, 17)])
def test_such_a_host_goes_on_beside_an_async_gather(comm: int, start: int) -> None:
    """One of 19 ns from 15 on; a second one behind it, or beside it on another
    communicator. The host waits for each as it is used.
    """
    walk = on_host(
        gather(0, 2, 3, 19, async_op=True),
        gather(1, 1, 1, 9, comm, async_op=True),
        use(0, 5, 2),
        (WAIT_GATHER, 1),
        host=10,
    )
    second = max(start + 9, 41)

    assert walk.times == [
        (10, 15, 12, 15, 15, 34),
        (15, 17, 16, 17, start, start + 9),
        (17, 41, 17, 34, 39, 41),
        (41, second, 41, second, second),
    ]
    assert walk.exposed == Exposed(17 + second - 41, 0, 0)


def test_such_a_host_waits_for_no_gather_where_one_rank_gathers() -> None:
    """One of another unit is on the wire from 15 until 34."""
    walk = on_host(gather(0, 2, 3, 19, async_op=True), use(WORLD_1, 5, 2), host=10)

    assert walk.times[1] == (15, 22, 15, 15, 20, 22)
    assert walk.exposed == Exposed(0, 0, 0)


def test_such_a_host_need_not_wait_for_what_has_come() -> None:
    """A gather that ended at 19, and 9 ns of other work until 24."""
    walk = on_host(
        gather(0, 2, 3, 4, async_op=True), (HOST, 9), (WAIT_GATHER, 0), use(0, 1, 2),
        host=10,
    )  # fmt: skip

    assert walk.times[2:] == [(24, 24, 24, 24, 24), (24, 27, 24, 24, 25, 27)]
    assert walk.exposed == Exposed(0, 0, 0)


@pytest.mark.parametrize(
    ("wire", "more", "ends", "exposed"),
    [
        (4, 20, (15, 19, 19, 39), (4, 20)),
        (4, NONE, (15, 19, 19, 19), (4, 0)),
        (NONE, 20, (15, 15, 15, 35), (0, 20)),
        (NONE, NONE, (15, 15, 15, 15), (0, 0)),
        (0, 0, (15, 65, 65, 115), (50, 50)),
    ],
)
def test_such_a_host_stands_still_inside_a_reduction(
    wire: int, more: int, ends: tuple[int, ...], exposed: tuple[int, int]
) -> None:
    """Call until 12, copy-in until 15, then each collective that there is."""
    walk = on_host(reduce(0, 2, 3, wire, more=more), host=10)

    assert walk.times == [(10, ends[3], 12, 15, *ends)]
    assert walk.end == Clock(ends[3], ends[3])
    assert walk.exposed == Exposed(0, *exposed)


@pytest.mark.parametrize(("comm", "start"), [(SHARD_COMM, 34), (REDUCE_COMM, 17)])
def test_such_a_host_s_reduction_waits_for_the_communicator(
    comm: int, start: int
) -> None:
    """An async gather has it until 34. A second reduction finds it free."""
    walk = on_host(
        gather(0, 2, 3, 19, async_op=True),
        reduce(0, 1, 1, 4, comm),
        reduce(1, 1, 1, 4, comm),
        host=10,
    )
    end = start + 4

    assert walk.times[1:] == [
        (15, end, 16, 17, start, end, end, end),
        (end, end + 6, end + 1, end + 2, end + 2, end + 6, end + 6, end + 6),
    ]
    assert walk.exposed == Exposed(0, end - 17 + 4, 0)


def test_such_a_host_s_gather_waits_for_an_async_one() -> None:
    """On the wire until 34: 17 ns of waiting, and 4 of its own."""
    walk = on_host(gather(0, 2, 3, 19, async_op=True), gather(1, 1, 1, 4), host=10)

    assert walk.times[1] == (15, 38, 16, 17, 34, 38)
    assert walk.exposed == Exposed(21, 0, 0)
