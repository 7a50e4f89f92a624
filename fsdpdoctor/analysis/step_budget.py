"""The step budget: a partition of each step's time that adds up to the step.

[Note: The budget's order] A stretch of the step goes to the first part of `PARTS`
that claims it. Passes without gradients come first, whole: what they cost is one
question, whatever it was spent on. Then come stalls: they are what this tool is for,
and with them the waits for other collectives, where they were measured. On the host's
clock one thread does everything, so its pauses (GC, input, checkpoint) come before
the work they interrupt; on a device's clock they can only explain time in which the
device was idle, so they come after all device work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.analysis.named_gaps import Gaps, named_gaps
from fsdpdoctor.analysis.timeline import Timeline, covered_by, of_kinds
from fsdpdoctor.intervals import (
    Intervals,
    complement,
    intersect,
    single,
    subtract,
    total_ns,
    union,
)
from fsdpdoctor.schema import (
    NO_TIME,
    WAIT_OF,
    Evidence,
    Flag,
    Kind,
    Lane,
    Phase,
    Spans,
    is_any,
)

OTHERS = "exposed_other_communication"
"""The part of the collectives that are not FSDP2's."""

PARTS = (
    "exposed_all_gather",
    "exposed_reduce_scatter",
    "exposed_all_reduce",
    "no_grad",  # passes without gradients, whole: their stalls are in here
    "checkpoint",
    "input",
    "gc",
    "optimizer",
    "clip",
    "copy",
    "recompute",
    "forward",
    "backward",
    "compute",  # model work of no known phase: the loss, unlabelled kernels
    "exposed_other_communication",
    "memcpy",
    "sync",
    "host_bound",
    "script",  # outside all spans, where samples of the stack say which line ran
    "other",  # not explained
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Divided:
    """A step's time, divided."""

    ns: dict[str, int]  # by part; they sum to the step's duration
    others: Intervals  # what collectives that are not FSDP2's were given
    gaps: Gaps  # what the script's lines were given


def divide(line: Timeline) -> Divided:
    """Give every stretch of a step to one part."""
    left = single(line.start_ns, line.end_ns)
    result = dict.fromkeys(PARTS, 0)
    others = left[:0]
    for part, claim in _claims(line):
        taken = intersect(left, claim)
        result[part] += total_ns(taken)
        left = subtract(left, taken)
        if part == OTHERS:
            others = taken
    gaps = named_gaps(line.record, left)
    result["script"] = int(gaps.ns.sum())
    result["other"] = total_ns(left) - result["script"]
    return Divided(ns=result, others=others, gaps=gaps)


def _claims(line: Timeline) -> Iterator[tuple[str, Intervals]]:
    """Who claims what, in order."""
    stalls, spans = line.stalls, line.spans
    passes = is_any(spans.kind, Kind.ROOT_FORWARD, Kind.FORWARD)
    yield "no_grad", covered_by(spans, passes & (spans.flags & Flag.NO_GRAD != 0))
    # The root's gather lies before its forward.
    apart = stalls.flags & Flag.NO_GRAD != 0
    mine = stalls.rows(apart)
    yield "no_grad", union(mine.start_ns, mine.end_ns)
    stalls = stalls.rows(~apart)
    for kind in WAIT_OF:
        mine = stalls.rows(stalls.kind == kind)
        yield f"exposed_{kind.key}", union(mine.start_ns, mine.end_ns)
    waits = line.spans.kind == Kind.COLLECTIVE_WAIT
    measured = bool(waits.any())
    if measured:
        yield OTHERS, covered_by(line.spans, waits)
    if line.data.header.clock == "host" and not _has_kernels(line):
        yield from _host_pauses(line)
        yield from _work(line)
        yield "sync", line.busy(Kind.SYNC)
        return
    yield from _work(line)
    if not measured:
        others = line.spans.lane == Lane.OTHER_COMM
        yield OTHERS, covered_by(line.spans, others)
    yield "memcpy", line.busy(Kind.MEMCPY, Kind.MEMSET)
    yield "sync", line.busy(Kind.SYNC)
    yield from _host_pauses(line)
    yield "host_bound", _host_bound(line)


def _has_kernels(line: Timeline) -> bool:
    return Evidence.KERNELS in line.data.evidence


def _host_pauses(line: Timeline) -> Iterator[tuple[str, Intervals]]:
    yield "checkpoint", line.busy(Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD)
    yield "input", line.busy(Kind.INPUT)
    yield "gc", line.busy(Kind.GC)


def _work(line: Timeline) -> Iterator[tuple[str, Intervals]]:
    copies = [Kind.COPY_OUT, Kind.REDUCE_COPY_IN]
    if line.data.header.clock == "host":
        copies.append(Kind.COPY_IN)  # there is no copy-in stream beside the thread
    spans = line.spans
    yield "optimizer", subtract(line.busy(Kind.OPTIMIZER), _passes_it_runs(spans))
    yield "clip", line.busy(Kind.CLIP)
    yield "copy", line.busy(*copies)
    if _has_kernels(line):
        kernels = is_any(spans.kind, Kind.KERNEL)
        yield (
            "recompute",
            covered_by(spans, kernels & (spans.flags & Flag.RECOMPUTE != 0)),
        )
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            yield (
                phase.key,
                covered_by(spans, kernels & (spans.phase == phase)),
            )
        yield "compute", covered_by(spans, kernels)
        return
    forward = of_kinds(spans, Kind.FORWARD)
    again = forward.flags & Flag.RECOMPUTE != 0
    yield "recompute", covered_by(forward, again)
    yield "forward", covered_by(forward, ~again)
    yield "backward", line.busy(Kind.BACKWARD)
    yield "compute", line.busy(Kind.MICRO_BATCH)


def _passes_it_runs(spans: Spans) -> Intervals:
    """Forwards and backwards inside an optimizer's step: those of a closure, which it
    calls. One that steps inside a backward lies in that, and not the other way.
    """
    steps = of_kinds(spans, Kind.OPTIMIZER)
    around = union(steps.start_ns, steps.end_ns)
    passes = of_kinds(spans, Kind.MICRO_BATCH)
    at = np.searchsorted(around[:, 0], passes.start_ns, side="right") - 1
    inside = at >= 0
    inside[inside] &= passes.end_ns[inside] <= around[at[inside], 1]
    return covered_by(passes, inside)


def _host_bound(line: Timeline) -> Intervals:
    """Gaps of the compute lane that end when the host launched the next kernel."""
    spans = line.spans
    kernels = is_any(spans.kind, Kind.KERNEL, Kind.COPY_OUT, Kind.REDUCE_COPY_IN)
    kernels &= spans.issued_ns != NO_TIME
    gaps = complement(line.compute, line.start_ns, line.end_ns)
    starts, issued = spans.start_ns[kernels], spans.issued_ns[kernels]
    order = np.argsort(starts, kind="stable")
    starts, issued = starts[order], issued[order]
    at = np.searchsorted(starts, gaps[:, 1], side="left")
    inside = at < len(starts)
    gaps, at = gaps[inside], at[inside]
    return union(gaps[:, 0], np.minimum(issued[at], gaps[:, 1]))
