"""Other units for the same model: neighbours merged, the root split, blocks wrapped.

The compute stays where it is; what changes is which parameters travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import or_

from fsdpdoctor.changes.unit_tree import is_embedding
from fsdpdoctor.errors import UsageError
from fsdpdoctor.schema import ROOT, BlockSpec
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    Node,
    Param,
    Segment,
    Step,
    Unit,
)


def merge_neighbours(step: Step, count: int) -> Step:
    """`fully_shard([a, b, ...])` for each run of `count` sibling units.

    Only neighbours with the same settings, right below the root; a rest of fewer is
    merged as it is. What the root computes between two of them it computes while both
    are gathered. Raises UsageError where no two can be merged.
    """
    items: list[int | Node] = []
    merged = _Merged(step)
    run: list[int | Node] = []  # begins and ends with a unit's node

    def flush() -> None:
        items.extend(_in_groups(run, count, merged))
        run.clear()

    between: list[int | Node] = []  # since the run's last unit
    for item in step.root.items:
        if not isinstance(item, Node) or not _is_plain(item):
            between.append(item)
            continue
        last = next((n for n in reversed(run) if isinstance(n, Node)), None)
        apart = any(isinstance(other, Node) for other in between)
        if last is None or apart or not _alike(step, last, item):
            flush()
            items.extend(between)
        else:
            run.extend(between)
        between.clear()
        run.append(item)
    flush()
    items.extend(between)
    if len(merged.units) == len(step.units):
        raise UsageError(
            f"--merge {count}: no two units right below the root are neighbours with "
            "the same settings"
        )
    return _rebuilt(step, replace(step.root, items=tuple(items)), merged.units)


def _in_groups(
    run: Sequence[int | Node], count: int, merged: _Merged
) -> Iterator[int | Node]:
    """A run of neighbours with `count` units to a node, and what lies between nodes."""
    group: list[int | Node] = []
    units = 0
    for item in run:
        if units == count:
            yield merged.one(group)
            group, units = [], 0
        if isinstance(item, Node) or group:
            group.append(item)
            units += isinstance(item, Node)
        else:
            yield item
    if group:
        yield merged.one(group)


def _is_plain(node: Node) -> bool:
    """One unit, and none inside it."""
    return len(node.units) == 1 and all(not below.units for below in _below(node))


def _below(node: Node) -> list[Node]:
    return list(node.walk())[1:]


_SETTINGS = (
    "orig_dtype",
    "param_dtype",
    "reduce_dtype",
    "reshard_after_forward",
    "unshard_in_backward",
    "unshard_async_op",
    "post_backward_at_end",
)


def _alike(step: Step, a: Node, b: Node) -> bool:
    one, other = step.units[a.units[0]], step.units[b.units[0]]
    same = all(getattr(one, name) == getattr(other, name) for name in _SETTINGS)
    same = same and (a.checkpoint, a.runs_backward) == (b.checkpoint, b.runs_backward)
    # A block as large as the whole run is no neighbour but something else: a head.
    return same and len(one.params) == len(other.params)


class _Merged:
    """The units of a step, more of which are merged as one asks for it."""

    def __init__(self, step: Step) -> None:
        self.units = list(step.units)

    def one(self, items: Sequence[int | Node]) -> Node:
        """One node for those of some items, with what lies between them."""
        nodes = [item for item in items if isinstance(item, Node)]
        if len(nodes) == 1:
            return nodes[0]
        parts = [self.units[node.units[0]] for node in nodes]
        reentrant = nodes[0].checkpoint is Checkpoint.REENTRANT
        self.units.append(
            replace(
                parts[0],
                fqn=", ".join(part.fqn for part in parts),
                pieces=len(parts) if reentrant else 1,
                params=tuple(p for part in parts for p in part.params),
                copy_in_ns=sum(part.copy_in_ns for part in parts),
                copy_out_ns=sum(part.copy_out_ns for part in parts),
                reduce_copy_in_ns=sum(part.reduce_copy_in_ns for part in parts),
                gather_extra_ns=sum(part.gather_extra_ns for part in parts),
                reduce_extra_ns=sum(part.reduce_extra_ns for part in parts),
                # Lists follow the new units' order; a plan makes them anew.
                forward_prefetch=(),
                backward_prefetch=(),
            )
        )
        # Each block keeps its own recomputation.
        inner = tuple(
            replace(item, units=()) if isinstance(item, Node) else item
            for item in items
        )
        return Node(
            units=(len(self.units) - 1,),
            items=inner,
            runs_backward=nodes[0].runs_backward,
        )


def _rebuilt(step: Step, root: Node, units: Sequence[Unit]) -> Step:
    """A step with only the units that its nodes hold, counted in forward order."""
    order = [u for node in root.walk() for u in node.units]
    number = {old: new for new, old in enumerate(order)}

    def renumbered(node: Node) -> Node:
        return replace(
            node,
            units=tuple(number[u] for u in node.units),
            items=tuple(
                renumbered(item) if isinstance(item, Node) else item
                for item in node.items
            ),
        )

    def known(targets: Iterable[int]) -> tuple[int, ...]:
        return tuple(number[t] for t in targets if t in number)

    kept = tuple(
        replace(
            units[u],
            forward_prefetch=known(units[u].forward_prefetch),
            backward_prefetch=known(units[u].backward_prefetch),
        )
        for u in order
    )
    return replace(step, units=kept, root=renumbered(root))


def split_root(step: Step, tied: Sequence[Sequence[str]] = ()) -> Step:
    """The embedding, and norm and head, as units of their own.

    Raises UsageError where the root has no such parts, or they share a weight.
    """
    root = step.root
    if not root.units:
        raise UsageError("the root holds no parameters: there is nothing to split")
    unit = step.units[root.units[0]]
    embedding = tuple(p for p in unit.params if is_embedding(p.fqn))
    rest = tuple(p for p in unit.params if p not in embedding)
    blocks = [at for at, item in enumerate(root.items) if isinstance(item, Node)]
    if not embedding or not rest or not blocks:
        raise UsageError(
            "the root's parameters are not an embedding before the blocks and "
            f"others after them: {', '.join(p.fqn for p in unit.params)}"
        )
    names = {p.fqn for p in embedding}
    for shared in tied:
        if names & set(shared):
            raise UsageError(
                f"{' and '.join(shared)} share a weight: FSDP2 wants them in one unit"
            )
    before, after = root.items[: blocks[0]], root.items[blocks[-1] + 1 :]
    between = root.items[blocks[0] : blocks[-1] + 1]
    units = [*step.units]
    units.append(_part(unit, embedding, reshard=True))
    tail = replace(_part(unit, rest, reshard=False), post_backward_at_end=False)
    units.append(tail)
    items = (
        Node(
            units=(len(units) - 2,),
            items=before,
            # Nothing before it trains: where it is frozen, no gradient comes here.
            runs_backward=any(p.trainable for p in embedding),
        ),
        *between,
        Node(units=(len(units) - 1,), items=after),
    )
    return _rebuilt(step, Node(units=(), items=items), units)


def _part(unit: Unit, params: tuple[Param, ...], *, reshard: bool) -> Unit:
    """Some of a unit's parameters as a unit; copies cost by size."""
    share = sum(p.numel for p in params) / unit.numel
    modules = dict.fromkeys(p.fqn.rpartition(".")[0] for p in params)
    return replace(
        unit,
        fqn=", ".join(modules),
        params=params,
        reshard_after_forward=reshard,
        copy_in_ns=round(unit.copy_in_ns * share),
        copy_out_ns=round(unit.copy_out_ns * share),
        reduce_copy_in_ns=round(unit.reduce_copy_in_ns * share),
        gather_extra_ns=round(unit.gather_extra_ns * share),
        reduce_extra_ns=round(unit.reduce_extra_ns * share),
        forward_prefetch=(),
        backward_prefetch=(),
    )


