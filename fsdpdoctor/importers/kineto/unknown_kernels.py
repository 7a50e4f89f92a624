"""Kernels that may be communication and that no table knows.

A kernel that runs on a stream of its own, beside compute, and is neither known to
compute nor of a known library, is left among compute and named, with its share: what
overlap would be if it were communication cannot be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.kineto.kernels import function_name
from fsdpdoctor.importers.libraries import computes
from fsdpdoctor.importers.reader.trace_file import Int64s
from fsdpdoctor.schema import Kind, Spans, distinct
from fsdpdoctor.storage.spill import blocks, let_go


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKernels:
    """Time of unknown kernels on streams of their own, by function, the most first."""

    ns: dict[str, int]
    share: float  # of all kernels' time


def unknown_kernels(spans: Spans, names: Sequence[str]) -> UnknownKernels | None:
    """Look for them among a rank's device spans; None: there are none."""
    streams, spent = _time_by_stream_and_name(spans, len(names))
    if len(streams) < 2:
        return None
    ran = np.flatnonzero(spent.any(axis=0))
    computing = np.zeros(len(names), dtype=np.bool_)
    computing[ran] = [computes(names[name]) for name in ran.tolist()]
    known, whole = spent[:, computing].sum(axis=1), spent.sum(axis=1)
    main = int((known if known.any() else whole).argmax())
    found: dict[str, int] = {}
    # A stream most of whose work is known to compute is compute's, too.
    for row in np.flatnonzero(2 * known < whole).tolist():
        for name in np.flatnonzero(spent[row] * ~computing).tolist():
            if row != main:
                function = function_name(names[name])
                found[function] = found.get(function, 0) + int(spent[row, name])
    if not found:
        return None
    in_order = dict(sorted(found.items(), key=lambda item: -item[1]))
    return UnknownKernels(
        ns=in_order, share=sum(found.values()) / max(int(spent.sum()), 1)
    )


def _time_by_stream_and_name(spans: Spans, names: int) -> tuple[Int64s, Int64s]:
    """Streams, and [streams, names] nanoseconds of kernels that are no collective."""
    by_stream: dict[int, Int64s] = {}
    for block in blocks(len(spans)):
        rows = np.flatnonzero(spans.kind[block] == Kind.KERNEL)
        stream = spans.stream[block][rows]
        name = spans.name[block][rows]
        took = (spans.end_ns[block] - spans.start_ns[block])[rows]
        for one in distinct(stream).tolist():
            mine = (stream == one) & (name >= 0)
            sums = np.bincount(name[mine], took[mine], names).astype(np.int64)
            by_stream[one] = by_stream.get(one, 0) + sums
        let_go(spans)
    streams = np.array(sorted(by_stream), dtype=np.int64)
    if not by_stream:
        return streams, np.empty((0, names), dtype=np.int64)
    return streams, np.stack([by_stream[one] for one in streams.tolist()])
