"""When each operation runs: a few at a time, each worked out by hand.

An operand is how long it takes: `5` is 5 ns, but 0, the first of the list, takes 50.
"""

from __future__ import annotations

import pytest

from fsdpdoctor.simulate.engine.opcodes import (
    COMPUTE,
    FLUSH,
    HOST,
    POST_FORWARD_COMM,
    REDUCE_COMM,
    RESHARD,
    ROOT,
    SHARD_COMM,
    SYNC,
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
    NONE,
    NOTHING,
    SECOND,
    WORLD_1,
    gather,
    on_host,
    on_streams,
    reduce,
    use,
)


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


def test_what_is_exposed_adds_up() -> None:
    """Each kind of wait stands still for itself."""
    assert Exposed(1, 20, 300).total_ns == 321
