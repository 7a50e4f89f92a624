"""Where each rank of a recorded run stands, or how it ended: one line of evidence a
rank, made of its header, its last events and its last words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from fsdpdoctor.rank_end import (
    GONE,
    Call,
    EndKind,
    Fatal,
    Frame,
    GroupCount,
    Position,
    RankEnd,
    Stall,
    ThreadPosition,
)
from fsdpdoctor.rank_end_files import STOPPED, Beat
from fsdpdoctor.schema import UNKNOWN, GroupSpec, Kind, Phase, RankHeader


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A process group, one value for all ranks that say the same of it: ranks are asked
    for it by the thousand, and its members are not looked through for that. Names alone
    are given twice where a mesh is split.
    """

    name: str
    members: tuple[int, ...]


class Groups:
    """The groups that ranks told of, each once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[int, ...]], Group] = {}

    def group(self, told: GroupSpec | GroupCount) -> Group:
        """The one of this name and these ranks."""
        return self._known.setdefault(
            (told.name, told.ranks), Group(told.name, told.ranks)
        )


LIBRARY_ERRORS = re.compile(
    r"(RuntimeError|Dist\w*Error|ConnectionError|ConnectionResetError|BrokenPipeError)$"
)
OF_COMMUNICATION = re.compile(r"detached: (RuntimeError|Dist\w*Error)\b")
TIMEOUT = re.compile(r"timed? ?out|timeout|watchdog", re.IGNORECASE)
LOST_PEER = re.compile(
    r"connection (was )?(reset|closed|refused|abort)|closed by peer|broken pipe"
    r"|remote (worker|process|peer)|recv(ed)? 0 bytes|socket|store\b.*(closed|fail)"
    r"|nccl.*(abort|remote error|unhandled)|communicator was aborted|\bpeer\b",
    re.IGNORECASE,
)
"""How communication libraries say that another rank does not come, or is gone."""

COLLECTIVE_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
)
FSDP2 = "torch/distributed/fsdp/_fully_shard/"
OPTIMIZERS = "torch/optim/"
"""Where every optimizer's step is called, whoever wrote it."""

ISSUED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
"""Events of the heartbeat that issue a collective of FSDP2's."""


_LABELS = {int(kind): kind.label for kind in Kind}


class State(StrEnum):
    """What a rank is doing, or how it ended."""

    RUNNING = "running"
    STANDING = "standing still"  # it says so itself
    SILENT = "says nothing"  # while others stand still
    STOPPED = "stopped"  # by a signal, says the kernel
    KILLED = "killed"  # it left no word
    CRASHED = "crashed"  # a fatal signal, and CPython's word on it
    RAISED = "raised"
    TIMED_OUT = "timed out"
    CUT_OFF = "lost a peer"
    SIGNALLED = "signalled"  # SIGTERM, SIGINT
    DONE = "done"
    DETACHED = "not recorded to its end"


