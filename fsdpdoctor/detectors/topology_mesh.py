"""FD501: the mesh does not fit what it runs on, or is not the one meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.sharding_code import MESH_IMPORT, dimensions, mesh_lines
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import all_units, unit_sums
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, percent, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, UnitSpec

# `docs/detectors.md` D12: between hosts the gathers must cost this share of the step
# before more memory is spent on keeping them within one.
EXPOSED_SHARE = 0.15

# Parameter, gradient and two Adam states in the stored dtype.
COPIES = 4

REPLICATING = re.compile(r"rep|ddp|data|outer|inter|node|hsdp|^dp$", re.IGNORECASE)
"""Names that people give the dimension over which parameters are copies."""

OTHER_PARALLEL = re.compile(
    r"(^|_)(tp|tensor|pp|pipe|cp|context|sp|seq|ep|etp|expert|model)", re.IGNORECASE
)
"""Dimensions that FSDP2 rightly does not see."""


@detector("FD501", "topology-mesh", needs={Evidence.UNITS, Evidence.CONFIG})
def topology_mesh(m: Measures) -> Iterator[Finding]:
    """The mesh given to `fully_shard` does not fit the job.

    *Why it costs*: if a mesh for hybrid sharding is built and only its shard
    dimension passed, nothing reduces gradients over the replicas: they train apart,
    silently. One mesh over all ranks of several hosts sends every all-gather over
    the slow links. A dimension of size 1 issues collectives that do nothing, or
    keeps a whole copy.

    *What to try*: pass the two-dimensional mesh itself,
    `("replicate", "shard")`, with the shard dimension inside a host.

    *When it is wrong*: a mesh for tensor, pipeline, context or expert parallelism
    is rightly sliced; dimensions with such names are left out, and unnamed ones are
    reported with less confidence. Hybrid sharding needs room for a whole replica
    per host: the memory is given.
    """
    specs = all_units(m)
    if not any(spec.mesh for spec in specs.values()):
        raise CannotTell("the meshes were not recorded", Evidence.CONFIG)
    yield from _sliced(m, specs)
    yield from _ones(m, specs)
    yield from _spanning(m, specs)


def _left_out(spec: UnitSpec) -> list[tuple[str | None, int]]:
    """Dimensions of the mesh that a unit's mesh was sliced from, and lost."""
    if spec.mesh is None or not spec.parent_meshes:
        return []
    mine = dimensions(spec.mesh)
    lost = []
    for name, length in dimensions(spec.parent_meshes[0]):
        if (name, length) in mine:
            mine.remove((name, length))
        elif length > 1:
            lost.append((name, length))
    return lost


def _sliced(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Replicas that nobody reduces over."""
    reduced = unit_sums(m, "all_reduces")
    found: dict[str, bool] = {}
    for fqn, spec in specs.items():
        lost = [d for d in _left_out(spec) if not OTHER_PARALLEL.search(d[0] or "")]
        if lost and spec.replicate_group == UNKNOWN and not reduced.get(fqn):
            found[fqn] = all(REPLICATING.search(name or "") for name, _ in lost)
    if not found:
        return
    spec = specs[next(iter(found))]
    parent = spec.parent_meshes[0]
    yield Finding(
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if all(found.values()) else Confidence.MEDIUM,
        summary=f"{count(len(found), 'unit')} got the part {spec.mesh} of the mesh "
        f"{parent}: gradients are never reduced over the rest of it, so the replicas "
        "train apart",
        units=tuple(found),
        phase="backward",
        evidence={
            "mesh": spec.mesh,
            "sliced_from": parent,
            "all_reduces": sum(reduced.get(fqn, 0) for fqn in found),
        },
        advice=(
            Advice(
                text="Pass the whole mesh: its first dimension replicates, its second "
                "shards.",
                code=_mesh_code(m, [length for _, length in dimensions(parent)]),
                memory_cost_bytes=0,
            ),
        ),
    )


def _mesh_code(m: Measures, shape: list[int]) -> str:
    return "\n".join(
        [
            MESH_IMPORT,
            "",
            *mesh_lines(m.run.device, shape[-2:], ("replicate", "shard")),
            "# Then fully_shard(module, mesh=mesh) for every unit, not a part of it.",
        ]
    )


def _ones(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Two-dimensional meshes with a dimension of one."""
    for which, says in (
        (0, "every all-reduce has one rank and does nothing: a 1-D mesh is enough"),
        (1, "nothing is sharded: every rank keeps a whole copy"),
    ):
        names = [
            fqn
            for fqn, spec in specs.items()
            if spec.mesh
            and len(dims := dimensions(spec.mesh)) == 2
            and dims[which][1] == 1
            and dims[1 - which][1] > 1
        ]
        if not names:
            continue
        spec = specs[names[0]]
        yield Finding(
            severity=Severity.INFO,
            confidence=Confidence.HIGH,
            summary=f"{count(len(names), 'unit')} on the mesh {spec.mesh}: {says}",
            units=tuple(names),
            evidence={"mesh": spec.mesh},
        )


def _spanning(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """One shard group over several hosts, exposed."""
    hosts = {rank.rank: rank.header.host for rank in m.ranks}
    known = set(hosts.values()) - {None}
    if len(known) < 2 or not m.stalls_known or not len(m.step_ns):
        return
    header = m.ranks[0].header
    names = [
        fqn
        for fqn, spec in specs.items()
        if spec.replicate_group == UNKNOWN
        and 0 <= spec.shard_group < len(header.groups)
        and len({hosts.get(r) for r in header.groups[spec.shard_group].ranks} - {None})
        > 1
    ]
    stalls = exposed(m).of(Kind.ALL_GATHER, Kind.REDUCE_SCATTER).named(*names)
    wire_ns = stalls.mean(stalls.rows.wire)
    share = wire_ns / float(m.step_ns.mean())
    if not names or share < EXPOSED_SHARE:
        return
    per_host = max(header.local_world_size, 1)
    count_hosts = max(m.run.world_size // per_host, 1)
    memory = sum(max(specs[fqn].shard_bytes, 0) for fqn in names)
    memory *= (count_hosts - 1) * COPIES
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{count(len(names), 'unit')} shard over {len(known)} hosts, and "
        f"{percent(share)} of the step waits for their bytes; sharding within a host "
        f"takes {size(memory)} more per rank",
        units=tuple(names),
        ranks=stalls.ranks(),
        cost_ns_per_step=wire_ns,
        evidence={
            "hosts": len(known),
            "ranks_per_host": per_host,
            "wire_ns": wire_ns,
            "share_of_step": round(share, 4),
        },
        advice=(
            Advice(
                text="Shard within each host and replicate over hosts; the memory is "
                "for parameters, gradients and two optimizer states.",
                code=_mesh_code(m, [count_hosts, per_host]),
                memory_cost_bytes=memory,
            ),
        ),
        places=stalls.places(),
    )
