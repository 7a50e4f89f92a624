"""What a memory snapshot holds, checked and in columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

NOT_RECORDED = -1
"""In place of a stack or a time that the snapshot does not have."""


class Action(IntEnum):
    """What the allocator did. The names are torch's own, in the order of its enum."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8


ACTIONS = {action.name.lower(): action for action in Action}
"""By the word that a snapshot has for it."""


class BlockState(StrEnum):
    """Of a block within a segment."""

    ALLOCATED = "active_allocated"
    AWAITING_FREE = "active_awaiting_free"  # freed; another stream still uses it
    INACTIVE = "inactive"


@dataclass(frozen=True, slots=True)
class Frame:
    """One function of a stack."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""Innermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A piece of a segment."""

    address: int
    size_bytes: int
    requested_bytes: int  # before the allocator rounded it up
    state: BlockState
    stack: int  # among the snapshot's; NOT_RECORDED where it has none
    metadata: int = 0  # among the snapshot's texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Memory that the allocator has of the device."""

    device: int
    address: int
    total_bytes: int
    stream: int
    is_large: bool  # of the pool of allocations above 1 MiB
    is_expandable: bool
    pool: tuple[int, int]  # (0, 0): the default; others are of CUDA graphs, MemPools
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """What the allocator of one device did, oldest first: N rows."""

    action: npt.NDArray[np.int8]  # [N], an Action
    address: npt.NDArray[np.int64]  # [N], of an OOM: what the device had free
    size_bytes: npt.NDArray[np.int64]  # [N], as asked for
    stream: npt.NDArray[np.int64]  # [N]
    time_us: npt.NDArray[np.int64]  # [N], since 1970, or NOT_RECORDED
    stack: npt.NDArray[np.int32]  # [N], among the snapshot's, or NOT_RECORDED
    metadata: npt.NDArray[np.int32]  # [N], among the snapshot's texts

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class Annotation:
    """Where a `record_function` began or ended."""

    time_us: int
    name: str
    begins: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """One file."""

    path: Path
    segments: tuple[Segment, ...]
    histories: tuple[History, ...]  # by device
    stacks: tuple[Stack, ...]
    texts: tuple[str, ...]  # the user's metadata; the first is empty
    annotations: tuple[Annotation, ...]  # by time
    settings: str  # PYTORCH_CUDA_ALLOC_CONF; empty where it is not said
    unknown_actions: tuple[str, ...] = ()  # words of a newer torch
