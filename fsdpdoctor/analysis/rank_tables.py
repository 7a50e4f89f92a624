"""The small tables that a rank is reduced to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema import (
    UNKNOWN,
    Kind,
    SettingsSpec,
    Table,
    TimedTable,
    column,
)

HOST_KINDS = (
    Kind.SYNC,
    Kind.GC,
    Kind.INPUT,
    Kind.CHECKPOINT_SAVE,
    Kind.CHECKPOINT_LOAD,
    Kind.OPTIMIZER,
    Kind.CLIP,
    Kind.MICRO_BATCH,
)
"""The spans outside every unit that measures keep one by one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps(TimedTable):
    """One row per recorded step."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    host_start_ns: npt.NDArray[np.int64] = column("int64", 0)
    host_end_ns: npt.NDArray[np.int64] = column("int64", 0)
    micro_batches: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    tokens: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    samples: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    recorder_ns: npt.NDArray[np.int64] = column("int64", 0)
    complete: npt.NDArray[np.int8] = column("int8", 1)
    compute_ns: npt.NDArray[np.int64] = column("int64", 0)  # compute lane busy
    peak_allocated_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    peak_reserved_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    rss_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # at its end


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows(TimedTable):
    """One row per unshard window: a unit from usable to resharded."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    phase: npt.NDArray[np.int8] = column("int8", 0)  # of the gather that opened it
    flags: npt.NDArray[np.int16] = column("int16", 0)
    micro_batch: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostEvents(TimedTable):
    """One row per host event, optimizer step, clip and micro-batch."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    kind: npt.NDArray[np.int8] = column("int8", 0)  # one of HOST_KINDS
    phase: npt.NDArray[np.int8] = column("int8", 0)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    name: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    value: npt.NDArray[np.int64] = column("int64", UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passes(TimedTable):
    """One row per forward of a root without gradients."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # one of its tree
    flags: npt.NDArray[np.int16] = column("int16", 0)
    name: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # who asked for it
    value: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # length of its input


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldUp(TimedTable):
    """One row per gap of a trace's compute lane that ends in a kernel which waited for
    nothing, while another unit's collective ran.
    """

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # whose kernel it was
    phase: npt.NDArray[np.int8] = column("int8", 0)
    by_unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # whose collective


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterRows(Table):
    """One row per counter value, with its step."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    name: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    time_ns: npt.NDArray[np.int64] = column("int64", 0)
    value: npt.NDArray[np.int64] = column("int64", UNKNOWN)


def under_last_settings(
    steps: Steps, settings: Sequence[SettingsSpec], enough: int
) -> npt.NDArray[np.bool_]:
    """The whole steps under the settings that were kept last, or under those before
    where fewer than `enough` are; none of a trial.

    A header describes units as they are at the end, and a figure that mixes steps of
    several settings is of none of them.
    """
    of_a_trial = np.zeros(len(steps), dtype=np.bool_)
    changes = {0}
    to_the_last = np.iinfo(np.int64).max
    for spec in settings:
        for first, end in spec.steps:
            if not spec.trial:
                changes |= {first} if end == UNKNOWN else {first, end}
                continue
            of_a_trial |= (steps.step >= first) & (
                steps.step < (to_the_last if end == UNKNOWN else end)
            )
    plain: npt.NDArray[np.bool_] = ~of_a_trial & (steps.complete == 1)
    if len(changes) == 1:
        return plain
    bounds = [*sorted(changes), to_the_last]
    for first, end in reversed([*pairwise(bounds)]):
        # The first step of other settings still frees what those before held.
        found: npt.NDArray[np.bool_] = plain & (steps.step > first) & (steps.step < end)
        if found.sum() >= enough:
            return found
    return plain
