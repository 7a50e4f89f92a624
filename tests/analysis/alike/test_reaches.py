"""Units' groups that share ranks reach all of them."""

from __future__ import annotations

from fsdpdoctor.analysis.alike.reaches import data_parallel_only, place_of, reaches
from fsdpdoctor.schema import GroupSpec, RankHeader
from fsdpdoctor.testing import unit


def test_groups_that_share_a_rank_reach_one_set() -> None:
    """Shard groups (0, 1) and (2, 3), replicated over (0, 2) and (1, 3): all four."""
    pairs = ((0, 1), (2, 3), (0, 2), (1, 3))
    groups = tuple(GroupSpec(name=str(p), ranks=p, size=2) for p in pairs)

    def of(rank: int, *, replicated: bool) -> RankHeader:
        spec = unit(
            "layers.0",
            shard_group=rank // 2,
            replicate_group=2 + rank % 2 if replicated else -1,
        )
        return RankHeader(rank=rank, world_size=4, groups=groups, units=(spec,))

    hybrid = [of(rank, replicated=True) for rank in range(4)]
    sliced = [of(rank, replicated=False) for rank in range(4)]

    assert reaches(hybrid)["layers.0"] == [(0, 1, 2, 3)]
    assert data_parallel_only(hybrid)
    assert reaches(sliced)["layers.0"] == [(0, 1), (2, 3)]
    assert not data_parallel_only(sliced)


def test_a_rank_outside_the_group_that_it_names_is_in_its_set() -> None:
    """A unit that one rank alone describes, with a group of others."""
    group = GroupSpec(name="0", ranks=(4, 5), size=2)
    spec = unit("layers.0", shard_group=0)
    one = RankHeader(rank=1, world_size=8, groups=(group,), units=(spec,))
    bare = RankHeader(rank=7, world_size=8, units=(unit("layers.0"),))

    found = reaches([one, bare])["layers.0"]

    assert found == [(1, 4, 5), (7,)]
    assert place_of(found) == {1: 0, 4: 0, 5: 0, 7: 1}
