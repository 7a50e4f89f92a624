"""Whose fault it was, or is: one verdict over what every rank left.

A timeout and a closed connection are what the others see of a fault. The rules are
asked in order, the surest first, and the first that answers is the verdict, so that
never two ranks are blamed for different reasons.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fsdpdoctor.hang.first_divergence import Divergence, first_divergence
from fsdpdoctor.hang.given_sizes import sides_by_size, sizes_must_agree
from fsdpdoctor.hang.standing import LOST_PEER, Standing, State
from fsdpdoctor.hang.wait_graph import Wait, circle, ends, waits


class Cause(StrEnum):
    """What ended a run, or holds it up."""

    DIVERGED = "diverged"  # other collectives of FSDP2's, seen in the last events
    SAME_EXCEPTION = "same exception"
    EXCEPTION = "exception"
    CRASHED = "crashed"
    ABORTED = "aborted"  # by a thread without Python, while others communicated
    KILLED = "killed"
    ALL_GONE = "all gone"  # without a word, and at one place
    LEFT_EARLY = "left early"
    STOPPED = "stopped"
    SILENT = "silent"
    ELSEWHERE = "elsewhere"  # outside every collective, while others wait
    OTHER_CALL = "other call"  # in another collective
    OTHER_SHAPE = "other shape"  # in the same one with other tensors
    OTHER_COUNT = "other count"  # in the same one, having issued more or fewer before
    CIRCLE = "circle"
    TOGETHER = "together"  # all in the same one, and it does not end
    ENDED_OUTSIDE = "ended from outside"


BY_WHAT_RANKS_DID = (
    Cause.DIVERGED,
    Cause.LEFT_EARLY,
    Cause.OTHER_CALL,
    Cause.OTHER_SHAPE,
    Cause.OTHER_COUNT,
    Cause.CIRCLE,
)
"""Differences between ranks; the others are the end of one, or of all alike."""

PROVED = (
    Cause.DIVERGED,
    Cause.SAME_EXCEPTION,
    Cause.EXCEPTION,
    Cause.CRASHED,
    Cause.ABORTED,
    Cause.KILLED,
    Cause.STOPPED,
    Cause.LEFT_EARLY,
)
"""Causes that a rank's own word, or the kernel's, tells; the others are told from where
ranks stood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The cause, and on whom it lies."""

    cause: Cause
    ranks: tuple[int, ...]  # blamed; all of them where none is more to blame
    others: tuple[int, ...]  # that wait for them, or ended of it
    divergence: Divergence | None = None
    graph: tuple[Wait, ...] = ()
    live: bool = False  # nothing has ended yet


_Rule = Callable[["_Scene"], Verdict | None]


def judge(ranks: Sequence[Standing]) -> Verdict | None:
    """The verdict; None where all is well, goes on, or cannot be told."""
    scene = _Scene([one for one in ranks if one.state != State.DETACHED])
    if not scene.fault:
        return None
    rules: tuple[_Rule, ...] = (
        _diverged,
        _exceptions,
        _crashed,
        _killed,
        _stopped,
        _left_early,
        _silent,
        _signalled_first,
        _elsewhere,
        _other_call,
        _circle,
        _other_shape,
        _other_count,
        _behind,
        _together,
        _ended_outside,
        _first_to_end,
    )
    return next((v for rule in rules if (v := rule(scene)) is not None), None)


class _Scene:
    """All ranks, with what several rules ask."""

    def __init__(self, ranks: list[Standing]) -> None:
        self.ranks = ranks
        self.graph = waits(ranks)
        self.live = all(
            r.state in (State.RUNNING, State.STANDING, State.SILENT, State.STOPPED)
            or r.state == State.DONE
            for r in ranks
        )
        well = (State.RUNNING, State.DONE)
        self.fault = any(r.state not in well for r in ranks)
        if self.live and not any(r.state == State.STANDING for r in ranks):
            self.fault = False
        self.waiting = [
            r
            for r in ranks
            if r.state in (State.TIMED_OUT, State.CUT_OFF)
            or (r.call is not None and r.state != State.CRASHED)
        ]

    def of(self, *states: State) -> list[Standing]:
        """The ranks in these states."""
        return [one for one in self.ranks if one.state in states]

    def verdict(
        self,
        cause: Cause,
        blamed: Sequence[Standing],
        divergence: Divergence | None = None,
    ) -> Verdict:
        """A verdict on some ranks."""
        numbers = tuple(sorted(one.rank for one in blamed))
        on_them = set(numbers)
        return Verdict(
            cause=cause,
            ranks=numbers,
            others=tuple(r.rank for r in self.ranks if r.rank not in on_them),
            divergence=divergence,
            graph=self.graph,
            live=self.live,
        )


def _diverged(scene: _Scene) -> Verdict | None:
    found = first_divergence(scene.ranks)
    if found is None:
        return None
    numbers = set(found.blamed)
    blamed = [one for one in scene.ranks if one.rank in numbers]
    return scene.verdict(Cause.DIVERGED, blamed, found)


_NUMBERS = re.compile(r"\d+|0x[0-9a-f]+|cuda:\d+")


def error_key(one: Standing) -> tuple[str, str]:
    """An exception, without what differs by rank."""
    end = one.end
    if end is not None and end.exception is not None:
        return end.exception, _NUMBERS.sub("#", end.message or "")[:200]
    return "", _NUMBERS.sub("#", one.ended)[:200]


def _when(one: Standing) -> int:
    """When a rank ended, or was seen last; one that left no time is no first."""
    return one.end_unix_ns or one.last_unix_ns or sys.maxsize


def _exceptions(scene: _Scene) -> Verdict | None:
    raised = scene.of(State.RAISED)
    if not raised:
        return None
    first = min(raised, key=_when)
    error = error_key(first)
    same = [one for one in raised if error_key(one) == error]
    followers = [
        one
        for one in scene.ranks
        if one.state != State.RAISED or error_key(one) != error
    ]
    in_step = [one for one in same if one.step == first.step]
    if len(same) > 1 and len(in_step) == len(same) and not followers:
        return scene.verdict(Cause.SAME_EXCEPTION, same)
    # The launcher ends the rest at the first failure, so not all come to raise.
    if len(same) > 1 and all(o.state == State.SIGNALLED for o in followers):
        return scene.verdict(Cause.SAME_EXCEPTION, same)
    return scene.verdict(Cause.EXCEPTION, [first])


def _crashed(scene: _Scene) -> Verdict | None:
    """A fatal signal; inside a collective it is how gloo ends on other sizes."""
    crashed = scene.of(State.CRASHED)
    if not crashed:
        return None
    first = min(crashed, key=lambda one: one.end_unix_ns)
    if first.call is None:
        cause = Cause.ABORTED if _by_a_library(first, scene) else Cause.CRASHED
        return scene.verdict(cause, [first])
    return (
        _other_call(scene)
        or _other_shape(scene)
        or scene.verdict(Cause.OTHER_SHAPE, _together_in_it(scene))
    )


def _by_a_library(one: Standing, scene: _Scene) -> bool:
    """Whether communication itself may have ended it: others wait in a collective, or
    lost this rank in one, and what ended it stood in no line of Python's.
    """
    fatal = one.fatal
    if fatal is None or not fatal.native or fatal.reason != "Aborted":
        return False
    return bool(scene.waiting)


def _killed(scene: _Scene) -> Verdict | None:
    """A rank without a word. The launcher kills at its end who does not obey, but
    only ranks that stood still, and those left a word of it.
    """
    killed = scene.of(State.KILLED)
    if not killed:
        return None
    at_once = {(one.step, _how_far(one)[0]) for one in killed}
    if len(killed) == len(scene.ranks) > 1 == len(at_once):
        return scene.verdict(Cause.ALL_GONE, killed)
    return scene.verdict(Cause.KILLED, [min(killed, key=_how_far)])


def _how_far(one: Standing) -> tuple[int, int]:
    """Of several that are gone the one that did least went first: the others then
    waited for it.
    """
    return max((seq for _, seq in one.issued), default=-1), one.last_unix_ns


def _stopped(scene: _Scene) -> Verdict | None:
    stopped = scene.of(State.STOPPED)
    return scene.verdict(Cause.STOPPED, stopped) if stopped else None


def _left_early(scene: _Scene) -> Verdict | None:
    done = scene.of(State.DONE)
    if not done or not any(one.state != State.DONE for one in scene.waiting):
        return None
    return scene.verdict(Cause.LEFT_EARLY, done)


def _silent(scene: _Scene) -> Verdict | None:
    silent = scene.of(State.SILENT)
    return scene.verdict(Cause.SILENT, silent) if silent else None


def _signalled_first(scene: _Scene) -> Verdict | None:
    """A rank that a signal ended while nobody stood still, and that others lost. One
    that others wait for is ended so as well, but by the launcher, and after them.
    """
    signalled, lost = scene.of(State.SIGNALLED), scene.of(State.CUT_OFF)
    if not signalled or not lost:
        return None
    first = min(signalled, key=_when)
    stood = [one.stood_unix_ns for one in scene.ranks if one.stood_unix_ns]
    if min([*stood, *map(_when, lost)]) < _when(first):
        return None
    return scene.verdict(Cause.ENDED_OUTSIDE, [first])


def _elsewhere(scene: _Scene) -> Verdict | None:
    """Ranks outside every collective that others wait in, and that they have not
    issued. On a device the host may be outside, and have issued it.
    """
    waiting = [one for one in scene.waiting if one.call is not None]
    if not waiting:
        return None
    behind = set(ends(scene.graph))
    counted = any(one.counts for one in waiting)
    blamed = [
        one
        for one in scene.ranks
        if one.call is None
        and one.stack
        and one.state in (State.STANDING, State.SIGNALLED)
        and (one.rank in behind or not counted)
    ]
    return scene.verdict(Cause.ELSEWHERE, blamed) if blamed else None


def call_key(one: Standing) -> tuple[object, ...]:
    """What a rank is in, as it must be the same on all ranks."""
    if one.of_fsdp2 and one.last is not None:
        return one.call, one.last.unit, one.step
    frame = one.user_frame
    if frame is None:
        return one.call, None
    # A fatal signal's stack has whole paths, the others' what is below the folder.
    return one.call, (frame.file.rpartition("/")[2], frame.line)


def _other_call(scene: _Scene) -> Verdict | None:
    """Ranks in different collectives of one group, at the same number or after it."""
    inside = [one for one in scene.ranks if one.call is not None]
    sides: dict[tuple[object, ...], list[Standing]] = {}
    for one in inside:
        sides.setdefault(call_key(one), []).append(one)
    if len(sides) < 2:
        return None
    groups = {one.waits_in for one in inside if one.waits_in is not None}
    if len(groups) > 1 and circle(scene.graph):
        return None  # each waits in a group of its own
    return scene.verdict(Cause.OTHER_CALL, _fewer(sides))


def _circle(scene: _Scene) -> Verdict | None:
    numbers = set(circle(scene.graph))
    blamed = [one for one in scene.ranks if one.rank in numbers]
    return scene.verdict(Cause.CIRCLE, blamed) if blamed else None


def _other_shape(scene: _Scene) -> Verdict | None:
    inside = _together_in_it(scene)
    sides = sides_by_size(inside) if sizes_must_agree(inside) else {}
    return scene.verdict(Cause.OTHER_SHAPE, _fewer(sides)) if sides else None


def _together_in_it(scene: _Scene) -> list[Standing]:
    """Who is in a collective; and who was ended after one of the script's was the last
    that it noted: a rank that loses a peer in it comes out, and is ended as it ends.
    """
    return [
        one
        for one in scene.ranks
        if one.call is not None or (one.state == State.SIGNALLED and one.issued_bytes)
    ]


def _other_count(scene: _Scene) -> Verdict | None:
    """Ranks at the same place, to which torch's own counts are not the same."""
    inside = [one for one in scene.ranks if one.waits_in is not None]
    if len({(call_key(one), one.waits_in) for one in inside}) != 1:
        return None
    sides: dict[int, list[Standing]] = {}
    for one in inside:
        sides.setdefault(issued_in(one), []).append(one)
    return scene.verdict(Cause.OTHER_COUNT, _fewer(sides)) if len(sides) > 1 else None


