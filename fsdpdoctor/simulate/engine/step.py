"""What the simulator is told: a step of one training run, as numbers.

[Note: Simulated step]
A `Step` has the shape of the model (`Node`s around `Segment`s of compute), the
parameters of each unit, what FSDP2 was told to do with them, and what compute,
host calls and collectives cost. `schedule` turns it into the calls that FSDP2 makes,
in the order in which the host makes them; `timing` gives each call its times.
A plan is a function from a `Step` to a changed `Step`, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from fsdpdoctor.schema import ITEMSIZE


class Checkpoint(Enum):
    """How a node's forward is recomputed in backward."""

    NONE = "none"
    NON_REENTRANT = "non_reentrant"
    REENTRANT = "reentrant"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommCost:
    """What a collective costs: a latency, then the bytes of its large side."""

    latency_ns: int
    bytes_per_second: float  # of the large side: "algorithm bandwidth"

    def ns(self, count: int) -> int:
        """The duration of one collective of `count` bytes."""
        return self.latency_ns + round(count * 1e9 / self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter: its sharded dimension first."""

    fqn: str
    rows: int  # elements of the sharded dimension
    row: int  # elements of one row
    trainable: bool = True

    @property
    def numel(self) -> int:
        return self.rows * self.row

    def padded(self, shards: int) -> int:
        """Elements of a gather's output over `shards` ranks: rows are padded."""
        return -(-self.rows // shards) * shards * self.row


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One FSDP communication unit, and what FSDP2 was told to do with it."""

    fqn: str
    params: tuple[Param, ...]
    orig_dtype: str = "float32"
    param_dtype: str | None = None  # None: the stored dtype
    reduce_dtype: str | None = None  # None: the dtype of the gradients
    reshard_after_forward: bool | int = True  # as it acts, root rule applied
    unshard_in_backward: bool = True
    unshard_async_op: bool = False
    forward_prefetch: tuple[int, ...] = ()  # units
    backward_prefetch: tuple[int, ...] = ()
    # True: no input of it needs a gradient (tokens), so that its post-backward runs
    # in the final callback.
    post_backward_at_end: bool = False
    # Several modules as one unit, each checkpointed reentrantly: FSDP2 gathers the
    # unit, and reduces what has gradients, for each of them anew.
    pieces: int = 1
    copy_in_ns: int = 0
    copy_out_ns: int = 0
    reduce_copy_in_ns: int = 0
    # What its own collectives took beyond what the wire's fit says.
    gather_extra_ns: int = 0
    reduce_extra_ns: int = 0

    # By shard size: a search asks for the same few sizes thousands of times.
    _padded: dict[int, tuple[int, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def gather_itemsize(self) -> int:
        return ITEMSIZE[self.param_dtype or self.orig_dtype]

    @property
    def reduce_itemsize(self) -> int:
        return ITEMSIZE[self.reduce_dtype or self.param_dtype or self.orig_dtype]

    @property
    def reduces_in_stored_dtype(self) -> bool:
        reduced = self.reduce_dtype or self.param_dtype or self.orig_dtype
        return reduced == self.orig_dtype

    @property
    def numel(self) -> int:
        return sum(p.numel for p in self.params)

    @property
    def trainable(self) -> bool:
        return any(p.trainable for p in self.params)

    def padded(self, shards: int) -> tuple[int, int]:
        """Elements with padding: all, and those that get gradients."""
        if shards not in self._padded:
            padded = [p.padded(shards) for p in self.params]
            trainable = (
                n for n, p in zip(padded, self.params, strict=True) if p.trainable
            )
            self._padded[shards] = sum(padded), sum(trainable)
        return self._padded[shards]

    def gathered_bytes(self, shards: int) -> int:
        """Of the all-gather's output, and of the unsharded parameters."""
        return self.padded(shards)[0] * self.gather_itemsize

    def reduced_bytes(self, shards: int) -> int:
        """Of the reduce-scatter's input."""
        return self.padded(shards)[1] * self.reduce_itemsize

    @property
    def grad_bytes(self) -> int:
        """Of the gradients that autograd makes, before they are reduced."""
        return self.padded(1)[1] * self.gather_itemsize

    def sharded_grad_bytes(self, shards: int) -> int:
        """Of this rank's part of the reduced gradients, in the stored dtype."""
        return self.padded(shards)[1] // shards * ITEMSIZE[self.orig_dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of compute between two calls of FSDP2."""

    forward_ns: int
    backward_ns: int
    recompute_ns: int | None = None  # None: as long as the forward
    host_forward_ns: int = 0  # what launching it costs the host
    host_backward_ns: int = 0
    sync: bool = False  # the host waits for the device after it, in forward
    other_forward_bytes: int = 0  # the most that is allocated beside what FSDP2
    other_backward_bytes: int = 0  # holds, while this segment runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A module: its units (several param groups are several units), its items.

    An item is a segment's index or another node. A node without units is a module
    that FSDP2 does not know, such as a checkpointed block around a unit.
    """

    units: tuple[int, ...]
    items: tuple[int | Node, ...]
    checkpoint: Checkpoint = Checkpoint.NONE
    # Its output is its last child's: that child's hooks come first in backward.
    passes_output_on: bool = False
    # False: a frozen trunk. Its output needs no gradient, and FSDP2 has no hook there.
    runs_backward: bool = True
    # Of a root: worked out once, for the thousands of plans that keep its shape.
    _layout: list[Layout] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def walk(self) -> Iterator[Node]:
        """This node and those below it, parents first."""
        yield self
        for item in self.items:
            if isinstance(item, Node):
                yield from item.walk()

    @property
    def layout(self) -> Layout:
        """Who is where below this root."""
        if not self._layout:
            self._layout.append(_layout_of(self))
        return self._layout[0]


class Layout(NamedTuple):
    """Who is where below a root."""

    nodes: tuple[Node, ...]  # parents first
    node_of: dict[int, Node]  # by unit
    owners: dict[int, tuple[int, ...]]  # the units that a segment computes with: of
    # the nearest node that has any
    share: dict[int, float]  # a segment's part of its units' gradients


def _layout_of(root: Node) -> Layout:
    owners: dict[int, tuple[int, ...]] = {}

    def visit(node: Node, above: tuple[int, ...]) -> None:
        units = node.units or above
        for item in node.items:
            if isinstance(item, Node):
                visit(item, units)
            else:
                owners[item] = units

    visit(root, ())
    counts = Counter(owners.values())
    return Layout(
        nodes=tuple(root.walk()),
        node_of={u: node for node in root.walk() for u in node.units},
        owners=owners,
        share={segment: 1 / counts[units] for segment, units in owners.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """FSDP2's flags during one forward and backward."""

    sync: bool = True  # set_requires_gradient_sync
    all_reduce: bool = True  # set_requires_all_reduce
    reshard_after_backward: bool = True
    is_last_backward: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """What FSDP2's hooks and calls cost the host, each time, without waiting."""

    root_pre_forward_ns: int = 0
    pre_forward_ns: int = 0
    unshard_ns: int = 0  # issuing an all-gather
    wait_ns: int = 0  # issuing the wait and the copy-out
    post_forward_ns: int = 0  # with the reshard
    pre_backward_ns: int = 0
    post_backward_ns: int = 0  # with the reshard, without the reduction
    reduce_ns: int = 0  # issuing a reduce-scatter (and all-reduce)
    final_callback_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The ranks that shard and the ranks that replicate."""

    shard: int
    replicate: int = 1

    @property
    def world_size(self) -> int:
        return self.shard * self.replicate


@dataclass(frozen=True, slots=True, kw_only=True)
class CommCosts:
    """What each kind of collective costs, each on its group."""

    all_gather: CommCost
    reduce_scatter: CommCost
    all_reduce: CommCost | None = None  # HSDP
    post_forward: CommCost | None = None  # all-gathers after an integer reshard
    post_forward_ranks: int | None = None  # in the groups of those; None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step of one rank. See [Note: Simulated step]."""

    units: tuple[Unit, ...]
    segments: tuple[Segment, ...]
    root: Node
    mesh: Mesh
    wires: CommCosts
    host: HostCosts = field(default_factory=HostCosts)
    blocking: bool = False  # True: no streams (CPU, gloo), every wait is the host's
    micro_batches: tuple[MicroBatch, ...] = (MicroBatch(),)
    separate_reduce_scatter_group: bool = False
    max_input_buffers: int = 1
    input_ns: int = 0  # the host waits for data, before each micro-batch
    loss_ns: int = 0  # compute between a forward and its backward
    host_loss_ns: int = 0
    sync_after_forward: bool = False  # the host waits for the device: `loss.item()`
    sync_at_end: bool = False
    before_ns: int = 0  # compute between the step's start and its first forward
    after_ns: int = 0  # clipping, optimizer, logging: from the last backward on
    host_after_ns: int = 0
    resident_bytes: int = 0  # sharded parameters, optimizer states, and all that stays
    state_copies: int = 2  # elements of optimizer state for each parameter: Adam's

    def __post_init__(self) -> None:
        used = list(self.root.layout.node_of)
        if sorted(used) != list(range(len(self.units))):
            raise ValueError(f"nodes hold units {used}, expected each of them once")
        if self.mesh.replicate > 1 and self.wires.all_reduce is None:
            raise ValueError("a mesh that replicates needs the cost of an all-reduce")
        for unit in self.units:
            size = unit.reshard_after_forward
            if isinstance(size, bool):
                continue
            if not 1 < size < self.mesh.shard or self.mesh.shard % size:
                raise ValueError(
                    f"{unit.fqn} reshards to {size}: expected a proper divisor of "
                    f"the {self.mesh.shard} ranks that shard"
                )
            if self.wires.post_forward is None:
                raise ValueError(f"the cost of a gather over {size} ranks is missing")
