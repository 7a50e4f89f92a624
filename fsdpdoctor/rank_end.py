"""Where a rank stood when it ended, or when nothing went on any more.

Standard library only: the recorder writes it, a laptop without torch reads it.

[Note: Last words] `RankHeader.end` is written once, as the script ends. While nothing
progresses for some seconds, `rank0000R.stall` holds a `Stall`, rewritten every second
and taken away when the rank goes on: a rank that cannot write one (stopped, dead, its
interpreter locked) is known by its absence beside the others'. `rank0000R.fatal` is
CPython's own word on a fatal signal, empty where there was none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

STALL_SUFFIX = ".stall"
FATAL_SUFFIX = ".fatal"

GONE = "gone"
"""The state of a process that has ended, beside the kernel's letters."""

HANG_AFTER_S = 5.0
"""Seconds without progress after which a rank writes where it stands. A step of a large
model may take longer: the note then costs a small file, and goes as the step does."""


class EndKind(StrEnum):
    """How a rank ended."""

    DONE = "done"
    EXCEPTION = "exception"
    EXIT = "exit"  # with a status that is not 0
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A line that a thread was in."""

    file: str  # below the working directory or site-packages; or whole
    line: int
    function: str
    user: bool  # neither torch's nor Python's nor ours
    code: str | None = None  # the line itself, of the user's innermost frame; redacted


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCount:
    """How many collectives a rank has issued in a process group, as torch counts."""

    name: str
    ranks: tuple[int, ...]
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective, or a wait for one, that a thread was in."""

    name: str  # "all_reduce"
    operands: str | None = None  # "float32[10]"
    group: str | None = None  # its name; None: not told


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPosition:
    """Where another thread than the training's was, if it was in a collective; of a
    rank that has ended, also while nothing progressed just before.
    """

    thread: str
    call: Call
    stack: tuple[Frame, ...] = ()  # innermost last


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a rank was."""

    step: int  # steps that it had finished
    micro_batch: int = -1
    progress_unix_ns: int = 0  # of its last event
    stack: tuple[Frame, ...] = ()  # of the training thread, innermost last
    call: Call | None = None  # that the training thread was in
    groups: tuple[GroupCount, ...] = ()
    threads: tuple[ThreadPosition, ...] = ()

    @property
    def user_frame(self) -> Frame | None:
        """The innermost line of the user's own."""
        return next((frame for frame in reversed(self.stack) if frame.user), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How a rank ended, and where."""

    kind: EndKind
    time_unix_ns: int
    exception: str | None = None  # its type, "torch.OutOfMemoryError"
    message: str | None = None  # redacted, and cut; of an exit what it prints
    signal: str | None = None  # "SIGTERM"
    status: int | None = None  # of an exit
    position: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A rank says that nothing has progressed for a while."""

    schema_version: int = 1
    rank: int
    pid: int
    written_unix_ns: int
    after_s: float  # of --hang-after
    position: Position
    neighbours: dict[str, str] = field(default_factory=dict)
    # ranks of this node, to their process's state as the kernel has it: "T", "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """What CPython left on a fatal signal."""

    reason: str  # "Segmentation fault"
    stack: tuple[Frame, ...] = ()  # of the thread that got it, innermost last
    native: bool = False  # it runs no Python: the stack is the main thread's
    time_unix_ns: int = 0
