"""Meshes and links of a plan: what collectives cost on groups that a run had not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import Link, Reach, Role, bus_factor, parse_network
from fsdpdoctor.schema import ITEMSIZE, UNKNOWN, Kind
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import CommCost, CommCosts, Mesh, Step, Unit

INSIDE = 4.0
"""Times as fast as between hosts: an H100's NVLink carries 9 times what its adapter of
400 Gb/s does, a PCIe switch as much as the adapter. Between as fast and free."""


def on_mesh(
    plan: Plan,
    step: Step,
    constraints: RunConstraints,
    said: list[str],
    unseen: dict[str, float],
) -> Step:
    """The step on another mesh, or other links, as the plan has it. What it takes for
    granted is added to `said`, links that the run did not use to `unseen`.
    """
    if plan.replicate is None and plan.world_size is None and plan.bandwidth is None:
        return step
    old = step.mesh
    world = plan.world_size or old.world_size
    replicas = plan.replicate or (old.replicate if world % old.replicate == 0 else 1)
    if world % replicas:
        raise UsageError(f"{world} ranks cannot be {replicas} replicas of a shard")
    mesh = Mesh(shard=world // replicas, replicate=replicas)
    wires = _wires(plan, step.wires, old, mesh, constraints, said, unseen)
    units = tuple(
        _on_shards(scaled(u, u, old.shard, mesh.shard), mesh.shard) for u in step.units
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
    unseen: dict[str, float],
) -> CommCosts:
    if plan.bandwidth is not None:
        return _linked(plan.bandwidth, mesh, constraints, wires, said)
    if mesh == old:
        return wires
    if constraints.network is not None:
        return _linked(constraints.network, mesh, constraints, wires, said)
    if mesh.shard > 1 and old.shard == 1:
        raise UsageError(
            "this run had no all-gather to take a speed from: give --bandwidth"
        )
    faster = _times_as_fast(old.shard, mesh.shard, constraints, said)
    if faster is None:
        said.append("links are as fast for the new groups as they were for the old")
    else:
        unseen |= {"all_gather": faster, "reduce_scatter": faster}
    ring = (old.shard - 1) / old.shard
    share = (mesh.shard - 1) / mesh.shard if mesh.shard > 1 else ring
    times = (faster or 1.0) * ring / share
    gather, scatter = (
        replace(wire, bytes_per_second=wire.bytes_per_second * times)
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


def _times_as_fast(
    before: int, after: int, constraints: RunConstraints, said: list[str]
) -> float | None:
    """How much faster the links of smaller groups are taken to be than those that the
    run used; None: they are the same links. Raises UsageError where groups would leave
    a host that the run's stayed in: how slow that is, nothing tells.
    """
    node = constraints.local_world_size
    if node != UNKNOWN and 1 < before <= node < after:
        raise UsageError(
            f"{after} ranks that shard span hosts of {node}, and this run shows links "
            "inside a host only: give --bandwidth, as inter=ib400"
        )
    if not 1 < after < before:
        return None
    if node == UNKNOWN:
        said.append(
            "the run does not say how many ranks a host has: links of the new groups "
            "are taken to be as fast, and the error reaches to links that cost nothing"
        )
        return 1.0
    if before <= node or after > node:
        return None
    said.append(
        "the run does not show links inside a host: they are taken to be "
        f"{INSIDE:.0f} times as fast, and the error reaches from as fast to links that "
        "cost nothing; --bandwidth says how fast they are"
    )
    return INSIDE


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


def gather_over(
    step: Step,
    size: int,
    constraints: RunConstraints,
    said: list[str],
    unseen: dict[str, float],
) -> CommCost:
    """The gather over fewer ranks, at the bus bandwidth of the one over all."""
    wire, shards = step.wires.all_gather, step.mesh.shard
    gather = Kind.ALL_GATHER
    node = constraints.local_world_size
    if constraints.network is not None and node != UNKNOWN:
        reach = Reach.INTRA if size <= node else Reach.INTER
        link = parse_network(constraints.network).link(Role.OTHER, reach, gather)
        return wire_of(link, gather, size)
    faster = _times_as_fast(shards, size, constraints, said)
    if faster is not None:
        unseen["post_forward"] = faster
    share = bus_factor(gather, shards) / bus_factor(gather, size) * (faster or 1.0)
    return replace(wire, bytes_per_second=wire.bytes_per_second * share)


def scaled(old: Unit, new: Unit, old_shards: int, new_shards: int) -> Unit:
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