class RankWords(Protocol):
    """What is asked of a rank's record: `RankData` and `RankMeasures` answer."""

    @property
    def header(self) -> RankHeader: ...
    @property
    def beats(self) -> tuple[Beat, ...]: ...
    @property
    def stall(self) -> Stall | None: ...
    @property
    def fatal(self) -> Fatal | None: ...
    @property
    def process(self) -> str | None: ...
    def unit_name(self, unit: int) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of the heartbeat, in words."""

    step: int
    micro_batch: int
    kind: str
    unit: str | None
    phase: str | None
    seq: int
    group: Group | None
    size: int = 0  # of a collective of the script's own; 0: not told

    @property
    def what(self) -> str:
        """As `all-gather of layers.2`."""
        return self.kind + (f" of {self.unit}" if self.unit else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One rank."""

    rank: int
    state: State
    ended: str  # of the header
    step: int  # that it was in
    position: Position | None = None
    end: RankEnd | None = None
    fatal: Fatal | None = None
    last: Event | None = None  # of the heartbeat
    counts: Mapping[Group, int] = field(default_factory=dict)  # collectives issued
    issued: Mapping[tuple[Group, int], Event] = field(default_factory=dict)
    last_unix_ns: int = 0  # its last event, or word
    end_unix_ns: int = 0  # 0: not known
    stood_unix_ns: int = 0  # when it said that it stands still; 0: never

    @property
    def stack(self) -> tuple[Frame, ...]:
        if self.position is not None and self.position.stack:
            return self.position.stack
        return self.fatal.stack if self.fatal is not None else ()

    @property
    def background(self) -> ThreadPosition | None:
        """Another thread in a collective, where the training thread is in none."""
        position = self.position
        if position is None or position.call is not None or not position.threads:
            return None
        if self.end is not None and self.end.kind == EndKind.EXCEPTION:
            return None  # it ended where that was raised
        return position.threads[0]

    @property
    def user_frame(self) -> Frame | None:
        """The innermost line of the user's own, on the thread that is in a call."""
        return next(iter(self.user_frames), None)

    @property
    def user_frames(self) -> tuple[Frame, ...]:
        """All lines of the user's own there, innermost first."""
        stack = self.background.stack if self.background else self.stack
        return tuple(frame for frame in reversed(stack) if frame.user)

    @property
    def past_optimizer(self) -> bool:
        """Whether its last event is an optimizer's step, which it is known to have come
        out of: what began is noted, and not what ended.
        """
        return (
            self.last is not None
            and self.last.kind == Kind.OPTIMIZER.label
            and bool(self.stack)
            and not any(OPTIMIZERS in frame.file for frame in self.stack)
        )

    @property
    def call(self) -> str | None:
        """The collective that it was in, by its function's name."""
        if self._call is not None:
            return self._call.name
        inside = [f for f in self.stack if f.file.endswith(COLLECTIVE_FILES)]
        return inside[0].function if inside else None

    @property
    def operands(self) -> str | None:
        return None if self._call is None else self._call.operands

    @property
    def issued_bytes(self) -> int:
        """Of the collective of the script's that it noted last, which it was in or had
        come out of; 0: not known.
        """
        return 0 if self.last is None else self.last.size

    @property
    def _call(self) -> Call | None:
        if self.background is not None:
            return self.background.call
        return None if self.position is None else self.position.call

    @property
    def of_fsdp2(self) -> bool:
        """Whether FSDP2 issued the collective it was in."""
        return self.background is None and any(
            FSDP2 in frame.file for frame in self.stack
        )

    @property
    def waits_in(self) -> Group | None:
        """The group of the collective that it was in."""
        counts = self.counts
        call = self._call
        if call is not None and call.group is not None:
            return next((one for one in counts if one.name == call.group), None)
        if self.call is None:
            return None
        if self.of_fsdp2 and self.last is not None and self.last.group in counts:
            return self.last.group
        return next(iter(counts)) if len(counts) == 1 else None

    @property
    def in_group_twice(self) -> bool:
        """Whether another thread is in a collective of the same group, too."""
        position, group = self.position, self.waits_in
        if position is None or self.background is not None:
            return False
        named = [thread.call.group for thread in position.threads]
        return any(
            name is None or group is None or name == group.name for name in named
        )


def standings(ranks: Sequence[RankWords]) -> list[Standing]:
    """Each rank, ascending; what one says of another counts, too."""
    groups = Groups()
    first = [_standing(words, groups) for words in ranks]
    told = _told_by_neighbours(ranks)
    anybody_stands = any(s.state == State.STANDING for s in first)
    others_ended = any(
        s.state not in (State.RUNNING, State.STANDING, State.DETACHED) for s in first
    )
    return sorted(
        (
            _seen_by_others(one, told.get(one.rank), anybody_stands, others_ended)
            for one in first
        ),
        key=lambda one: one.rank,
    )


def _told_by_neighbours(ranks: Sequence[RankWords]) -> dict[int, str]:
    """What other ranks of its node last saw of a rank's process."""
    stalls = sorted(
        (words.stall for words in ranks if words.stall is not None),
        key=lambda stall: stall.written_unix_ns,
    )
    return {int(r): state for s in stalls for r, state in s.neighbours.items()}


