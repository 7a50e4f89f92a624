"""From a plan and a step to the changed step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fsdpdoctor.changes.plan import ALL, Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    MicroBatch,
    Node,
    Step,
    Unit,
)
from fsdpdoctor.simulate.plans.links import gather_over, on_mesh, scaled
from fsdpdoctor.simulate.plans.regroup import merge_neighbours, split_root, wrap_blocks

MOST_MICRO_BATCHES = 1024
"""Of a simulated step, or as many as the run has: each takes memory and time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedStep:
    """A changed step, and what had to be taken for granted to make it."""

    step: Step
    assumptions: tuple[str, ...] = ()
    unseen: Mapping[str, float] = field(default_factory=dict)
    """Wires on links that no collective of the run used, by their field of `CommCosts`,
    and how many times as fast as those that it used they are taken to be."""


def changed(plan: Plan, step: Step, constraints: RunConstraints) -> ChangedStep:
    """The step as it would be under a plan. Raises UsageError where it cannot be."""
    if constraints.inferred:
        _refuse_unknown(plan)
    said: list[str] = []
    step = _regrouped(plan, step, constraints, said)
    step = _in_dtypes(plan, step, said)
    unseen: dict[str, float] = {}
    step = on_mesh(plan, step, constraints, said, unseen)
    step = _resharding(plan, step, constraints, said, unseen)
    step = _accumulating(plan, step)
    if plan.separate_reduce_scatter_group is not None:
        step = replace(
            step, separate_reduce_scatter_group=plan.separate_reduce_scatter_group
        )
        if plan.separate_reduce_scatter_group:
            said.append(
                "gathers and reductions on groups of their own do not slow each other"
            )
    if plan.max_input_buffers is not None:
        step = replace(step, max_input_buffers=plan.max_input_buffers)
    step = _prefetching(plan, step)
    return ChangedStep(step=step, assumptions=tuple(said), unseen=unseen)


_PARAMETERS = "the parameters of each unit"
_DTYPES = "the dtypes of parameters and gradients"
NOT_IN_A_TRACE: Mapping[str, str] = {
    "wrap": _PARAMETERS,
    "split_root": _PARAMETERS,
    "merge": _PARAMETERS,
    "param_dtype": _DTYPES,
    "reduce_dtype": _DTYPES,
}
"""What some changes need to know, and no profiler writes down."""


def _refuse_unknown(plan: Plan) -> None:
    """Raise UsageError for a plan that needs what a trace lacks."""
    for name in plan.changes:
        if (lacks := NOT_IN_A_TRACE.get(name)) is not None:
            raise UsageError(
                f"{name} needs {lacks}, which a trace does not show: record the run "
                "with `fsdpdoctor run`"
            )


def forbidden(plan: Plan, step: Step) -> str | None:
    """Why a plan should not be proposed for this run, though it could be tried."""
    prefetches = plan.forward_prefetch or any(plan.forward_prefetch_of.values())
    if prefetches and recomputes(step):
        return (
            "forward prefetch where activations are recomputed: the lists also run "
            "during recomputation, and gather what backward has no use for"
        )
    return None


def recomputes(step: Step) -> bool:
    """Whether any module's forward runs again in backward."""
    return any(node.checkpoint is not Checkpoint.NONE for node in step.root.walk())


def _regrouped(
    plan: Plan, step: Step, constraints: RunConstraints, said: list[str]
) -> Step:
    if plan.wrap is not None:
        found = [b for b in constraints.blocks if b.module_class == plan.wrap]
        if not found:
            known = ", ".join(b.module_class for b in constraints.blocks) or "none"
            raise UsageError(
                f"{plan.wrap} is no class that repeats in this model; it has: {known}"
            )
        step = wrap_blocks(step, found[0])
        said.append("compute is shared out to the blocks by their parameters")
    if plan.split_root:
        step = split_root(step, constraints.tied)
    if plan.merge is not None and plan.merge > 1:
        step = merge_neighbours(step, plan.merge)
    return step


def _in_dtypes(plan: Plan, step: Step, said: list[str]) -> Step:
    if plan.param_dtype is None and plan.reduce_dtype is None:
        return step
    units: list[Unit] = []
    for unit in step.units:
        # A policy that names only the gathered dtype reduces in that dtype as well.
        new = replace(
            unit,
            param_dtype=plan.param_dtype or unit.param_dtype,
            reduce_dtype=plan.reduce_dtype or unit.reduce_dtype,
        )
        units.append(scaled(unit, new, step.mesh.shard, step.mesh.shard))
    if plan.param_dtype is not None:
        less = "" if step.blocking else ", or less: the error reaches to much less"
        said.append(f"compute takes as long in {plan.param_dtype} as it does now{less}")
    return replace(step, units=tuple(units))


