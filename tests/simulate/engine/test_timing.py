"""When each operation runs: a few at a time, each worked out by hand.

An operand is how long it takes: `5` is 5 ns, but 0, the first of the list, takes 50.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fsdpdoctor.simulate.engine.opcodes import (
    COMPUTE,
    FINALIZE,
    FLUSH,
    GATHER,
    HOST,
    POST_FORWARD_COMM,
    REDUCE,
    REDUCE_COMM,
    RESHARD,
    ROOT,
    SHARD_COMM,
    SYNC,
    USE,
    WAIT_GATHER,
    WAIT_POST,
    WAIT_SCATTER,
    Op,
    Program,
)
from fsdpdoctor.simulate.engine.timing import (
    Clock,
    Exposed,
    Times,
    Walk,
    blocking,
    streams,
)

NS = (50, *range(1, 60), 0, 7)
NOTHING = 60  # takes 0
NONE = LAST = -1
WORLD_1 = -2
SLOTS = 2

Device = Callable[[Program, tuple[int, ...], Clock], Walk]


def gather(
    slot: int,
    call: int,
    copy: int,
    wire: int,
    comm: int = SHARD_COMM,
    *,
    async_op: bool = False,
    event: int = NONE,
) -> Op:
    """An all-gather: its host call, its copy-in, its wire."""
    return (GATHER, slot, call, copy, wire, comm, int(async_op), event)


def use(
    slot: int, call: int, copy: int, *, waits: bool = False, defers: bool = False
) -> Op:
    """The wait for an all-gather, and its copy-out."""
    return (USE, slot, call, copy, int(waits), int(defers))


def reduce(
    id_: int, call: int, copy: int, wire: int, comm: int = REDUCE_COMM, more: int = NONE
) -> Op:
    """A reduce-scatter, with an all-reduce of `more`."""
    return (REDUCE, id_, call, copy, wire, comm, more)


def run(device: Device, ops: tuple[Op, ...], at: Clock) -> Walk:
    """What becomes of some operations."""
    plan = Program(
        ops=ops,
        meta=(),
        moves=(),
        passes=(),
        micro_batches=(),
        rest=0,
        slots=SLOTS,
        reductions=sum(op[0] == REDUCE for op in ops),
        peak_bytes=0,
        gathered_peak_bytes=0,
    )
    return device(plan, NS, at)


def on_streams(*ops: Op, host: int = 0, compute: int = 0) -> Walk:
    """On a device, from where these stand."""
    return run(streams, ops, Clock(host, compute))


def on_host(*ops: Op, host: int = 0) -> Walk:
    """On a host that waits itself."""
    return run(blocking, ops, Clock(host, host))


@pytest.mark.parametrize(
    ("op", "compute", "times"),
    [
        ((COMPUTE, 5, 2), 3, (10, 12, 10, 15)),  # the lane is free as it is launched
        ((COMPUTE, 5, 2), 30, (10, 12, 30, 35)),  # it queues
        ((COMPUTE, 5, 8), 3, (10, 18, 10, 18)),  # no sooner done than launched
        ((COMPUTE, 5, NONE), 3, (10, 10, 10, 15)),
        ((COMPUTE, 5, 0), 3, (10, 60, 10, 60)),
        ((COMPUTE, 0, 2), 3, (10, 12, 10, 60)),
    ],
)
def test_compute_begins_where_host_and_lane_are_there(
    op: Op, compute: int, times: Times
) -> None:
    """The host reaches it at 10, wherever the lane is."""
    walk = on_streams(op, host=10, compute=compute)

    assert walk == Walk([times], Clock(times[1], times[3]), Exposed(0, 0, 0))


def test_the_host_s_work_is_the_host_s_alone() -> None:
    """7 ns, and no lane knows of it."""
    walk = on_streams((HOST, 7), host=10, compute=30)

    assert walk == Walk([(10, 17)], Clock(17, 30), Exposed(0, 0, 0))


@pytest.mark.parametrize("comm", [SHARD_COMM, POST_FORWARD_COMM])
def test_gathers_are_copied_in_and_sent_on_two_streams(comm: int) -> None:
    """The second's copy-in runs under the first's wire, and its wire after that, also
    where it is another communicator's.

        host     aab
        copy-in  ..aaab
        wire     .....aaaabbbb
    """
    walk = on_streams(gather(0, 2, 3, 4), gather(1, 1, 1, 4, comm))

    assert walk.times == [(0, 2, 2, 5, 5, 9), (2, 3, 5, 6, 9, 13)]
    assert walk.end == Clock(3, 0)


@pytest.mark.parametrize(
    ("host", "times"),
    [(10, (10, 12, 30, 33, 33, 37)), (40, (40, 42, 42, 45, 45, 49))],
)
def test_a_step_s_first_gather_is_after_what_the_last_step_computed(
    host: int, times: Times
) -> None:
    """Until 30, or as the host comes to it."""
    assert on_streams(gather(0, 2, 3, 4), host=host, compute=30).times == [times]


def test_a_gather_begins_at_once_on_a_communicator_that_nothing_used() -> None:
    """At 0, where neither call nor copy-in takes any time."""
    op = gather(0, NOTHING, NOTHING, 4)

    assert on_streams(op).times == [(0, 0, 0, 0, 0, 4)]
    assert on_host(op).times == [(0, 4, 0, 0, 0, 4)]


@pytest.mark.parametrize(
    ("comm", "first", "second"),
    [
        (SHARD_COMM, (2, 12), (12, 16)),  # one at a time
        (REDUCE_COMM, (2, 12), (3, 7)),
    ],
)
def test_a_gather_waits_for_a_reduction_on_its_communicator(
    comm: int, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """10 ns of reduce-scatter, and the gather behind or beside it."""
    walk = on_streams(reduce(0, 1, 1, 10, comm), gather(0, 1, 1, 4))

    assert walk.times[0] == (0, 1, 1, 2, *first, 12, 12)
    assert walk.times[1] == (1, 2, 2, 3, *second)


@pytest.mark.parametrize(
    ("comm", "start", "end"), [(SHARD_COMM, 6, 16), (REDUCE_COMM, 3, 13)]
)
def test_a_reduction_waits_for_a_gather_on_its_communicator(
    comm: int, start: int, end: int
) -> None:
    """4 ns of all-gather, and the reduce-scatter behind or beside it; a gather that
    follows waits for both.
    """
    walk = on_streams(gather(0, 1, 1, 4), reduce(0, 1, 1, 10, comm), gather(1, 1, 1, 4))
    begins = 16 if comm == SHARD_COMM else 6

    assert walk.times == [
        (0, 1, 1, 2, 2, 6),
        (1, 2, 2, 3, start, end, end, end),
        (2, 3, 3, 4, begins, begins + 4),
    ]


@pytest.mark.parametrize(
    ("compute", "copy", "after"),
    [(10, (10, 13), (10, 11, 11, 15)), (1, (2, 5), (3, 4, 4, 8))],
)
def test_an_async_gather_is_copied_in_by_the_compute_lane(
    compute: int, copy: tuple[int, int], after: Times
) -> None:
    """Which it takes 3 ns; the all-gather stream knows nothing of its 40.

    host     aab
    compute  ..........aaa
    copy-in  ..........b
    wire a   .............aaaaa...
    wire b   ...........bbbb
    """
    walk = on_streams(
        gather(0, 2, 3, 40, async_op=True),
        gather(1, 1, 1, 4, POST_FORWARD_COMM),
        compute=compute,
    )
    start, end = copy

    assert walk.times == [(0, 2, start, end, end, end + 40), (2, 3, *after)]
    assert walk.end == Clock(3, end)


@pytest.mark.parametrize(
    ("clone", "host", "times", "compute"),
    [
        (NONE, 0, (0, 0, 10), 10),
        (NONE, 20, (20, 20, 20), 10),  # freed as the host says so; the lane is idle
        (5, 0, (0, 0, 15), 15),  # the shard that is kept is copied first
        (5, 20, (20, 20, 25), 25),
        (0, 20, (20, 20, 70), 70),
    ],
)
def test_a_reshard_frees_behind_what_is_computed(
    clone: int, host: int, times: Times, compute: int
) -> None:
    """The lane is busy until 10."""
    walk = on_streams((RESHARD, 0, clone), host=host, compute=10)

    assert walk == Walk([times], Clock(host, compute), Exposed(0, 0, 0))


@pytest.mark.parametrize(("event", "copied_in"), [(0, 15), (1, 20), (NONE, 10)])
def test_a_kept_shard_is_gathered_once_it_is_copied(event: int, copied_in: int) -> None:
    """Two units' shards are copied until 15 and 20, from 10 on."""
    walk = on_streams(
        (RESHARD, 0, 5), (RESHARD, 1, 5), gather(0, 2, 3, 4, event=event), compute=10
    )
    assert walk.times[-1][2] == copied_in


