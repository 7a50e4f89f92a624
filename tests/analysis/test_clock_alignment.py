"""Clocks of several ranks, and who arrived last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpdoctor.analysis.clock_alignment import RankClock, RankCollectives, align
from fsdpdoctor.analysis.timeline import Collectives
from fsdpdoctor.quantities import MS, SECOND
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Flag, GroupSpec, Kind, RankHeader


def rank(
    number: int,
    starts: Sequence[int],
    ends: Sequence[int],
    *,
    group: tuple[int, ...] = (0, 1),
    clock: str = "cuda",
    host: str | None = None,
    flags: int = 0,
    first: int = 0,
) -> RankCollectives:
    """A rank that gathered in one group, numbered from 0."""
    spec = GroupSpec(name=str(group), ranks=group, size=len(group))
    return RankCollectives(
        header=RankHeader(
            rank=number,
            world_size=4,
            groups=(spec,),
            clock=clock,
            host=host or f"host{number}",
        ),
        collectives=Collectives.build(
            len(starts),
            kind=Kind.ALL_GATHER,
            group=0,
            seq=list(range(first, first + len(starts))),
            start_ns=list(starts),
            end_ns=list(ends),
            flags=flags,
        ),
    )


ENDS = [10 * MS, 20 * MS, 30 * MS]


def in_both(number: int, *groups: tuple[int, ...]) -> RankCollectives:
    """A rank that gathered in each of two groups, at ENDS."""
    one, other = (rank(number, ENDS, ENDS, group=group) for group in groups)
    return RankCollectives(
        header=replace(one.header, groups=one.groups + other.groups),
        collectives=Collectives.concat(
            [one.collectives, replace(other.collectives, group=np.full(3, 1, np.int32))]
        ),
    )


def test_offset_comes_from_the_ends() -> None:
    """Rank 1 is 5 s ahead; on its own clock, rank 0 arrived 2 ms after it."""
    shifted = [end + 5 * SECOND for end in ENDS]
    a = align(
        [
            rank(0, [end - 1 * MS for end in ENDS], ENDS),
            rank(1, [end - 3 * MS for end in shifted], shifted),
        ]
    )

    assert a.clocks[1].offset_ns == 5 * SECOND
    assert a.clocks[1].residual_ns == 0
    assert a.last_rank[0].tolist() == a.last_rank[1].tolist() == [0, 0, 0]
    assert a.last_arrival_ns[1].tolist() == [end - 1 * MS for end in shifted]


def test_drift_is_followed() -> None:
    """A clock that gains 1 ms in 10 s stays aligned over 100 s."""
    ends = [at * SECOND for at in range(0, 101, 10)]
    fast = [end + end // 10_000 for end in ends]
    a = align(
        [
            rank(0, [end - 2 * MS for end in ends], ends),
            rank(1, [end - 1 * MS for end in fast], fast),
        ]
    )

    assert a.clocks[1].drift_ppb == 99_990  # per second of the fast clock
    assert a.clocks[1].residual_ns is not None
    assert a.clocks[1].residual_ns < 1_000
    assert set(a.last_rank[0].tolist()) == {1}


def test_a_spread_under_the_residual_is_not_told() -> None:
    """Ends that scatter by 4 ms cannot say who came first by 1 ms."""
    scattered = [ENDS[0] - 4 * MS, ENDS[1], ENDS[2] + 4 * MS]
    a = align(
        [
            rank(0, [end - 5 * MS for end in ENDS], ENDS),
            rank(1, [end - 4 * MS for end in ENDS], scattered),
        ]
    )

    assert a.clocks[1].residual_ns == 4 * MS
    assert a.unsplit == 3
    assert a.last_rank[0].tolist() == [UNKNOWN] * 3
    assert a.last_arrival_ns[0].tolist() == [NO_TIME] * 3


def test_processes_of_one_host_share_its_clock() -> None:
    """There nothing is estimated, however the ends scatter."""
    scattered = [ENDS[0] - 4 * MS, ENDS[1], ENDS[2] + 4 * MS]
    a = align(
        [
            rank(0, [end - 5 * MS for end in ENDS], ENDS, clock="host", host="a"),
            rank(1, [end - 4 * MS for end in ENDS], scattered, clock="host", host="a"),
        ]
    )

    assert a.clocks[1].exact
    assert a.clocks[1].offset_ns == 0
    assert a.last_rank[0].tolist() == [1, 1, 1]


def test_ranks_that_share_no_group_are_reached_through_others() -> None:
    """HSDP: 0 and 1 shard, 1 and 2 share a group; 3 shares none and stays unmatched."""
    ahead = [end + 7 * SECOND for end in ENDS]
    both = in_both(1, (0, 1), (1, 2))
    a = align(
        [
            rank(0, [*ENDS], [*ENDS]),
            both,
            rank(2, ahead, ahead, group=(1, 2)),
            rank(3, ahead, ahead, group=(3,)),
        ]
    )

    assert a.clocks[2].offset_ns == 7 * SECOND
    assert a.clocks[3].matched == 0
    assert a.clocks[3].residual_ns is None


def test_estimated_ends_set_no_clock() -> None:
    """An end that is only known to be past is not an anchor."""
    a = align(
        [
            rank(0, [0, 1, 2], ENDS),
            rank(1, [0, 1, 2], ENDS, flags=Flag.END_ESTIMATED),
        ]
    )

    assert a.clocks[1].matched == 0


def test_one_rank_alone_is_matched_with_none() -> None:
    """And no rank at all is no error."""
    assert align([]).clocks == {}
    assert not align([rank(0, [0, 1, 2], ENDS)]).matched


def test_a_clock_that_gains_is_followed_back() -> None:
    """10 us a second, exact at 100 s: at 300 s of it 2 ms beyond its offset of 7."""
    clock = RankClock(
        rank=1, offset_ns=7, drift_ppb=10_000, drift_from_ns=100 * SECOND, matched=3
    )
    own = np.array([100 * SECOND, 300 * SECOND])

    reference = clock.to_reference(own)

    assert reference.tolist() == [100 * SECOND - 7, 300 * SECOND - 7 - 2 * MS]
    # The growth is taken where the clock nearly is: 20 ns of 2 ms are lost.
    assert (own - clock.from_reference(reference)).tolist() == [0, 20]


def test_what_is_not_known_of_a_clock_adds_nothing() -> None:
    """Neither an exact one's residual, nor one that was never matched."""
    assert RankClock(rank=1, residual_ns=5).uncertainty_ns == 5
    assert RankClock(rank=1, residual_ns=5, exact=True).uncertainty_ns == 0
    assert RankClock(rank=1).uncertainty_ns == 0


