"""One FSDP unit between two of its hooks, and what it has under way."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch

from fsdpdoctor.recorder.patching import unasked
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Kind, Phase

function_modes: Callable[[], int] = torch._C._len_torch_function_stack
"""How many of the script's are asked of all that is done; asking costs a tenth of what
`unasked` does."""


@dataclass(slots=True, kw_only=True)
class Op:
    """One unshard whose collective was issued."""

    number: int
    unit: int
    phase: Phase
    flags: int
    micro_batch: int
    by_unit: int
    group: int
    seq: int
    issued_ns: int
    size: int = UNKNOWN
    start: int = NO_TIME
    end: int = NO_TIME  # NO_TIME: not known yet
    work: Any = None
    ended_ns: list[int] = field(default_factory=list)  # by the backend's thread


@dataclass(slots=True, kw_only=True)
class Window:
    """A unit that is unsharded now."""

    op: int
    phase: Phase
    flags: int
    micro_batch: int
    start: int
    used: bool = False


class Reduction:
    """A unit's reduce-scatter or all-reduce that somebody may wait for."""

    __slots__ = ("group", "issued_ns", "kind", "op", "seq", "size", "start", "unit")

    def __init__(
        self, unit: int, kind: Kind, op: int, group: int, seq: int, size: int
    ) -> None:
        self.unit = unit
        self.kind = kind
        self.op = op
        self.group = group
        self.seq = seq
        self.size = size
        self.issued_ns = self.start = NO_TIME


FLAGS = ("reduce_grads", "all_reduce_grads", "reshard_after_backward")
"""What accumulation turns on and off, and a unit's post-backward goes by."""

flags_of: Callable[[Any], tuple[Any, ...]] = attrgetter(*FLAGS)
"""How they stand in a parameter group."""


class Unit:
    """One parameter group's state."""

    __slots__ = (
        "__weakref__",
        "backward",
        "bytes",
        "checkpointed",
        "copied_out",
        "forward",
        "forward_flags",
        "group",
        "index",
        "owner",
        "pending",
        "ran",
        "seen_flags",
        "window",
    )

    def __init__(self, index: int, group: Any, owner: object) -> None:
        self.index = index
        self.owner = owner  # of this recording: groups outlive it
        self.group = weakref.ref(group)
        self.bytes = 0  # of the gathered parameters, once seen
        self.pending: Op | None = None  # issued, not waited for
        self.copied_out = NO_TIME
        self.window: Window | None = None
        self.forward: int | None = None
        self.forward_flags = 0
        self.backward: int | None = None
        self.checkpointed = False
        self.ran = False  # a forward, in a recorded step
        self.seen_flags: set[tuple[Any, ...]] = set()  # in the order of FLAGS

    def saw_flags(self, flags: tuple[Any, ...]) -> None:
        """Note how the accumulation flags stand at a post-backward."""
        self.seen_flags.add(flags)

    def flag(self, name: str, group: Any) -> bool | None:
        """How a flag acts; None where it changes between micro-batches."""
        at = FLAGS.index(name)
        seen = {bool(flags[at]) for flags in self.seen_flags or {flags_of(group)}}
        return seen.pop() if len(seen) == 1 else None

    def forget(self) -> None:
        """Drop what a pass left open: the pass was not recorded to its end."""
        self.pending = self.window = self.forward = self.backward = None
        self.copied_out = NO_TIME


def tensor_bytes(tensor: torch.Tensor) -> int:
    """The bytes that a dense tensor's elements take."""
    if function_modes():
        with unasked():
            return tensor.numel() * tensor.element_size()
    return tensor.numel() * tensor.element_size()
