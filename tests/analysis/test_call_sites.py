"""Collectives that are not FSDP2's, over ranks."""

from fsdpdoctor.analysis.call_sites import waits_for_last
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Evidence, GroupSpec
from fsdpdoctor.testing import RECORDED, Call, draw, measured

EVIDENCE = (*RECORDED, Evidence.OTHER_COLLECTIVES, Evidence.RANKS)


def waiting(rank: int, ms: int, members: tuple[int, int]) -> RankData:
    """A rank that waits so long in an all-reduce of a group named tp."""
    lane = f"..{'0' * ms}".ljust(12, ".")
    return draw(
        f"""
        forward     00..........
        other       {lane}
        other_wait  {lane}
        """,
        rank=rank,
        world_size=4,
        steps=1,
        evidence=EVIDENCE,
        groups=(GroupSpec(name="tp", ranks=members, size=2, role="tp"),),
        calls=(Call(kind="all_reduce", site="tp.py:5"),),
    )


def test_who_waits_least_is_last_in_its_own_group() -> None:
    """Two groups of one name: 0 waits 3 ms for 1, and 2 waits 1 ms for 3."""
    m = measured(
        waiting(0, 4, (0, 1)),
        waiting(1, 1, (0, 1)),
        waiting(2, 3, (2, 3)),
        waiting(3, 2, (2, 3)),
    )

    waits = waits_for_last(m)

    assert [waits[rank].ns.tolist() for rank in range(4)] == [[3 * MS], [0], [MS], [0]]
    assert [waits[rank].last_rank.tolist() for rank in range(4)] == [[1], [1], [3], [3]]