def test_collectives_beside_fsdp2s_have_arrivals_of_their_own() -> None:
    """Behind a rank's own ones, which are not shifted by them."""
    ends = [end + 100 * MS for end in ENDS]
    ranks = [
        replace(
            rank(number, [end - late * MS for end in ENDS], ENDS),
            others=rank(
                number, [end - other * MS for end in ends], ends, first=len(ENDS)
            ).collectives,
        )
        for number, late, other in ((0, 1, 4), (1, 3, 2))
    ]
    a = align(ranks)

    assert a.last_rank[0].tolist() == [0, 0, 0]
    assert a.others[0].last_rank.tolist() == [1, 1, 1]
    assert a.others[1].last_arrival_ns.tolist() == [end - 2 * MS for end in ends]
    assert a.last_arrival_ns[0].tolist() == [end - 1 * MS for end in ENDS]


def test_a_rank_before_the_one_that_reaches_it_is_reached_later() -> None:
    """0 and 2 share a group, 1 and 2 another: 1 is set once 2 is."""
    ahead = [end + 7 * SECOND for end in ENDS]
    both = in_both(2, (1, 2), (0, 2))
    a = align(
        [
            rank(0, ENDS, ENDS, group=(0, 2)),
            rank(1, ahead, ahead, group=(1, 2)),
            both,
        ]
    )

    assert a.clocks[1].offset_ns == 7 * SECOND
    assert sorted(a.clocks) == [0, 1, 2]


def test_the_reference_is_as_uncertain_as_those_that_were_matched_with_it() -> None:
    """By 4 ms, over the most that one shared; who shared nothing does not count. And
    each is set against the reference, not against another that scatters.
    """
    more = [*ENDS, 40 * MS]
    scattered = [more[0] - 4 * MS, *more[1:-1], more[-1] + 4 * MS]
    ahead = [end + 7 * SECOND for end in ENDS]
    a = align(
        [
            rank(0, more, more),
            rank(1, more, [end + 8 * MS * (at % 2) for at, end in enumerate(more)]),
            rank(2, ahead, ahead),
            rank(3, scattered, scattered, group=(3,)),
        ]
    )

    assert a.clocks[1].residual_ns == 4 * MS
    assert (a.clocks[2].offset_ns, a.clocks[2].residual_ns) == (7 * SECOND, 0)
    reference = a.clocks[0]
    assert (reference.residual_ns, reference.matched) == (2 * MS, 4)
    assert (reference.exact, a.clocks[3].matched) == (False, 0)
    alone = align([rank(0, ENDS, ENDS), rank(1, ENDS, ENDS), rank(3, ENDS, ENDS)])
    assert alone.clocks[0].residual_ns == 0
    assert len(alone.others[0].last_rank) == 0


def test_only_the_reference_s_own_host_shares_its_clock() -> None:
    """Not that of a rank beside it."""
    a = align(
        [
            rank(0, ENDS, ENDS, clock="host", host="a"),
            rank(1, ENDS, ENDS, clock="host", host="b"),
            rank(2, ENDS, ENDS, clock="host", host="b"),
            rank(3, ENDS, ENDS, clock="host", host="a"),
        ]
    )

    assert [a.clocks[at].exact for at in range(1, 4)] == [False, False, True]
    assert [a.clocks[at].drift_ppb for at in range(4)] == [0] * 4


