"""Runs of several ranks whose advice is run: state held apart, other collectives."""

from __future__ import annotations

from torch.distributed.fsdp import FSDPModule

from fsdpdoctor.schema import Phase, ReplicaKind, Within
from fsdpdoctor.testing import measured
from tests.detectors import (
    test_other_collectives,
    test_outside_fsdp,
    test_replicas_differ,
    test_topology_mesh,
)

AVAILABLE = tuple(dir(FSDPModule))

APART = (
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
)
"""Replicas that nobody reduces over, a mesh meant flat, other seeds, a head outside."""
