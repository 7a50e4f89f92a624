"""What NCCL and CUDA will do on a GPU, said of a run that had none (FD204, FD106)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.judged_steps import on_cpu
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity, Value
from fsdpdoctor.quantities import count
from fsdpdoctor.schema import UnitSpec

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"

# `docs/detectors.md` K01: what is no multiple of it takes slower copies.
ALIGNMENT = 16

# Of all gathered bytes: below it a slower copy is lost in the others.
UNALIGNED_SHARE = 0.05

NAMED = 2
"""Parameters in a summary; the evidence has all."""


def without_gpu(m: Measures) -> bool:
    """Whether the run only stands for one on a GPU: on CPU, or on a modelled device."""
    return on_cpu(m) or m.run.source == "rehearsal"


def shard_ranks(m: Measures, spec: UnitSpec) -> int:
    """The ranks that a unit's parameters are divided over; 1: nothing is sent."""
    groups = m.ranks[0].header.groups
    known = 0 <= spec.shard_group < len(groups)
    return max(groups[spec.shard_group].size, 1) if known else 1


def unaligned(m: Measures, specs: Mapping[str, UnitSpec]) -> Iterator[Finding]:
    """Units whose part per rank is no multiple of 16 bytes, before anything is slow."""
    parts = {
        fqn: spec.unsharded_bytes // ranks
        for fqn, spec in specs.items()
        if spec.unsharded_bytes > 0 and (ranks := shard_ranks(m, spec)) > 1
    }
    found = {fqn: part for fqn, part in parts.items() if part % ALIGNMENT}
    sizes = {fqn: specs[fqn].unsharded_bytes for fqn in parts}
    if sum(sizes[fqn] for fqn in found) < UNALIGNED_SHARE * sum(sizes.values()) or (
        not found
    ):
        return
    worst = max(found, key=lambda fqn: sizes[fqn])
    causes = list(_causes(specs[worst], sizes[worst], shard_ranks(m, specs[worst])))
    by = f" ({', '.join(causes[:NAMED])})" if causes else ""
    evidence: dict[str, Value] = {
        "bytes_per_rank": dict(found),
        "parameters": list(causes),
    }
    yield Finding(
        severity=Severity.INFO,
        confidence=Confidence.MEDIUM,
        summary=f"on a GPU NCCL will gather {count(len(found), 'unit')} by slower "
        f"copies: each rank's part of {worst} has {found[worst]:,} bytes, no multiple "
        f"of {ALIGNMENT}{by}",
        units=tuple(found),
        evidence=evidence,
        advice=(
            Advice(
                text="Give these parameters sizes whose part per rank is a multiple "
                f"of {ALIGNMENT} bytes (a hidden size or vocabulary that is padded), "
                "or another number of ranks.",
            ),
        ),
    )


def _causes(spec: UnitSpec, gathered_bytes: int, ranks: int) -> Iterator[str]:
    """Parameters whose part alone breaks it, where their width is known."""
    numel = sum(max(p.padded_local_numel, 0) for p in spec.params) * ranks
    width = gathered_bytes // numel if numel and gathered_bytes % numel == 0 else 0
    for param in spec.params:
        if width and param.padded_local_numel * width % ALIGNMENT:
            yield param.fqn


def one_queue(m: Measures) -> Iterator[Finding]:
    """The variable is set, and there is no device yet that would obey it."""
    ranks = tuple(
        rank.rank
        for rank in m.ranks
        if rank.header.environment.get(CONNECTIONS) == "1"
        and any(shard_ranks(m, spec) > 1 for spec in rank.units)
    )
    if not ranks:
        return
    yield Finding(
        severity=Severity.INFO,
        confidence=Confidence.MEDIUM,
        summary=f"on a GPU {CONNECTIONS}=1 will make all streams of a device take "
        "turns: FSDP2's collectives will not run under compute that was launched "
        "before them",
        ranks=ranks,
        evidence={CONNECTIONS: "1"},
        advice=(Advice(text=UNSET, memory_cost_bytes=0),),
    )


UNSET = (
    f"Unset {CONNECTIONS}, or set it to 32, before the process starts; setting it from "
    "Python later has no effect. Tensor parallelism sometimes wants it: then weigh "
    "both."
)
