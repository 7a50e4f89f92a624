"""Clocks of several ranks, and who arrived last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

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
    one = rank(1, [*ENDS], [*ENDS])
    spec = GroupSpec(name="(1, 2)", ranks=(1, 2), size=2)
    both = RankCollectives(
        header=RankHeader(
            rank=1,
            world_size=4,
            clock="cuda",
            host="host1",
            groups=(*one.groups, spec),
        ),
        collectives=Collectives.build(
            6,
            kind=Kind.ALL_GATHER,
            group=[0, 0, 0, 1, 1, 1],
            seq=[0, 1, 2, 0, 1, 2],
            start_ns=[*ENDS, *ENDS],
            end_ns=[*ENDS, *ENDS],
        ),
    )
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