@pytest.mark.parametrize(
    ("ends", "gained", "ppb"),
    [
        ([0, 5, 10], [0, 1, 0], 0),  # ten seconds: under the noise
        ([0, 5.5, 11], [0, 1, 2], 181_785),  # 1.5 of them in 8.25 of its seconds
        ([0, 1, 2, 30, 40, 50], [0, 0, 3, 6, 6, 6], 153_822),  # halves: 6 in 39
    ],
)
def test_drift_is_told_from_ten_seconds_on(
    ends: list[float], gained: list[int], ppb: int
) -> None:
    """In ms that the other clock gained; however far apart the two clocks are."""
    reference = [round(at * SECOND) for at in ends]
    own = [
        at + ms * MS + 5_000 * SECOND for at, ms in zip(reference, gained, strict=True)
    ]
    a = align([rank(0, reference, reference), rank(1, own, own)])

    assert a.clocks[1].drift_ppb == ppb


def test_a_nanosecond_above_ten_seconds_is_drift() -> None:
    """The first and the last end count, on the clock that is set."""
    reference = [0, 5 * SECOND, 10 * SECOND - 2 * MS + 1]
    own = [0, 5 * SECOND + 1 * MS, 10 * SECOND + 1]
    a = align([rank(0, reference, reference), rank(1, own, own)])

    assert a.clocks[1].drift_ppb > 0
    own[-1] -= 1
    assert (
        align([rank(0, reference, reference), rank(1, own, own)]).clocks[1].drift_ppb
        == 0
    )


def test_an_offset_holds_in_the_middle_of_what_was_shared() -> None:
    """By this rank's own time: 5 s and 20 ms, of ends in another order than its own."""
    own = [5 * SECOND + at * MS for at in (20, 10, 30)]
    a = align([rank(0, ENDS, ENDS), rank(1, own, own)])

    assert a.clocks[1].drift_from_ns == 5 * SECOND + 20 * MS


def test_of_several_that_arrive_last_the_first_is_said() -> None:
    """On all ranks the same."""
    late = [end - 1 * MS for end in ENDS]
    early = [end - 2 * MS for end in ENDS]
    a = align(
        [
            rank(number, starts, ENDS, clock="host", host="a")
            for number, starts in enumerate((early, late, late))
        ]
    )

    assert [a.last_rank[at].tolist() for at in range(3)] == [[1] * 3] * 3


Row = tuple[int, int, int, int]
"""Group, kind, number and start."""

ROWS = st.lists(
    st.tuples(
        st.integers(-1, 2),
        st.sampled_from([Kind.ALL_GATHER, Kind.REDUCE_SCATTER]),
        st.sampled_from([UNKNOWN, 0, 1, 2]),
        st.integers(0, 3),
    ),
    max_size=8,
)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_last_arrivals_are_what_a_look_at_each_pair_finds(
    jobs: list[list[Row]],
) -> None:
    """On one clock. Groups have other places on every second rank; rows of a group or
    number that is not known are matched with none; of two of one number the first row
    counts.
    """
    specs = tuple(GroupSpec(name=name, ranks=(0, 1), size=2) for name in ("a", "b"))
    ranks, firsts = [], []
    for number, rows in enumerate(jobs):
        groups = specs[::-1] if number % 2 else specs
        header = RankHeader(
            rank=number, world_size=4, groups=groups, clock="host", host="h"
        )
        columns = [[row[at] for row in rows] for at in range(4)]
        names = ("group", "kind", "seq", "start_ns")
        ranks.append(
            RankCollectives(
                header=header,
                collectives=Collectives.build(
                    len(rows),
                    end_ns=[start + 1 for start in columns[3]],
                    **dict(zip(names, columns, strict=True)),
                ),
            )
        )
        first: dict[tuple[str, int, int], int] = {}
        for at, (group, kind, seq, _) in enumerate(rows):
            if group in (0, 1) and seq != UNKNOWN:
                first.setdefault((groups[group].name, kind, seq), at)
        firsts.append(first)
    starts: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for number, first in enumerate(firsts):
        for key, at in first.items():
            starts.setdefault(key, []).append((jobs[number][at][3], number))

    a = align(ranks)

    shared = {key: found for key, found in starts.items() if len(found) > 1}
    told = {
        key: found for key, found in shared.items() if min(found)[0] < max(found)[0]
    }
    assert a.unsplit == len(shared) - len(told)
    for number, first in enumerate(firsts):
        last, when = [UNKNOWN] * len(jobs[number]), [NO_TIME] * len(jobs[number])
        for key, at in first.items():
            if key in told:
                when[at] = max(start for start, _ in told[key])
                last[at] = min(who for start, who in told[key] if start == when[at])
        assert a.last_rank[number].tolist() == last
        assert a.last_arrival_ns[number].tolist() == when
