"""FD507: state that ranks must hold alike is not alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdpdoctor.analysis.alike.reaches import Sets, data_parallel_only, reaches
from fsdpdoctor.analysis.alike.replicas import BEFORE, Replica, compared
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count
from fsdpdoctor.schema import Evidence, ReplicaKind

NAMED = 3
"""Names said in a summary; the evidence has all."""

SEED = "\n".join(
    [
        "import torch",
        "import torch.distributed as dist",
        "",
        "# Either: the same seed on every rank, before the model is built.",
        "torch.manual_seed(0)",
        "# Or: rank 0's values everywhere, once, before fully_shard.",
        "with torch.no_grad():",
        "    for tensor in (*model.parameters(), *model.buffers()):",
        '        if not hasattr(tensor, "placements"):  # FSDP2 shards the others',
        "            dist.broadcast(tensor, src=0)",
    ]
)


@detector("FD507", "replicas-differ", needs={Evidence.REPLICAS})
def replicas_differ(m: Measures) -> Iterator[Finding]:
    """Ranks hold different values of what should be one.

    *Why it costs*: nothing fails. Parameters and buffers outside FSDP2's units, the
    copies of a hybrid-sharded unit, the learning rate and the count of steps are each
    rank's own; if they differ, every rank trains a model of its own, and what is
    saved is one of them, or a mixture.

    *What to try*: the same seed on every rank before the model is built, or one
    broadcast after; schedulers and loaders that take the same number of steps on
    every rank; buffers filled on every rank after `to_empty`.

    *When it is wrong*: a few elements of a few tensors are sampled, so agreement is
    no proof, but a difference is. Expert or tensor parallelism by hand gives each
    rank its own parameters: where groups other than FSDP2's divide the ranks, such
    parameters are not judged. Statistics of batches (BatchNorm) differ by design:
    buffers that change as they train are only mentioned.
    """
    headers = [rank.header for rank in m.ranks]
    replicas = list(compared(headers))
    if not replicas:
        raise CannotTell(
            "fewer than two ranks sampled what they must hold alike", Evidence.RANKS
        )
    differ = [replica for replica in replicas if not replica.alike]
    if not differ:
        return
    yield from _optimizers(m, differ)
    yield from _copies(m, differ)
    if data_parallel_only(headers):
        yield from _from_the_start(m, differ)
        yield from _buffers(m, differ)


def _optimizers(m: Measures, differ: Sequence[Replica]) -> Iterator[Finding]:
    found = [one for one in differ if one.kind == ReplicaKind.OPTIMIZER]
    if found:
        yield _finding(
            m,
            found,
            f"ranks step differently: {_names(found)} differ {_since(found)}",
            Advice(
                text="Step the optimizer and its scheduler on every rank, every step, "
                "with the same arguments: skip a step on all ranks or on none.",
            ),
        )


def _copies(m: Measures, differ: Sequence[Replica]) -> Iterator[Finding]:
    """Shards that a replicate group should keep equal."""
    headers = [rank.header for rank in m.ranks]
    unit_of = {
        param.fqn: spec.fqn
        for header in headers
        for spec in header.units
        for param in spec.params
    }
    reached = reaches(headers)
    found = [
        one
        for one in differ
        if one.kind == ReplicaKind.SHARD
        and _in_one(one.ranks, reached.get(unit_of.get(one.name, ""), []))
    ]
    if found:
        yield _finding(
            m,
            found,
            f"copies of one shard differ: {_names(found)}, {_since(found)}, although "
            "their gradients are reduced over these ranks",
            Advice(
                text="Build the model from the same seed on every rank, or broadcast "
                "it over the replicate dimension before training.",
                code=SEED,
            ),
        )


def _in_one(ranks: Sequence[int], sets: Sets) -> bool:
    return any(set(ranks) <= set(one) for one in sets if ranks[0] in one)


def _from_the_start(m: Measures, differ: Sequence[Replica]) -> Iterator[Finding]:
    """Parameters outside every unit that never were alike."""
    found = [
        one
        for one in differ
        if one.kind == ReplicaKind.OUTSIDE
        and (one.differ_since == BEFORE or not one.trainable)
    ]
    if found:
        yield _finding(
            m,
            found,
            f"{count(len(found), 'parameter')} outside every unit had other values on "
            f"other ranks {_since(found)}: {_names(found)}",
            Advice(
                text="Seed every rank alike before the model is built, or broadcast "
                "what FSDP2 does not shard.",
                code=SEED,
            ),
        )


def _buffers(m: Measures, differ: Sequence[Replica]) -> Iterator[Finding]:
    buffers = [one for one in differ if one.kind == ReplicaKind.BUFFER]
    found = [one for one in buffers if not one.changes and len(one.steps) > 1]
    if found:
        yield _finding(
            m,
            found,
            f"{count(len(found), 'buffer')} that training does not change differ over "
            f"ranks: {_names(found)}",
            Advice(
                text="Fill buffers on every rank: after `to_empty` they hold what lay "
                "in memory.",
                code=SEED,
            ),
        )


def _finding(
    m: Measures, found: Sequence[Replica], summary: str, advice: Advice
) -> Finding:
    camps = max((one.camps for one in found), key=len)
    usual = max(camps, key=len)
    odd = [rank for camp in camps for rank in camp if camp is not usual]
    return Finding(
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        summary=summary,
        # Of two ranks nobody knows which one is right.
        ranks=tuple(sorted(odd if len(usual) > 1 else {*usual, *odd})),
        evidence={
            "names": [one.name for one in found],
            "kinds": [*sorted({str(one.kind) for one in found})],
            "sampled_after_steps": list(found[0].steps),
            "alike": [list(camp) for camp in camps],
        },
        advice=(advice,),
    )


def _names(found: Sequence[Replica]) -> str:
    names = ", ".join(one.name for one in found[:NAMED])
    return names if len(found) <= NAMED else f"{names}, ..."


def _since(found: Sequence[Replica]) -> str:
    since = min(one.differ_since for one in found if one.differ_since is not None)
    return "from the start" if since == BEFORE else f"since step {since} at the latest"
