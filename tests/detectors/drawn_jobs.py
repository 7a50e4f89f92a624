"""Runs of several ranks whose advice is run: state held apart, other collectives."""

from __future__ import annotations

from dataclasses import replace

from torch.distributed.fsdp import FSDPModule

from fsdpdoctor.run import RankData
from fsdpdoctor.schema import GroupSpec, Phase, ReplicaKind, Within
from fsdpdoctor.testing import draw, measured, unit
from tests.detectors import (
    test_hooks_not_run,
    test_left_over,
    test_old_weights,
    test_other_collectives,
    test_outside_fsdp,
    test_replicas_differ,
    test_spmd_numbers,
    test_topology_mesh,
)

AVAILABLE = tuple(dir(FSDPModule))


def inside_out(rank: int) -> RankData:
    """Of two hosts with two ranks each: sharded over hosts, replicas within one."""
    data = draw(
        "all_gather 0000\nwait 0000\nforward ....0000",
        rank=rank,
        units=(
            unit(
                "layers.0",
                mesh="(replicate=2, shard=2)",
                shard_group=0,
                replicate_group=1,
            ),
        ),
    )
    first, host = rank % 2, rank // 2 * 2
    groups = (
        GroupSpec(name="shard", ranks=(first, first + 2), size=2),
        GroupSpec(name="replicate", ranks=(host, host + 1), size=2),
    )
    return replace(data, header=replace(data.header, local_world_size=2, groups=groups))


APART = (
    measured(*map(inside_out, range(4)), available=AVAILABLE),
    measured(*test_topology_mesh.four(*"abcd"), available=AVAILABLE),
    measured(
        test_topology_mesh.on_mesh("(dp_shard=2, cp=2)", replicate_group=1),
        available=AVAILABLE,
    ),
    test_replicas_differ.three(ReplicaKind.OUTSIDE, ("a",), ("b",), ("c",)),
    test_replicas_differ.three(
        ReplicaKind.SHARD, ("a",), ("a",), ("b",), name="layers.0.weight"
    ),
    test_replicas_differ.three(
        ReplicaKind.BUFFER, ("a", "a"), ("b", "b"), ("c", "c"), name="scale"
    ),
    measured(test_other_collectives.gathering(Within.CLIP)),
    measured(test_other_collectives.gathering(Within.SCRIPT, Phase.OTHER)),
    measured(*(test_other_collectives.one("all_reduce", rank=r) for r in (0, 1))),
    test_outside_fsdp.two(test_outside_fsdp.HEAD, ("s", "a"), ("s", "b")),
    test_spmd_numbers.left_out(),
    measured(draw(test_old_weights.PROBED)),
    measured(draw(test_left_over.FIRST, micro_batches=4)),
    measured(draw("forward 0", model=test_hooks_not_run.optimizer(gathered=2))),
)
"""Replicas that nobody reduces over, a mesh meant flat, other seeds, a head outside;
optimizers that left a step out, stepped with weights or gradients of another one, or
hold what was gathered.
"""

OVER_HOSTS = tuple(
    replace(
        data,
        header=replace(data.header, host=f"host{data.rank}", local_world_size=1),
    )
    for data in (
        draw(
            "all_gather 0000\nwait 0000\nforward ....0000",
            rank=rank,
            units=(unit("layers.0", mesh="(2)"),),
        )
        for rank in (0, 1)
    )
)