def issued_in(one: Standing) -> int:
    """How many collectives a rank has issued in the group in which it waits."""
    return -1 if one.waits_in is None else one.counts[one.waits_in]


def _fewer(sides: Mapping[Any, list[Standing]]) -> list[Standing]:
    """The ranks outside the largest side; all where none is the largest."""
    ordered = sorted(sides.values(), key=len, reverse=True)
    draw = len(ordered[0]) == len(ordered[1])
    return [one for side in ordered[0 if draw else 1 :] for one in side]


def _behind(scene: _Scene) -> Verdict | None:
    """Nobody is seen outside, and some have issued fewer collectives."""
    numbers = set(ends(scene.graph))
    blamed = [one for one in scene.ranks if one.rank in numbers]
    return scene.verdict(Cause.ELSEWHERE, blamed) if blamed else None


def _together(scene: _Scene) -> Verdict | None:
    standing = scene.of(State.STANDING, State.TIMED_OUT)
    inside = [one for one in standing if one.call is not None]
    if not inside or len(inside) < len(scene.ranks):
        return None
    return scene.verdict(Cause.TOGETHER, inside)


def _ended_outside(scene: _Scene) -> Verdict | None:
    signalled = scene.of(State.SIGNALLED)
    rest = [one for one in scene.ranks if one.state != State.SIGNALLED]
    if not signalled or any(one.state != State.DONE for one in rest):
        return None
    return scene.verdict(Cause.ENDED_OUTSIDE, signalled)


def _first_to_end(scene: _Scene) -> Verdict | None:
    """Nothing tells more: the first that ended of something."""
    ended = scene.of(State.TIMED_OUT, State.CUT_OFF, State.SIGNALLED)
    if not ended or scene.live:
        return None
    late = [one for one in ended if LOST_PEER.search(one.ended) is None] or ended
    first = min(late, key=_when)
    return scene.verdict(Cause.EXCEPTION, [first])