def test_an_earlier_shard_does_not_let_a_gather_run_ahead() -> None:
    """It was copied at 15; the gate is where a copy-out ended, at 21."""
    walk = on_streams(
        (RESHARD, 0, 5),
        (COMPUTE, 5, NONE),
        use(WORLD_1, 1, 1),
        gather(0, 1, 1, 1, event=0),
        compute=10,
    )
    assert walk.times[-1][2] == 21


FIRST = gather(0, 2, 3, 10)
"""Copied in from 2, on the wire from 5 to 15."""
SECOND = gather(1, 1, 1, 4)


def test_a_unit_is_used_once_it_is_gathered() -> None:
    """The lane stands still from where the host says so; the copy-out follows.

    host     aau
    copy-in  ..aaa
    wire     .....aaaaaaaaaa
    compute  ..-------------uu
    """
    walk = on_streams(FIRST, use(0, 1, 2))

    assert walk.times[1] == (2, 3, 2, 15, 15, 17)
    assert walk == Walk(walk.times, Clock(3, 17), Exposed(13, 0, 0))


@pytest.mark.parametrize(
    ("call", "times"), [(1, (1, 2, 16, 16, 16, 18)), (40, (1, 41, 16, 16, 41, 43))]
)
def test_no_wait_is_seen_where_the_gather_ended_before(call: int, times: Times) -> None:
    """It was there at 3, and the lane computes until 16: the copy-out begins then, or
    as the host's call is done.
    """
    walk = on_streams(gather(0, 1, 1, 1), (COMPUTE, 15, NONE), use(0, call, 2))

    assert walk.times[2] == times
    assert walk.exposed == Exposed(0, 0, 0)