def wrap_blocks(step: Step, block: BlockSpec) -> Step:
    """Each block of a repeated class as a unit, out of the root's.

    The root's compute is shared out by parameters: a matrix costs what it holds.
    """
    root = step.root
    if not root.units or any(isinstance(item, Node) for item in root.items):
        raise UsageError(
            f"{block.module_class} cannot be wrapped here: the model has units inside "
            "its root already"
        )
    unit = step.units[root.units[0]]
    prefix = f"{block.container}." if block.container else ""
    inside: list[tuple[Param, ...]] = []
    for at in range(block.count):
        inside.append(
            tuple(p for p in unit.params if p.fqn.startswith(f"{prefix}{at}."))
        )
    if not all(inside):
        raise UsageError(f"the root holds no parameters of {prefix}0 and its siblings")
    taken = {p.fqn for params in inside for p in params}
    left = tuple(p for p in unit.params if p.fqn not in taken)
    whole = [step.segments[s] for s in root.items if isinstance(s, int)]
    total = sum(p.numel for p in unit.params)
    pieces = [_piece(whole, sum(p.numel for p in ps) / total) for ps in inside]
    edge = _piece(whole, sum(p.numel for p in left) / total / 2)
    units = [replace(_part(unit, left, reshard=False), fqn=ROOT)] if left else []
    units = [replace(u, post_backward_at_end=unit.post_backward_at_end) for u in units]
    first = len(units)
    for at, params in enumerate(inside):
        part = replace(
            _part(unit, params, reshard=True),
            fqn=f"{prefix}{at}",
            post_backward_at_end=False,
        )
        units.append(part)
    count = block.count
    trained = accumulate(
        (any(p.trainable for p in params) for params in inside),
        or_,
        initial=any(p.trainable and is_embedding(p.fqn) for p in left),
    )
    nodes = tuple(
        Node(units=(first + i,), items=(i + 1,), runs_backward=trains)
        for i, trains in enumerate([*trained][1:])
    )
    return replace(
        step,
        units=tuple(units),
        segments=(edge, *pieces, edge),
        root=Node(units=tuple(range(first)), items=(0, *nodes, count + 1)),
    )


def _piece(whole: Sequence[Segment], share: float) -> Segment:
    return Segment(
        forward_ns=round(sum(s.forward_ns for s in whole) * share),
        backward_ns=round(sum(s.backward_ns for s in whole) * share),
        host_forward_ns=round(sum(s.host_forward_ns for s in whole) * share),
        host_backward_ns=round(sum(s.host_backward_ns for s in whole) * share),
        other_forward_bytes=max(s.other_forward_bytes for s in whole),
        other_backward_bytes=max(s.other_backward_bytes for s in whole),
    )