def _seen_by_others(
    one: Standing, told: str | None, anybody_stands: bool, others_ended: bool
) -> Standing:
    if one.ended != "running" or one.state == State.CRASHED:
        return one
    state = one.state
    if told in STOPPED:
        state = State.STOPPED
    elif state == State.RUNNING and told in (GONE, "Z", "X"):
        state = State.KILLED
    elif state == State.RUNNING and anybody_stands:
        state = State.SILENT
    elif state == State.RUNNING and others_ended and one.end_unix_ns == 0:
        state = State.KILLED
    return one if state == one.state else replace(one, state=state)


def _standing(words: RankWords, groups: Groups) -> Standing:
    header, stall, end = words.header, words.stall, words.header.end
    own = [groups.group(told) for told in header.groups]
    last = _event(words, words.beats[-1], own) if words.beats else None
    beat_ns = words.beats[-1].time_ns if words.beats else 0
    last_unix_ns = beat_ns + header.unix_minus_clock_ns if beat_ns else 0
    position = end.position if end is not None else None
    if stall is not None and (position is None or not position.stack):
        position = stall.position
    step = last.step if last is not None else UNKNOWN
    if position is not None:
        step = max(step, position.step)
    return Standing(
        rank=header.rank,
        state=_state(words),
        ended=header.ended,
        step=step,
        position=position,
        end=end,
        fatal=words.fatal,
        last=last,
        counts={groups.group(told): told.seq for told in position.groups}
        if position is not None
        else {},
        issued=dict(_issued(words, own)),
        last_unix_ns=last_unix_ns,
        end_unix_ns=_end_ns(words),
        stood_unix_ns=stall.written_unix_ns if stall is not None else 0,
    )


def _end_ns(words: RankWords) -> int:
    if words.header.end is not None:
        return words.header.end.time_unix_ns
    return words.fatal.time_unix_ns if words.fatal is not None else 0


def _state(words: RankWords) -> State:
    ended, end = words.header.ended, words.header.end
    if ended == "running":
        return _state_of_running(words)
    if ended.startswith("detached"):
        # A disk that does not answer, or has no room, is no fault of training's.
        theirs = OF_COMMUNICATION.match(ended)
        lost = theirs and (LOST_PEER.search(ended) or TIMEOUT.search(ended))
        return State.CUT_OFF if lost else State.DETACHED
    if ended == "done":
        return State.DONE
    if ended.startswith("signal"):
        return State.SIGNALLED
    return _state_of_error(ended, end)


def _state_of_running(words: RankWords) -> State:
    if words.fatal is not None:
        return State.CRASHED
    if words.process in STOPPED:
        return State.STOPPED
    if words.stall is not None:
        return State.STANDING
    return State.KILLED if words.process == GONE else State.RUNNING


def _state_of_error(ended: str, end: RankEnd | None) -> State:
    if end is not None and end.kind == EndKind.EXIT:
        return State.RAISED
    kind, _, message = ended.removeprefix("exception: ").partition(":")
    if end is not None and end.exception is not None:
        kind, message = end.exception, end.message or ""
    if LIBRARY_ERRORS.search(kind):
        if TIMEOUT.search(message):
            return State.TIMED_OUT
        if LOST_PEER.search(message):
            return State.CUT_OFF
    return State.RAISED


def _event(words: RankWords, beat: Beat, groups: Sequence[Group]) -> Event:
    kind = _LABELS.get(beat.kind, "")
    return Event(
        step=beat.step,
        micro_batch=beat.micro_batch,
        kind=kind or "start",
        unit=words.unit_name(beat.unit),
        phase=_phase(beat.phase),
        seq=beat.seq,
        group=groups[beat.group] if 0 <= beat.group < len(groups) else None,
        size=beat.size,
    )


def _phase(phase: int) -> str | None:
    return {int(Phase.FORWARD): "forward", int(Phase.BACKWARD): "backward"}.get(phase)


def _issued(
    words: RankWords, groups: Sequence[Group]
) -> Iterator[tuple[tuple[Group, int], Event]]:
    for beat in words.beats:
        if beat.kind in ISSUED and beat.seq >= 0:
            event = _event(words, beat, groups)
            if event.group is not None:
                yield (event.group, event.seq), event
