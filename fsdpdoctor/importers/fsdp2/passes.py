"""Which pass the host was in: forward or backward, of which unit and micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.fsdp2.label_tree import LabelTree
from fsdpdoctor.importers.reader.trace_file import (
    Cat,
    Int64s,
    RowIds,
    TraceFile,
    names_that,
    rows_named,
)
from fsdpdoctor.schema import UNKNOWN, Flag, Hook, Kind, Phase, distinct

OPTIMIZER_PREFIX = "Optimizer.step#"
"""What torch.optim calls its annotation."""

_AUTOGRAD_PREFIX = "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSpan:
    """A stretch of host time: a unit's forward or backward, or a micro-batch."""

    kind: Kind
    unit: int
    phase: Phase
    flags: Flag
    micro_batch: int  # counted over the trace
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passes:
    """What the host was doing, from `since_ns[i]` on."""

    since_ns: Int64s
    unit: npt.NDArray[np.int32]
    phase: npt.NDArray[np.int8]
    recompute: npt.NDArray[np.bool_]
    micro_batch: npt.NDArray[np.int32]  # counted over the trace
    spans: tuple[PassSpan, ...]

    def at(self, time_ns: Int64s) -> Int64s:
        """For each of N moments, the index of what was going on, or UNKNOWN."""
        found = np.searchsorted(self.since_ns, time_ns, side="right") - 1
        return np.asarray(found, dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class _PassTracker:
    """The host's state while its labels go by."""

    ends_of_forward: frozenset[tuple[int, int]]  # unit, begin: forwards whose end is
    # labelled, too
    ends_of_backward: bool  # the trace labels them
    forward: list[tuple[int, int]] = field(default_factory=list)  # unit, since
    backward: list[tuple[int, int]] = field(default_factory=list)
    in_backward: bool = False
    optimizer: bool = False
    micro_batch: int = UNKNOWN
    micro_batch_since: int | None = None
    changes: list[tuple[int, int, int, bool, int]] = field(default_factory=list)
    spans: list[PassSpan] = field(default_factory=list)

    def note(self, time_ns: int) -> None:
        unit, phase = UNKNOWN, Phase.OTHER
        if self.forward:
            unit = self.forward[-1][0]
            phase = Phase.BACKWARD if self.in_backward else Phase.FORWARD
        elif self.in_backward:
            unit = self.backward[-1][0] if self.backward else UNKNOWN
            phase = Phase.BACKWARD
        elif self.optimizer:
            phase = Phase.OPTIMIZER
        recompute = bool(self.forward) and self.in_backward
        inside = self.micro_batch_since is not None
        micro_batch = self.micro_batch if inside else UNKNOWN
        self.changes.append((time_ns, unit, phase, recompute, micro_batch))

    def leave_forward(self, unit: int, time_ns: int) -> None:
        since = [start for one, start in self.forward if one == unit]
        if since:
            self.forward = [entry for entry in self.forward if entry[0] != unit]
            again = self.in_backward  # it is backward that needs it
            phase = Phase.BACKWARD if again else Phase.FORWARD
            flags = Flag.RECOMPUTE if again else Flag.NONE
            self._end(Kind.FORWARD, phase, unit, (since[0], time_ns), flags)

    def leave_backward(self, unit: int, time_ns: int) -> None:
        since = [start for one, start in self.backward if one == unit]
        if since:
            self.backward = [entry for entry in self.backward if entry[0] != unit]
            window = (since[0], time_ns)
            self._end(Kind.BACKWARD, Phase.BACKWARD, unit, window, Flag.NONE)

    def leave_micro_batch(self, time_ns: int) -> None:
        if self.micro_batch_since is not None:
            window = (self.micro_batch_since, time_ns)
            self._end(Kind.MICRO_BATCH, Phase.OTHER, UNKNOWN, window, Flag.NONE)
            self.micro_batch_since = None

    def end_backward(self, time_ns: int) -> None:
        self.leave_micro_batch(time_ns)
        self.in_backward = False
        self.backward.clear()
        self.forward.clear()

    def _end(
        self, kind: Kind, phase: Phase, unit: int, window: tuple[int, int], flags: Flag
    ) -> None:
        self.spans.append(
            PassSpan(
                kind=kind,
                unit=unit,
                phase=phase,
                flags=flags,
                micro_batch=self.micro_batch,
                start_ns=window[0],
                end_ns=window[1],
            )
        )


def passes_of_labels(tree: LabelTree, trace: TraceFile) -> Passes:
    """Follow FSDP2's labels through a trace.

    A unit's forward runs from the end of its pre_forward to its post_forward; its
    backward from the end of its pre_backward to its post_backward. A forward inside
    a backward is activation recomputation.
    """
    host = _PassTracker(
        ends_of_forward=_ended_forwards(tree),
        ends_of_backward=bool(tree.of(Hook.ROOT_POST_BACKWARD_CALLBACK)),
    )
    for time_ns, _, what, unit in sorted(_moments(tree, trace)):
        _step_host(host, what, unit, time_ns)
        host.note(time_ns)
    return _finish(host)


def _ended_forwards(tree: LabelTree) -> frozenset[tuple[int, int]]:
    """Units, and when their forwards began, whose end comes before anything else of
    the same unit.
    """
    began: dict[int, list[int]] = {}  # a group's forward begins with each member
    found: set[tuple[int, int]] = set()
    for index in tree.of(
        *(Hook.PRE_FORWARD, Hook.POST_FORWARD),
        *(Hook.PRE_BACKWARD, Hook.POST_BACKWARD_ACCUMULATE),
    ):
        span = tree.spans[index]
        if span.label == Hook.PRE_FORWARD:
            began.setdefault(span.unit, []).append(span.end_ns)
            continue
        begins = began.pop(span.unit, [])
        if span.label == Hook.POST_FORWARD:
            found.update((span.unit, begin) for begin in begins)
    return frozenset(found)


def _moments(tree: LabelTree, trace: TraceFile) -> list[tuple[int, int, str, int]]:
    """Changes of state: time, order within one time, what, unit. Ends come first."""
    found: list[tuple[int, int, str, int]] = []
    at_end = (
        Hook.PRE_FORWARD,
        Hook.PRE_BACKWARD,
        Hook.ROOT_POST_BACKWARD_CALLBACK,
    )
    at_start = (
        Hook.ROOT_PRE_FORWARD,
        Hook.POST_FORWARD,
        Hook.POST_BACKWARD_ACCUMULATE,
    )
    for span in tree.spans:
        if span.label in at_end:
            found.append((span.end_ns, 0, span.label, span.unit))
        if span.label == Hook.PRE_BACKWARD:
            found.append((span.start_ns, 1, "backward begins", span.unit))
        elif span.label in at_start:
            found.append((span.start_ns, 1, span.label, span.unit))
    for start, end in optimizer_windows(trace):
        found.append((start, 1, "optimizer begins", UNKNOWN))
        found.append((end, 0, "optimizer ends", UNKNOWN))
    return found


def _step_host(host: _PassTracker, what: str, unit: int, time_ns: int) -> None:
    if what == Hook.ROOT_PRE_FORWARD:
        if not host.ends_of_backward:
            host.end_backward(time_ns)
        if not host.in_backward:
            host.leave_micro_batch(time_ns)  # a forward without a backward
            host.micro_batch += 1
            host.micro_batch_since = time_ns
            host.forward.clear()
    elif what == Hook.PRE_FORWARD:
        # Checkpointing stops a forward again early, without the label of its end: what
        # follows it is backward, which must not be called recomputation.
        if not host.in_backward or (unit, time_ns) in host.ends_of_forward:
            host.forward.append((unit, time_ns))
    elif what == Hook.POST_FORWARD:
        host.leave_forward(unit, time_ns)
    elif what == "backward begins":
        if not host.in_backward:
            host.forward.clear()  # whose end no label said
        host.in_backward = True
    elif what == Hook.PRE_BACKWARD:
        if all(one != unit for one, _ in host.backward):
            host.backward.append((unit, time_ns))
    elif what == Hook.POST_BACKWARD_ACCUMULATE:
        host.leave_backward(unit, time_ns)
    elif what == Hook.ROOT_POST_BACKWARD_CALLBACK:
        host.end_backward(time_ns)
    else:
        host.optimizer = what == "optimizer begins"
        if host.optimizer and not host.ends_of_backward:
            host.end_backward(time_ns)


def _finish(host: _PassTracker) -> Passes:
    changes = np.array(host.changes, dtype=np.int64).reshape(-1, 5)
    return Passes(
        since_ns=changes[:, 0],
        unit=changes[:, 1].astype(np.int32),
        phase=changes[:, 2].astype(np.int8),
        recompute=changes[:, 3].astype(np.bool_),
        micro_batch=changes[:, 4].astype(np.int32),
        spans=tuple(host.spans),
    )


def optimizer_windows(trace: TraceFile) -> list[tuple[int, int]]:
    """When the host was inside an optimizer's step."""
    events = trace.events
    rows = annotation_rows(trace, OPTIMIZER_PREFIX)
    return list(
        zip(events.start_ns[rows].tolist(), events.ends(rows).tolist(), strict=True)
    )


def annotation_rows(trace: TraceFile, prefix: str) -> Int64s:
    """Rows of the annotations whose name begins with `prefix`, by start."""
    named = names_that(trace, lambda name: name.startswith(prefix))
    rows = rows_named(trace, (Cat.ANNOTATION,), named)
    order = np.argsort(trace.events.start_ns[rows], kind="stable")
    return rows[order].astype(np.int64)


def autograd_rows(trace: TraceFile) -> RowIds:
    """Rows of autograd's evaluations, one for each function of a graph."""
    named = names_that(trace, lambda name: name.startswith(_AUTOGRAD_PREFIX))
    return rows_named(trace, (Cat.CPU_OP,), named)


def autograd_threads(trace: TraceFile) -> Int64s:
    """Threads on which autograd ran and no step marker: their launches are backward.

    Without labels the thread is what tells a backward kernel; on CPU, where one
    thread runs both passes, nothing does.
    """
    ran = trace.events.tid[autograd_rows(trace)]
    steps = trace.events.tid[annotation_rows(trace, "ProfilerStep")]
    return np.setdiff1d(distinct(ran), distinct(steps), assume_unique=True)