# -- policies


def _resharding(
    plan: Plan,
    step: Step,
    constraints: RunConstraints,
    said: list[str],
    unseen: dict[str, float],
) -> Step:
    wanted = dict(plan.reshard_after_forward)
    everywhere = wanted.pop(ALL, None)
    known = {unit.fqn for unit in step.units}
    if unknown := sorted(set(wanted) - known):
        raise UsageError(_no_unit(unknown[0], known))
    if everywhere is None and not wanted:
        return step
    roots = step.root.units
    units: list[Unit] = []
    wires = step.wires
    for at, unit in enumerate(step.units):
        size = wanted.get(unit.fqn)
        if size is None and at not in roots:
            size = everywhere
        if size is None:
            units.append(unit)
            continue
        size = _policy(size, step.mesh.shard)
        if not isinstance(size, bool) and wires.post_forward is None:
            small = gather_over(step, size, constraints, said, unseen)
            wires = replace(wires, post_forward=small, post_forward_ranks=size)
        units.append(replace(unit, reshard_after_forward=size))
    return replace(step, units=tuple(units), wires=wires)


def _no_unit(name: str, known: set[str]) -> str:
    return f"{name} is no unit of this run; units are {', '.join(sorted(known))}"


def _policy(size: bool | int, shards: int) -> bool | int:
    """FSDP2's own reading of an integer."""
    if isinstance(size, bool):
        return size
    if size < 1 or size > shards or shards % size:
        raise UsageError(
            f"reshard_after_forward={size} does not divide the {shards} ranks that "
            "shard"
        )
    if size == 1:
        return False
    return True if size == shards else size


def _accumulating(plan: Plan, step: Step) -> Step:
    if plan.accumulation is None and plan.micro_batches is None:
        return step
    count = plan.micro_batches or len(step.micro_batches)
    if count > max(MOST_MICRO_BATCHES, len(step.micro_batches)):
        raise UsageError(
            f"micro_batches is {count}; a step of more than {MOST_MICRO_BATCHES:,} "
            "is not simulated"
        )
    last = MicroBatch()
    how = plan.accumulation
    if how is None:
        # As many more of what the run did before its last micro-batch.
        before = step.micro_batches[0] if len(step.micro_batches) > 1 else last
        end = step.micro_batches[-1]
    else:
        before, end = _FLAGS[how], last
    return replace(step, micro_batches=(*(before for _ in range(count - 1)), end))


_FLAGS: Mapping[str, MicroBatch] = {
    "every": MicroBatch(),
    "last": MicroBatch(sync=False),
    "keep": MicroBatch(
        sync=False, reshard_after_backward=False, is_last_backward=False
    ),
}


def _prefetching(plan: Plan, step: Step) -> Step:
    units = list(step.units)
    if plan.unshard_async_op is not None:
        units = [replace(u, unshard_async_op=plan.unshard_async_op) for u in units]
    order = forward_order(step)
    for name, depth, each, row in (
        ("forward_prefetch", plan.forward_prefetch, plan.forward_prefetch_of, order),
        (
            "backward_prefetch",
            plan.backward_prefetch,
            plan.backward_prefetch_of,
            backward_order(step),
        ),
    ):
        known = {unit.fqn for unit in units}
        if unknown := sorted(set(each) - known):
            raise UsageError(_no_unit(unknown[0], known))
        if depth is None and not each:
            continue
        for at, u in enumerate(row):
            ahead = each.get(units[u].fqn, depth)
            if ahead is None:
                continue
            targets: dict[str, tuple[int, ...]] = {
                name: tuple(row[at + 1 : at + 1 + ahead])
            }
            units[u] = replace(units[u], **targets)  # type: ignore[arg-type]
    return replace(step, units=tuple(units))


def forward_order(step: Step) -> list[int]:
    """Units in the order in which forward needs them."""
    return [u for node in step.root.walk() for u in node.units]


def backward_order(step: Step) -> list[int]:
    """Units in the order in which backward needs them."""
    return list(_begun(step.root))


def _begun(node: Node) -> Iterator[int]:
    """Units at and below a node as their pre-backward hooks run."""
    last = node.items[-1] if node.passes_output_on and node.items else None
    chain = [node]
    while isinstance(last, Node):
        chain.append(last)
        last = last.items[-1] if last.passes_output_on and last.items else None
    for one in reversed(chain):
        yield from one.units
    for one in reversed(chain):
        inside = one.items if one is chain[-1] else one.items[:-1]
        for item in reversed(inside):
            if isinstance(item, Node):
                yield from _begun(item)
