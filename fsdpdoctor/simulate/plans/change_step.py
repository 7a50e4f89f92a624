"""From a plan and a step to the changed step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from fsdpdoctor.changes.plan import ALL, Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import Link, Reach, Role, bus_factor, parse_network
from fsdpdoctor.schema import ITEMSIZE, UNKNOWN, Kind
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    CommCost,
    CommCosts,
    Mesh,
    MicroBatch,
    Node,
    Step,
    Unit,
)
from fsdpdoctor.simulate.plans.regroup import merge_neighbours, split_root, wrap_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedStep:
    """A changed step, and what had to be taken for granted to make it."""

    step: Step
    assumptions: tuple[str, ...] = ()


def changed(plan: Plan, step: Step, constraints: RunConstraints) -> ChangedStep:
    """The step as it would be under a plan. Raises UsageError where it cannot be."""
    if constraints.inferred:
        _refuse_unknown(plan)
    said: list[str] = []
    step = _regrouped(plan, step, constraints, said)
    step = _in_dtypes(plan, step, said)
    step = _on_mesh(plan, step, constraints, said)
    step = _resharding(plan, step)
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
    return ChangedStep(step=_prefetching(plan, step), assumptions=tuple(said))


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
        units.append(_scaled(unit, new, step.mesh.shard, step.mesh.shard))
    if plan.param_dtype is not None:
        less = "" if step.blocking else ", or less: the error reaches to much less"
        said.append(f"compute takes as long in {plan.param_dtype} as it does now{less}")
    return replace(step, units=tuple(units))


def _scaled(old: Unit, new: Unit, old_shards: int, new_shards: int) -> Unit:
    """Copies cost by their bytes: a shard in, the whole out, the gradients in."""

    def by(size: Callable[[Unit, int], int], cost: int) -> int:
        before, after = size(old, old_shards), size(new, new_shards)
        return round(cost * after / before) if before else cost

    return replace(
        new,
        copy_in_ns=by(lambda u, n: u.gathered_bytes(n) // n, old.copy_in_ns),
        copy_out_ns=by(Unit.gathered_bytes, old.copy_out_ns),
        reduce_copy_in_ns=by(Unit.reduced_bytes, old.reduce_copy_in_ns),
    )


# -- mesh and links


def _on_mesh(
    plan: Plan, step: Step, constraints: RunConstraints, said: list[str]
) -> Step:
    if plan.replicate is None and plan.world_size is None and plan.bandwidth is None:
        return step
    old = step.mesh
    world = plan.world_size or old.world_size
    replicas = plan.replicate or (old.replicate if world % old.replicate == 0 else 1)
    if world % replicas:
        raise UsageError(f"{world} ranks cannot be {replicas} replicas of a shard")
    mesh = Mesh(shard=world // replicas, replicate=replicas)
    wires = _wires(plan, step.wires, old, mesh, constraints, said)
    units = tuple(
        _on_shards(_scaled(u, u, old.shard, mesh.shard), mesh.shard) for u in step.units
    )
    resident = step.resident_bytes
    if resident:
        resident += _states(step, mesh.shard) - _states(step, old.shard)
    if mesh.shard != old.shard and mesh != old:
        said.append("each rank's batch, and so its compute, stays as it is")
    return replace(step, mesh=mesh, wires=wires, units=units, resident_bytes=resident)


def _on_shards(unit: Unit, shards: int) -> Unit:
    """An integer reshard that no longer divides becomes a plain one."""
    size = unit.reshard_after_forward
    if isinstance(size, bool) or (1 < size < shards and shards % size == 0):
        return unit
    return replace(unit, reshard_after_forward=True)


def _states(step: Step, shards: int) -> int:
    """A rank's parameters and optimizer states."""
    total = 0
    for unit in step.units:
        padded, trainable = unit.padded(shards)
        itemsize = ITEMSIZE[unit.orig_dtype]
        total += (padded + step.state_copies * trainable) // shards * itemsize
    return total


