"""The small tables that a rank is reduced to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema import UNKNOWN, Kind, Table, TimedTable, column

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
