"""FD508: parameters that no unit covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdpdoctor.analysis.alike.exchanges import Exchange, Unkept, exchanges, kept_apart
from fsdpdoctor.analysis.alike.replicas import Replica, compared
from fsdpdoctor.analysis.call_sites import calls
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.sharding_code import whole_code
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.unit_order import unit_tree_of
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, percent, size
from fsdpdoctor.schema import Evidence, ModelSpec, Phase, ReplicaKind

# `docs/detectors.md` D29: memory that sharding would save, as a share of the model.
MEMORY_SHARE = 0.1

NAMED = 3
"""Names said in a summary; the evidence has all."""

REDUCE = "\n".join(
    [
        "import torch.distributed as dist",
        "",
        "# Between backward and optimizer.step(), on every rank:",
        "for param in model.parameters():",
        '    if param.grad is not None and not hasattr(param, "placements"):',
        "        dist.all_reduce(param.grad)",
        "        param.grad /= dist.get_world_size()",
    ]
)


@detector("FD508", "outside-fsdp", needs={Evidence.UNITS, Evidence.CONFIG})
def outside_fsdp(m: Measures) -> Iterator[Finding]:
    """Parameters lie outside every unit: held whole, and reduced by nobody.

    *Why it costs*: FSDP2 reduces the gradients of its units and of nothing else.
    Trainable parameters outside (a head beside the sharded model, adapters in
    `ignored_params`) train on each rank's own data, silently; and every rank holds
    all of them.

    *What to try*: `fully_shard` the outermost module, which takes what no unit has
    yet; or average their gradients between backward and the optimizer's step. What
    was added to a module after it was sharded has to be there before.

    *When it is wrong*: a script may reduce these gradients itself. Then ranks stay
    alike, which is sampled, and nothing is said; ranks that see the same data stay
    alike, too, and ranks that average these parameters now and then differ by right.
    Ranks that exchange activations may hold other parts: a warning. Without samples
    of two ranks it is not known, and said so, unless the script all-reduces as many
    bytes as these gradients have.
    """
    model = m.ranks[0].header.model if m.ranks else None
    if model is None:
        raise CannotTell("the model was not described", Evidence.CONFIG)
    if model.wrapper != "fsdp2" or not model.unmanaged_params:
        return
    trained = [
        one
        for one in compared([rank.header for rank in m.ranks])
        if one.kind == ReplicaKind.OUTSIDE and one.trainable
    ]
    unkept = Unkept(exchanges(m.ranks), _trained_bytes(model))
    works = {one: kept_apart(one, unkept) for one in trained if one.drifted}
    apart = [one for one, pairs in works.items() if pairs]
    if apart:
        yield _unreduced(
            m, model, apart, [work for one in apart for work in works[one]]
        )
    elif model.unmanaged_trainable and not trained and not _reduced_by_hand(m, model):
        yield _not_known(m, model)
    elif _chosen_by_nobody(model):
        yield _memory(m, model)


def _unreduced(
    m: Measures,
    model: ModelSpec,
    apart: Sequence[Replica],
    works: Sequence[Exchange | None],
) -> Finding:
    since = min(one.differ_since for one in apart if one.differ_since is not None)
    work = None if None in works else works[0]
    perhaps = (
        ""
        if work is None
        else f"; they exchange {work.kind} in their forwards, and may hold other parts"
    )
    return _finding(
        m,
        model,
        severity=Severity.CRITICAL if work is None else Severity.WARNING,
        confidence=Confidence.HIGH if work is None else Confidence.MEDIUM,
        summary=f"{_what(model)}: no collective reduces their gradients, and the "
        f"ranks' copies differ since step {since}{perhaps}",
        advice=_advice(m, model),
    )


def _not_known(m: Measures, model: ModelSpec) -> Finding:
    """Trainable, and no two ranks to compare."""
    alone = m.run.world_size == 1
    return _finding(
        m,
        model,
        severity=Severity.INFO if alone else Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{_what(model)}: their gradients are not reduced over ranks by FSDP2, "
        "and whether the script does it was not sampled",
        advice=_advice(m, model),
    )


def _reduced_by_hand(m: Measures, model: ModelSpec) -> bool:
    """Whether the script all-reduces as many bytes in each step as it would for them.

    Half as many, where it does so in a dtype of half the size.
    """
    reduced = sum(
        found.bytes
        for of, found in calls(m).items()
        if of.kind == "all_reduce" and of.phase != Phase.FORWARD
    )
    steps = sum(int(rank.judged.sum()) for rank in m.ranks)
    return 0 < steps * _trained_bytes(model) / 2 <= reduced


def _trained_bytes(model: ModelSpec) -> int:
    """Of the parameters outside; of an older record, which does not tell, all."""
    mine = model.unmanaged_trainable_numel
    if mine <= 0 or model.unmanaged_numel <= 0:
        return model.unmanaged_bytes
    return model.unmanaged_bytes * mine // model.unmanaged_numel


def _chosen_by_nobody(model: ModelSpec) -> bool:
    """Whether enough memory is left unsharded that nobody asked to be left."""
    share = model.unmanaged_numel / model.numel if model.numel > 0 else 0.0
    return share >= MEMORY_SHARE and model.ignored_params < model.unmanaged_params


def _memory(m: Measures, model: ModelSpec) -> Finding:
    return _finding(
        m,
        model,
        severity=Severity.INFO,
        confidence=Confidence.HIGH,
        summary=f"{_what(model)}: every rank holds all of them",
        advice=_advice(m, model)[:1],
    )


def _what(model: ModelSpec) -> str:
    """Which, how many, and what they are a share of."""
    of_model = percent(model.unmanaged_numel / model.numel) if model.numel > 0 else "?"
    names = ", ".join(model.unmanaged_fqns[:NAMED])
    more = ", ..." if model.unmanaged_params > NAMED else ""
    ignored = (
        f", {model.ignored_params} by ignored_params" if model.ignored_params else ""
    )
    kind = "parameter" if not model.unmanaged_trainable else "trainable parameter"
    number = model.unmanaged_trainable or model.unmanaged_params
    return (
        f"{count(number, kind)} outside every unit ({names}{more}{ignored}; "
        f"{size(model.unmanaged_bytes)}, {of_model} of the model's elements)"
    )


def _advice(m: Measures, model: ModelSpec) -> tuple[Advice, ...]:
    reduce = Advice(
        text="Average these gradients yourself: one all-reduce of each, or of all of "
        "them in one buffer.",
        code=REDUCE,
        memory_cost_bytes=0,
    )
    if model.ignored_params >= model.unmanaged_params:
        text = "Leave them out of `ignored_params`, so that their unit shards them."
        return (reduce, Advice(text=text, memory_cost_bytes=-_sharded_away(m, model)))
    if _added_late(m, model):
        text = (
            "They lie in modules that were sharded before they were there, and "
            "`fully_shard` takes a module once: add them before it, so that their "
            "unit shards them."
        )
        before = Advice(text=text, memory_cost_bytes=-_sharded_away(m, model))
        return (reduce, before) if model.unmanaged_trainable else (before,)
    shard = Advice(
        text="Shard the outermost module too: it takes every parameter that is in no "
        "unit yet.",
        code=_whole(m),
        memory_cost_bytes=-_sharded_away(m, model),
    )
    return (shard, reduce) if model.unmanaged_trainable else (shard,)


def _added_late(m: Measures, model: ModelSpec) -> bool:
    """Whether a module around them is sharded already.

    A root's name is its own tree's, and may be a part of the model: its class tells.
    """
    around: set[str] = set()
    for unit in unit_tree_of(m).units:
        if unit.modules == ("",) and unit.module_class == model.model_class:
            return True
        around |= {f"{path}." for path in unit.modules if path}
    return any(name.startswith(tuple(around)) for name in model.unmanaged_fqns)


def _whole(m: Measures) -> str | None:
    """A `fully_shard` around all units: it takes what is left."""
    tree = unit_tree_of(m)
    return whole_code(tree.units[0], tree) if tree.units else None


def _sharded_away(m: Measures, model: ModelSpec) -> int:
    """Bytes of parameters that each rank would no longer hold."""
    ranks = max(m.run.world_size, 1)
    return round(model.unmanaged_bytes * (ranks - 1) / ranks)


def _finding(
    m: Measures,
    model: ModelSpec,
    *,
    severity: Severity,
    confidence: Confidence,
    summary: str,
    advice: tuple[Advice, ...],
) -> Finding:
    return Finding(
        severity=severity,
        confidence=confidence,
        summary=summary,
        units=model.unmanaged_fqns,
        cost_bytes=model.unmanaged_bytes,
        evidence={
            "parameters": list(model.unmanaged_fqns),
            "count": model.unmanaged_params,
            "trainable": model.unmanaged_trainable,
            "ignored_params": model.ignored_params,
            "share_of_model": round(model.unmanaged_numel / max(model.numel, 1), 4),
        },
        advice=advice,
    )
