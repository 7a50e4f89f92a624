"""Search: the changes worth making, cheapest first.

Single changes first, then combinations of those that win something, each simulated.
What is kept is the Pareto front of step time against peak memory; of changes that
give the same, the one with the fewest lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fsdpdoctor.changes.plan import ALL, Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor.schema import UNKNOWN
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.plans.change_step import backward_order, recomputes
from fsdpdoctor.simulate.plans.predict import Prediction, Replay, predict

CODE_COST: Mapping[str, int] = {
    "unshard_async_op": 1,
    "forward_prefetch": 2,
    "backward_prefetch": 2,
    "max_input_buffers": 1,
    "separate_reduce_scatter_group": 1,
    "reshard_after_forward": 1,
    "accumulation": 2,
    "split_root": 3,
    "wrap": 3,
    "merge": 4,
    "replicate": 5,
}
"""About how many lines each change takes in a user's script."""

METHODS: Mapping[str, str] = {
    "forward_prefetch": "set_modules_to_forward_prefetch",
    "backward_prefetch": "set_modules_to_backward_prefetch",
    "unshard_async_op": "_set_unshard_async_op",
    "max_input_buffers": "set_reduce_scatter_max_input_buffers",
    "separate_reduce_scatter_group": "set_separate_reduce_scatter_group",
    "accumulation": "set_requires_gradient_sync",
}
"""What of FSDPModule a change calls; the torch that ran must have it."""

SAME = 0.005
"""Steps that differ by less are taken to be equal: the cheaper change is kept."""

BEAM = 8
"""How many of the best combinations are extended by one more change."""

MAX_CHANGES = 3
"""In one plan. More of them at once can no longer be told apart when measured."""


def code_cost(plan: Plan) -> int:
    """About how many lines a plan takes."""
    return sum(CODE_COST.get(name, 5) for name in plan.changes)


def single_changes(base: Replay) -> Iterator[Plan]:
    """What can be tried on this run, one thing at a time."""
    step, constraints = base.calibration.step, base.calibration.constraints
    # Without streams a list only helps where the unshard does not block.
    more: dict[str, Any] = {"unshard_async_op": True} if step.blocking else {}
    if not recomputes(step):
        for depth in (1, 2):
            yield Plan(forward_prefetch=depth, **more)
            yield Plan(forward_prefetch=depth, backward_prefetch=depth, **more)
    for depth in (1, 2) if step.blocking else (2,):
        yield Plan(backward_prefetch=depth, **more)
    yield from _policies(step)
    if len(step.micro_batches) > 1 and all(m.sync for m in step.micro_batches):
        yield Plan(accumulation="last")
        yield Plan(accumulation="keep")
    if not step.blocking:
        yield Plan(max_input_buffers=2)
        yield Plan(separate_reduce_scatter_group=True)
    yield Plan(merge=2)
    yield Plan(merge=4)
    yield Plan(split_root=True)
    for block in constraints.blocks:
        yield Plan(wrap=block.module_class)
    nodes = _nodes(step, constraints.local_world_size)
    if nodes > 1 and step.mesh.replicate == 1:
        yield Plan(replicate=nodes)


def _policies(step: Step) -> Iterator[Plan]:
    roots = set(step.root.units)
    order = [u for u in backward_order(step) if u not in roots]
    resharding = [u for u in order if step.units[u].reshard_after_forward is True]
    if resharding:
        yield Plan(reshard_after_forward={ALL: False})
        last = resharding[0]
        yield Plan(reshard_after_forward={step.units[last].fqn: False})
        half = resharding[: len(resharding) // 2]
        if len(half) > 1:
            names = {step.units[u].fqn: False for u in half}
            yield Plan(reshard_after_forward=names)
    elif order:
        yield Plan(reshard_after_forward={ALL: True})


def _nodes(step: Step, local_world_size: int) -> int:
    if local_world_size == UNKNOWN or step.mesh.world_size % local_world_size:
        return 1
    return step.mesh.world_size // local_world_size


def possible(plans: Iterable[Plan], available: Sequence[str] | None) -> list[Plan]:
    """Those that call nothing which the torch that ran does not have."""
    if not available:
        return list(plans)
    return [
        plan
        for plan in plans
        if all(METHODS.get(name, name) in (name, *available) for name in plan.changes)
    ]


def search(base: Replay, limit_bytes: int | None = None) -> list[Prediction]:
    """The front, cheapest code change first. Nothing that the run forbids is on it."""
    available = base.calibration.constraints.available
    singles = _tried(base, possible(single_changes(base), available))
    useful = [p for p in singles if p.gain_ns > 0 or p.memory_cost_bytes < 0]
    every, beam = list(singles), useful
    for _ in range(MAX_CHANGES - 1):
        beam = sorted(beam, key=lambda p: p.step_ns)[:BEAM]
        seen = {str(p.plan) for p in every}
        combined = {
            str(plan): plan
            for one in beam
            for other in useful
            if (plan := _combined(one.plan, other.plan)) is not None
            and str(plan) not in seen
        }
        beam = _tried(base, combined.values())
        every += beam
    fitting = [
        p
        for p in every
        if limit_bytes is None or p.peak_bytes is None or p.peak_bytes <= limit_bytes
    ]
    return _front(base, fitting)


def _tried(base: Replay, plans: Iterable[Plan]) -> list[Prediction]:
    result = []
    for plan in plans:
        try:
            prediction = predict(base, plan)
        except UsageError:
            continue  # this model has no such parts
        if prediction.forbidden is None:
            result.append(prediction)
    return result


def _combined(one: Plan, other: Plan) -> Plan | None:
    """Both, unless they say something about the same thing."""
    mine, more = one.changes, other.changes
    clash = [name for name in mine if name in more and mine[name] != more[name]]
    if clash or set(more) <= set(mine):
        return None
    # Units' names change with a regrouping: what is said of one may not be there.
    regroups = {"merge", "split_root", "wrap"} & set(mine | more)
    policy = (mine | more).get("reshard_after_forward")
    if regroups and policy and set(policy) != {ALL}:
        return None
    return replace(one, **more)


def _front(base: Replay, predictions: Sequence[Prediction]) -> list[Prediction]:
    """Predictions that no other one beats in time, memory and code at once."""
    same = SAME * base.calibration.measured_ns
    kept: list[Prediction] = []
    for p in predictions:
        if p.gain_ns <= same and p.memory_cost_bytes >= 0:
            continue
        beaten = any(_beats(q, p, same) for q in predictions if q is not p)
        if not beaten:
            kept.append(p)
    return sorted(kept, key=lambda p: (code_cost(p.plan), -p.gain_ns))


def _beats(one: Prediction, other: Prediction, same: float) -> bool:
    """At least as good in every respect, and better in one."""
    no_slower = one.step_ns <= other.step_ns + same
    no_bigger = one.memory_cost_bytes <= other.memory_cost_bytes
    costs, others = code_cost(one.plan), code_cost(other.plan)
    if not (no_slower and no_bigger and costs <= others):
        return False
    faster = one.step_ns + same < other.step_ns
    smaller = one.memory_cost_bytes < other.memory_cost_bytes
    if faster or smaller or costs < others:
        return True
    return (one.step_ns, str(one.plan)) < (other.step_ns, str(other.plan))
