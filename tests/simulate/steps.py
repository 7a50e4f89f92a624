"""Steps for tests: small transformer-like models with known numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    CommCost,
    CommCosts,
    Mesh,
    Node,
    Param,
    Segment,
    Step,
    Unit,
)

MS = 1_000_000
DIM = 16
VOCAB = 32

ROOT_PARAMS = (
    Param(fqn="embed.weight", rows=VOCAB, row=DIM),
    Param(fqn="norm.weight", rows=DIM, row=1),
    Param(fqn="head.weight", rows=VOCAB, row=DIM),
)


def layer_params(fqn: str) -> tuple[Param, ...]:
    """Two square matrices."""
    return (
        Param(fqn=f"{fqn}.a.weight", rows=DIM, row=DIM),
        Param(fqn=f"{fqn}.b.weight", rows=DIM, row=DIM),
    )


def layer(fqn: str, **known: Any) -> Unit:
    """The unit of one block."""
    return Unit(fqn=fqn, params=layer_params(fqn), **known)


ROOT_UNIT = Unit(
    fqn="<root>",
    params=ROOT_PARAMS,
    reshard_after_forward=False,
    post_backward_at_end=True,
)


def wire(latency_ns: int = MS // 10, bytes_per_second: float = 1e6) -> CommCost:
    """About 2 ms for the 2 KiB of a layer."""
    return CommCost(latency_ns=latency_ns, bytes_per_second=bytes_per_second)


def step(layers: int = 4, **known: Any) -> Step:
    """A root around `layers` blocks; 1 ms of forward in each, 2 ms of backward.

    `known` are fields of `Step`. Unit 0 is the root, unit i+1 is `layers.i`.
    """
    segment = Segment(forward_ns=MS, backward_ns=2 * MS)
    edge = Segment(forward_ns=MS // 2, backward_ns=MS)
    given: dict[str, Any] = {
        "units": (ROOT_UNIT, *(layer(f"layers.{i}") for i in range(layers))),
        "segments": (edge, *(segment for _ in range(layers)), edge),
        "root": Node(
            units=(0,),
            items=(
                0,
                *(Node(units=(i + 1,), items=(i + 1,)) for i in range(layers)),
                layers + 1,
            ),
        ),
        "mesh": Mesh(shard=8),
        "wires": CommCosts(all_gather=wire(), reduce_scatter=wire()),
    }
    return Step(**(given | known))


def with_units(base: Step, **changes: Any) -> Step:
    """The same fields changed in every unit but the root."""
    units = [u if u.fqn == "<root>" else replace(u, **changes) for u in base.units]
    return replace(base, units=tuple(units))


def prefetching(base: Step, depth: int, *, backward: bool = False) -> Step:
    """Each layer prefetches the next `depth` ones, in the order of the pass."""
    count = len(base.units) - 1
    units = [base.units[0]]
    for i, unit in enumerate(base.units[1:]):
        if backward:
            targets = range(i - 1, max(i - 1 - depth, -1), -1)
            wanted = tuple(t + 1 for t in targets)
            units.append(replace(unit, backward_prefetch=wanted))
        else:
            targets = range(i + 1, min(i + 1 + depth, count))
            wanted = tuple(t + 1 for t in targets)
            units.append(replace(unit, forward_prefetch=wanted))
    return replace(base, units=tuple(units))


def checkpointed(base: Step, how: Checkpoint) -> Step:
    """Every layer's forward is recomputed."""
    items = [
        replace(item, checkpoint=how) if isinstance(item, Node) else item
        for item in base.root.items
    ]
    return replace(base, root=replace(base.root, items=tuple(items)))


def nested(layers: int = 3, how: Checkpoint = Checkpoint.NONE) -> Step:
    """Each block is a unit for its first matrix and holds a unit for its second."""
    units = [ROOT_UNIT]
    items: list[int | Node] = [0]
    quarter = Segment(forward_ns=MS // 2, backward_ns=MS)
    segments = [quarter]
    for i in range(layers):
        a, b = layer_params(f"layers.{i}")
        units += [
            Unit(fqn=f"layers.{i}", params=(a,)),
            Unit(fqn=f"layers.{i}.b", params=(b,)),
        ]
        outer, inner = 2 * i + 1, 2 * i + 2
        child = Node(units=(inner,), items=(inner,))
        items.append(Node(units=(outer,), items=(outer, child), checkpoint=how))
        segments += [quarter, quarter]
    segments.append(quarter)
    return step(
        units=tuple(units),
        segments=tuple(segments),
        root=Node(units=(0,), items=(*items, 2 * layers + 1)),
    )
