"""Frozen units whose backward yields a gradient that nobody uses (FD503)."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.changes.code import what_model_is
from fsdpdoctor.changes.quoting import name_list
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import (
    all_units,
    gathered_bytes,
    per_step,
    unit_sums,
)
from fsdpdoctor.detectors.unit_order import tree_of_one
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.plan_file import module_names
from fsdpdoctor.quantities import count, ms, size
from fsdpdoctor.schema import UNKNOWN, Kind, Phase, UnitSpec

# As FD101: below it a fix is lost in the step's jitter.
WARNING_SHARE = 0.05

NAMED = 3
"""Parameters in a summary."""


def backward_for_nothing(m: Measures) -> Iterator[Finding]:
    """Frozen units that run before anything that trains, and yet in backward."""
    names = _before_all_that_trains(m)
    called = unit_sums(m, "calls", Phase.BACKWARD)
    names = [name for name in names if called.get(name)]
    if names and len(m.step_ns):
        yield _finding(m, names)


def _before_all_that_trains(m: Measures) -> list[str]:
    """The frozen units at the head of the forward order; the root, which holds them
    all, is no unit of that order.

    None where trainable parameters may come before them unseen: outside all units.
    """
    first = m.ranks[0]
    model = first.header.model
    if model is None or model.unmanaged_trainable or not first.first_forward:
        return []
    names = []
    for at in first.first_forward:
        spec = first.units[at]
        if spec.is_root:
            continue
        if spec.frozen_numel == UNKNOWN or _trains(first, spec):
            break
        names.append(spec.fqn)
    return names if _trains_later(first, names) else []


def _trains(rank: RankMeasures, spec: UnitSpec) -> bool:
    """Whether a unit, or one inside it, has anything that trains."""
    inside = tuple(f"{path}." for path in spec.fqn.split(", "))
    return any(
        other.trainable_numel != 0
        for other in rank.units
        if other is spec or other.fqn.startswith(inside)
    )


def _trains_later(rank: RankMeasures, names: list[str]) -> bool:
    """Whether the step has a gradient at all that it uses."""
    return any(spec.trainable_numel > 0 for spec in rank.units if spec.fqn not in names)


def _root_trains(m: Measures) -> list[str]:
    """Trainable parameters of roots: what runs before the units may be theirs."""
    return [
        param.fqn
        for spec in all_units(m).values()
        if spec.is_root
        for param in spec.params
        if param.trainable
    ]


def _root_unknown(m: Measures) -> bool:
    roots: list[UnitSpec] = [spec for spec in all_units(m).values() if spec.is_root]
    return any(spec.trainable_numel and not spec.params for spec in roots)


def _finding(m: Measures, names: list[str]) -> Finding:
    stalls = exposed(m).of(Kind.ALL_GATHER, phase=Phase.BACKWARD).named(*names)
    compute = unit_sums(m, "compute_ns", Phase.BACKWARD)
    compute_ns = per_step(m, sum(compute.get(name, 0) for name in names))
    waited_ns = stalls.ns_per_step if m.stalls_known else 0
    cost_ns = waited_ns + compute_ns  # without it neither would be
    moved = per_step(m, gathered_bytes(m, names, Phase.BACKWARD))
    beside = _root_trains(m)
    unsure = bool(beside) or _root_unknown(m)
    share = cost_ns / float(m.step_ns.mean())
    but = ""
    if unsure:
        named = ", ".join(beside[:NAMED]) + (", ..." if len(beside) > NAMED else "")
        but = f"; needed only where {named or 'the root'} runs before them"
    return Finding(
        severity=Severity.WARNING
        if share >= WARNING_SHARE and not unsure
        else Severity.INFO,
        confidence=Confidence.LOW if unsure else Confidence.HIGH,
        summary=f"{count(len(names), 'frozen unit')} run in backward before which "
        f"nothing trains: {size(moved)} gathered again, {ms(waited_ns)} exposed, and "
        f"{ms(compute_ns)} of compute per step for a gradient that nobody uses{but}",
        units=tuple(names),
        phase="backward",
        cost_ns_per_step=cost_ns,
        cost_bytes=moved,
        evidence={
            "exposed_ns": waited_ns,
            "backward_compute_ns": compute_ns,
            "trainable_in_root": list(beside),
        },
        advice=(_advice(m, names),),
        places=stalls.places(),
    )


def _advice(m: Measures, names: list[str]) -> Advice:
    model = m.ranks[0].header.model
    if model is not None and model.checkpoint == "reentrant":
        return Advice(
            text="Pass use_reentrant=False to checkpoint(), and do not make the input "
            "require gradients (enable_input_require_grads): only a reentrant "
            "checkpoint needs that, and with it every frozen unit has a backward.",
            memory_cost_bytes=0,
        )
    said = (
        "Run the frozen units without gradients; their input then needs none, either "
        "(no requires_grad_() on it, no enable_input_require_grads)."
    )
    tree = tree_of_one(m, names)
    if tree is None:
        return Advice(text=said)
    whose = "# `model` is your model, sharded."
    paths = [path for name in names for path in module_names(name)]
    return Advice(
        text=said,
        code="\n".join(
            [
                "import torch",
                "",
                whose if tree.called is None else what_model_is(tree),
                f"for name in {name_list(paths)}:",
                "    unit = model.get_submodule(name)",
                "    unit.forward = torch.no_grad()(unit.forward)",
            ]
        ),
        memory_cost_bytes=0,
    )