def _wires(
    plan: Plan,
    wires: CommCosts,
    old: Mesh,
    mesh: Mesh,
    constraints: RunConstraints,
    said: list[str],
) -> CommCosts:
    if plan.bandwidth is not None:
        return _linked(plan.bandwidth, mesh, constraints, wires, said)
    if mesh == old:
        return wires
    if mesh.shard > 1 and old.shard == 1:
        raise UsageError(
            "this run had no all-gather to take a speed from: give --bandwidth"
        )
    said.append("links are as fast for the new groups as they were for the old ones")
    ring = (old.shard - 1) / old.shard
    share = (mesh.shard - 1) / mesh.shard if mesh.shard > 1 else ring
    gather, scatter = (
        replace(wire, bytes_per_second=wire.bytes_per_second * ring / share)
        for wire in (wires.all_gather, wires.reduce_scatter)
    )
    reduce = wires.all_reduce
    if mesh.replicate > 1:
        if reduce is not None and old.replicate > 1:
            before, after = (2 * (r - 1) / r for r in (old.replicate, mesh.replicate))
            rate = reduce.bytes_per_second * before / after
        else:
            after = 2 * (mesh.replicate - 1) / mesh.replicate
            rate = wires.reduce_scatter.bytes_per_second * ring / after
            said.append("all-reduces run at the reduce-scatter's bus bandwidth")
        reduce = CommCost(latency_ns=scatter.latency_ns, bytes_per_second=rate)
    return replace(wires, all_gather=gather, reduce_scatter=scatter, all_reduce=reduce)


def _linked(
    text: str,
    mesh: Mesh,
    constraints: RunConstraints,
    wires: CommCosts,
    said: list[str],
) -> CommCosts:
    """Wires from links as `--bandwidth` names them."""
    model = parse_network(text)
    node = constraints.local_world_size
    if node == UNKNOWN:
        node = mesh.world_size
        said.append("all ranks are on one node: the run does not say how many are")
    shard = Reach.INTRA if mesh.shard <= node else Reach.INTER
    replicas = Reach.INTRA if mesh.world_size <= node else Reach.INTER

    def wire(role: Role, reach: Reach, kind: Kind, ranks: int) -> CommCost:
        return wire_of(model.link(role, reach, kind), kind, ranks)

    small = wires.post_forward
    if small is not None:
        # Some of the ranks that shard are a group that no other role names.
        ranks = wires.post_forward_ranks or mesh.shard
        small = wire(Role.OTHER, Reach.INTRA, Kind.ALL_GATHER, ranks)
    return CommCosts(
        all_gather=wire(Role.SHARD, shard, Kind.ALL_GATHER, mesh.shard),
        reduce_scatter=wire(Role.SHARD, shard, Kind.REDUCE_SCATTER, mesh.shard),
        all_reduce=wire(Role.REPLICATE, replicas, Kind.ALL_REDUCE, mesh.replicate)
        if mesh.replicate > 1
        else wires.all_reduce,
        post_forward=small,
        post_forward_ranks=wires.post_forward_ranks,
    )


def wire_of(link: Link, kind: Kind, ranks: int) -> CommCost:
    """What a link costs a group of so many ranks."""
    moved = bus_factor(kind, ranks) if ranks > 1 else 1.0
    return CommCost(
        latency_ns=link.latency_ns, bytes_per_second=link.bytes_per_second / moved
    )


# -- policies


def _resharding(plan: Plan, step: Step) -> Step:
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
            small = _small(step, size)
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


def _small(step: Step, size: int) -> CommCost:
    """The gather over fewer ranks, at the bus bandwidth of the one over all."""
    wire, shards = step.wires.all_gather, step.mesh.shard
    gather = Kind.ALL_GATHER
    share = bus_factor(gather, shards) / bus_factor(gather, size)
    return replace(wire, bytes_per_second=wire.bytes_per_second * share)


def _accumulating(plan: Plan, step: Step) -> Step:
    if plan.accumulation is None and plan.micro_batches is None:
        return step
    count = plan.micro_batches or len(step.micro_batches)
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
    for field, depth, each, row in (
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
                field: tuple(row[at + 1 : at + 1 + ahead])
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