def test_nothing_is_waited_for_where_one_rank_gathers() -> None:
    """No gather was issued, whatever others are on the wire."""
    walk = on_streams(gather(0, 1, 1, 10), gather(1, 1, 1, 10), use(WORLD_1, 1, 2))

    assert walk.times[2] == (2, 3, 2, 2, 3, 5)
    assert walk.exposed == Exposed(0, 0, 0)


@pytest.mark.parametrize(
    ("defers", "second"),
    [
        (False, (3, 4, 17, 18, 18, 22)),  # behind the copy-out
        (True, (3, 4, 5, 6, 15, 19)),  # beside it
    ],
)
def test_a_deferred_copy_out_lets_the_next_gather_run_beside_it(
    defers: bool, second: Times
) -> None:
    """The first's copy-out runs from 15 to 17."""
    walk = on_streams(FIRST, use(0, 1, 2, defers=defers), SECOND)

    assert walk.times[2] == second


@pytest.mark.parametrize(
    ("between", "copied_in"),
    [
        (use(WORLD_1, 1, 1, waits=True, defers=True), 17),  # in a unit's forward
        (use(WORLD_1, 1, 1, waits=True), 18),
        (use(WORLD_1, 1, 1, defers=True), 5),
        ((FLUSH,), 17),  # as the root's forward ends
        ((ROOT, 1), 17),
        ((HOST, 1), 5),
    ],
)
def test_what_waits_for_a_deferred_copy_out(between: Op, copied_in: int) -> None:
    """The gather after that: the first's copy-out runs until 17, then the next one's
    for 1 ns.
    """
    walk = on_streams(FIRST, use(0, 1, 2, defers=True), between, SECOND)

    assert walk.times[-1][2] == copied_in


@pytest.mark.parametrize(
    "waiting", [(FLUSH,), use(WORLD_1, 1, 1, waits=True, defers=True)]
)
def test_a_copy_out_that_is_long_done_holds_nothing_back(waiting: Op) -> None:
    """It ended at 17, and the one after it, which nothing deferred, at 22: what waits
    for the first now is behind the second all the same.
    """
    walk = on_streams(
        FIRST, use(0, 1, 2, defers=True), use(WORLD_1, 1, 5), waiting, SECOND
    )
    assert walk.times[-1][2] == 22


@pytest.mark.parametrize(
    ("before", "host", "compute", "root", "copied_in"),
    [
        ((COMPUTE, 20, NONE), 0, 10, (0, 3), 30),
        ((HOST, 5), 40, 30, (45, 48), 49),  # the lane is idle: once it is issued
    ],
)
def test_a_root_s_gathers_wait_for_the_compute_before_it(
    before: Op, host: int, compute: int, root: Times, copied_in: int
) -> None:
    """The root's hook takes the host 3 ns, the gather's call 1."""
    walk = on_streams(before, (ROOT, 3), SECOND, host=host, compute=compute)

    assert walk.times[1] == root
    assert walk.times[2][2] == copied_in


@pytest.mark.parametrize(("compute", "synced"), [(30, 30), (5, 10)])
def test_the_host_waits_for_the_device(compute: int, synced: int) -> None:
    """Where it is not done by 10."""
    walk = on_streams((SYNC,), host=10, compute=compute)

    assert walk == Walk([(10, synced)], Clock(synced, compute), Exposed(0, 0, 0))


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
