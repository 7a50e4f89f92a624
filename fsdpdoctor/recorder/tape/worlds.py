"""What a hook asks of FSDP2 and of the clock, now or as it was.

[Note: Two worlds] What a hook of a unit means is written once, in `fsdp2`. It asks
nobody directly for the time, or in which state a parameter group is, but its world:
the live one, or, where hooks in C have only written down that they ran, that of the
row that is read now. There a group is told of by its unit.
"""

from __future__ import annotations

from threading import get_ident
from time import perf_counter_ns
from typing import Any, Protocol

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.unit_state import FLAGS, Unit, flags_of
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.recorder.tape import facts as bits
from fsdpdoctor.schema import UNKNOWN


class World(Protocol):
    """Of one hook."""

    def tick(self, stream: object = None) -> int:
        """This moment, see `clocks.Clock.tick`."""
        ...

    def now_ns(self) -> int:
        """This moment on the host."""
        ...

    def thread(self) -> int:
        """The thread that runs the hook."""
        ...

    def beat(
        self,
        kind: int,
        phase: int,
        unit: int,
        seq: int = UNKNOWN,
        group: int = UNKNOWN,
    ) -> None:
        """Say on the heartbeat what this rank does now."""
        ...

    def in_backward(self) -> bool:
        """Whether autograd runs a backward pass."""
        ...

    def gathers(self, group: Any) -> bool:
        """Whether the group's all-gather was issued, and not yet waited for."""
        ...

    def is_unsharded(self, group: Any) -> bool:
        """Whether the unit's full parameters are there."""
        ...

    def state(self, group: Any) -> str:
        """FORWARD, PRE_BACKWARD, POST_BACKWARD or IDLE."""
        ...

    def one_module(self, group: Any) -> bool:
        """Whether the group is of a single module."""
        ...

    def without_module(self, args: tuple[Any, ...]) -> bool:
        """Whether a post-forward is that of the root, for a partial group."""
        ...

    def flags(self, group: Any) -> tuple[Any, ...]:
        """How the accumulation flags stand, in the order of `FLAGS`."""
        ...

    def unsharded_bytes(self, group: Any) -> int:
        """What the gathered parameters hold."""
        ...


class Live:
    """Everything is asked now."""

    def __init__(self, recording: Recording) -> None:
        self._rec = recording
        self.beat = recording.beat

    gathers = staticmethod(internals.gathers)
    is_unsharded = staticmethod(internals.is_unsharded)
    state = staticmethod(internals.training_state)
    unsharded_bytes = staticmethod(internals.unsharded_bytes)
    in_backward = staticmethod(internals.in_backward)
    flags = staticmethod(flags_of)

    def tick(self, stream: object = None) -> int:
        """Now, on a stream."""
        return self._rec.tick(stream)

    def now_ns(self) -> int:
        """Now."""
        return perf_counter_ns()

    def thread(self) -> int:
        """This one."""
        return get_ident()

    def one_module(self, group: Any) -> bool:
        """Whether the group is of a single module."""
        return len(group.modules) == 1

    def without_module(self, args: tuple[Any, ...]) -> bool:
        """Whether a post-forward is that of the root, for a partial group."""
        return bool(args) and args[0] is None


STATES = "IDLE", "FORWARD", "PRE_BACKWARD", "POST_BACKWARD", "another"
"""A group's training state, by the number that a row has."""


class Taped:
    """As it was when a row was written. A group is its unit here."""

    def __init__(self, recording: Recording) -> None:
        self._beat_at = recording.heartbeat.beat_at
        self.time_ns = 0
        self.facts = 0
        self.thread_id = 0

    def tick(self, stream: object = None) -> int:
        """On the host, whose ticks are times."""
        return self.time_ns

    def now_ns(self) -> int:
        """When the row was written."""
        return self.time_ns

    def thread(self) -> int:
        """That wrote it."""
        return self.thread_id

    def beat(
        self,
        kind: int,
        phase: int,
        unit: int,
        seq: int = UNKNOWN,
        group: int = UNKNOWN,
    ) -> None:
        """Say on the heartbeat what this rank did then."""
        self._beat_at(self.time_ns, kind, phase, unit, seq, group)

    def in_backward(self) -> bool:
        """Whether autograd ran a backward pass."""
        return self.facts & bits.BACKWARD != 0

    def gathers(self, group: Unit) -> bool:
        """Whether the all-gather was issued, and not yet waited for."""
        return self.facts & bits.GATHERS != 0

    def is_unsharded(self, group: Unit) -> bool:
        """Whether the unit's full parameters were there."""
        return self.facts & bits.UNSHARDED != 0

    def state(self, group: Unit) -> str:
        """FORWARD, PRE_BACKWARD, POST_BACKWARD or IDLE."""
        return STATES[self.facts >> bits.STATE_SHIFT]

    def one_module(self, group: Unit) -> bool:
        """Whether the group is of a single module."""
        return self.facts & bits.ONE_MODULE != 0

    def without_module(self, args: tuple[Any, ...]) -> bool:
        """Whether a post-forward was that of the root, for a partial group."""
        return self.facts & bits.PARTIAL != 0

    def flags(self, group: Unit) -> tuple[Any, ...]:
        """How the accumulation flags stood."""
        return tuple(self.facts & bit != 0 for bit in bits.FLAGS)

    def unsharded_bytes(self, group: Unit) -> int:
        """What the gathered parameters hold: their tensors keep their shapes once
        they are freed.
        """
        there = group.group()
        return 0 if there is None else internals.unsharded_bytes(there)


assert len(bits.FLAGS) == len(FLAGS)
