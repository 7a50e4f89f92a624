"""When, and from where, the host launched each piece of device work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.kernels import flags_by_name, is_graph_launch
from fsdpdoctor.importers.trace_events import Cat, Events, Int64s, TraceFile
from fsdpdoctor.schema import NO_TIME, UNKNOWN

DEVICE_CATS = (Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceWork:
    """Rows of device work, by start, and their launches."""

    rows: Int64s  # [N] in Events
    launched_ns: Int64s  # [N] NO_TIME where unknown
    tid: Int64s  # [N] the launching thread, UNKNOWN where unknown
    in_graph: npt.NDArray[np.bool_]  # [N] launched as part of a CUDA graph
    by_call: npt.NDArray[np.bool_]  # [N] known from a runtime call, to the nanosecond
    host_ns: Int64s  # [N] like `launched_ns`, estimated where unknown


def find_launches(trace: TraceFile) -> DeviceWork:
    """Join device work to its launch: by correlation id, else by External id.

    Old traces repeat the correlation id as External id, which then says nothing.
    """
    events = trace.events
    rows = np.flatnonzero(np.isin(events.cat, DEVICE_CATS)).astype(np.int64)
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    correlation, external = events.correlation[rows], events.external[rows]
    calls = np.flatnonzero((events.cat == Cat.RUNTIME) & (events.correlation >= 0))
    call = _lookup(events.correlation[calls], correlation)
    by_call = call != UNKNOWN
    launched = np.full(len(rows), NO_TIME, dtype=np.int64)
    tid = np.full(len(rows), UNKNOWN, dtype=np.int64)
    launched[by_call] = events.start_ns[calls[call[by_call]]]
    tid[by_call] = events.tid[calls[call[by_call]]]
    in_graph = np.zeros(len(rows), dtype=np.bool_)
    in_graph[by_call] = flags_by_name(trace.names, events.name[calls], is_graph_launch)[
        call[by_call]
    ]
    asked = np.where(by_call | (external == correlation), UNKNOWN, external)
    op = _lookup(trace.ops.external, asked)
    by_op = op != UNKNOWN
    launched[by_op] = trace.ops.start_ns[op[by_op]]
    tid[by_op] = trace.ops.tid[op[by_op]]
    return DeviceWork(
        rows=rows,
        launched_ns=launched,
        tid=tid,
        in_graph=in_graph,
        by_call=by_call,
        host_ns=_estimated(trace, rows, launched),
    )


def asked_of_ops(events: Events) -> Int64s:
    """The External ids by which a launch can only be found among the operators."""
    rows = np.flatnonzero(np.isin(events.cat, DEVICE_CATS))
    rows = rows[events.external[rows] >= 0]
    rows = rows[events.external[rows] != events.correlation[rows]]
    called = events.correlation[events.cat == Cat.RUNTIME]
    by_call = np.isin(events.correlation[rows], called[called >= 0])
    return np.unique(events.external[rows[~by_call]])


def _estimated(trace: TraceFile, rows: Int64s, launched_ns: Int64s) -> Int64s:
    """Launch times, the unknown ones from their neighbours: a stream keeps its order.

    What ran before a stream's first launch of the trace was launched before the
    capture. Where no launch is known at all, work's own start stands for it.
    """
    events = trace.events
    known = launched_ns != NO_TIME
    if not known.any():
        return events.start_ns[rows]
    before_capture = int(events.start_ns.min()) - 1
    filled = np.where(known, launched_ns, before_capture)
    for stream in np.unique(events.stream[rows[~known]]):
        on_stream = np.flatnonzero(events.stream[rows] == stream)
        last_known = np.where(known[on_stream], np.arange(len(on_stream)), UNKNOWN)
        last_known = np.maximum.accumulate(last_known)
        filled[on_stream] = np.where(
            last_known >= 0, filled[on_stream[last_known]], before_capture
        )
    return filled


def _lookup(keys: Int64s, wanted: Int64s) -> Int64s:
    """For each wanted id the last index in `keys` that has it, or UNKNOWN."""
    found = np.full(len(wanted), UNKNOWN, dtype=np.int64)
    if len(keys) == 0:
        return found
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    at = np.searchsorted(sorted_keys, wanted, side="right") - 1
    hit = (at >= 0) & (sorted_keys[np.maximum(at, 0)] == wanted) & (wanted >= 0)
    found[hit] = order[at[hit]]
    return found
