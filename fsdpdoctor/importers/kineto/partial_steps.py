"""First steps of a capture that show the capture and not the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fsdpdoctor.quantities import MS, duration
from fsdpdoctor.schema import (
    COMMUNICATION_LANES,
    DEVICE_WORK,
    Spans,
    StepRecord,
    distinct,
    median,
    one_of,
)

SKEW_FACTOR = 10
"""A first collective this many times the median of its like waited for ranks whose
capture began later. The public report has 17 456 ms against 14.3 us; in the real
traces tried, a first collective took at most 1.4 times the median."""

MIN_SKEW_NS = 10 * MS
"""Below this a late rank cannot be told from a late capture."""

MIN_LIKE = 3
"""Collectives of the same kind and size that a median is taken of."""

MIN_KERNEL_SHARE = 0.5
"""Of the kernels per launch in the other steps. CUPTI drops what ran before its
buffers were ready (pytorch/kineto#1380): then most of a first step's are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """The steps to judge, and why the first one is not among them."""

    steps: tuple[StepRecord, ...]
    aside: Spans = field(default_factory=lambda: Spans.build(0))
    reason: str | None = None


def set_first_aside(steps: tuple[StepRecord, ...], launches: Sequence[int]) -> SetAside:
    """Take the first step out where it shows the capture's own start.

    `launches`: how many each step's host made.
    """
    if len(steps) < 2:
        return SetAside(steps=steps)
    reason = _skew(steps) or _late_device(steps, launches)
    if reason is None:
        return SetAside(steps=steps)
    return SetAside(
        steps=steps[1:],
        aside=steps[0].spans,
        reason=f"step {steps[0].step} is set aside: {reason}",
    )


def _communication(spans: Spans) -> Spans:
    return spans.rows(one_of(spans.lane, COMMUNICATION_LANES))


def _skew(steps: Sequence[StepRecord]) -> str | None:
    """A first collective that waited out the distance between captures."""
    everything = Spans.concat([_communication(step.spans) for step in steps])
    for group in distinct(everything.group).tolist():
        mine = everything.rows(everything.group == group)
        at = int(np.argmin(mine.start_ns))
        like = (mine.kind == mine.kind[at]) & (mine.bytes == mine.bytes[at])
        like[at] = False
        took = int(mine.duration_ns[at])
        if like.sum() < MIN_LIKE or took < MIN_SKEW_NS:
            continue
        usual = median(mine.duration_ns[like])
        if took > SKEW_FACTOR * usual:
            return (
                f"its first collective took {duration(took)}, where the median of its "
                f"kind is {duration(usual)}: it waited for ranks whose capture began "
                "later. Start captures together, after a barrier"
            )
    return None


def _late_device(steps: Sequence[StepRecord], launches: Sequence[int]) -> str | None:
    """A first step most of whose kernels are missing."""
    shares = [
        _kernels(step.spans) / made if made else None
        for step, made in zip(steps, launches, strict=True)
    ]
    if shares[0] is None:
        return None
    others = [share for share in shares[1:] if share]
    if not others or shares[0] >= MIN_KERNEL_SHARE * median(others):
        return None
    return (
        "the device's events begin late in it, most of its kernels are missing. Give "
        "the profiler a warm-up step: schedule(wait=1, warmup=1, ...)"
    )


def _kernels(spans: Spans) -> int:
    ran = one_of(spans.kind, DEVICE_WORK) | one_of(spans.lane, COMMUNICATION_LANES)
    return int(ran.sum())
