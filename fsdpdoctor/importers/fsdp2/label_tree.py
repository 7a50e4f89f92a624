"""FSDP2's labels in one trace, nested as they were, and found by time and thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from fsdpdoctor.importers.fsdp2.labels import parse_label
from fsdpdoctor.importers.fsdp2.nesting import Nesting, nest
from fsdpdoctor.importers.reader.trace_file import Cat, Int64s, TraceFile, rows_named
from fsdpdoctor.schema import ROOT, UNKNOWN, Hook


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSpan:
    """One label. Times are ns as in `Events`."""

    label: Hook
    unit: int  # in LabelTree.units, UNKNOWN for labels of the state
    start_ns: int
    end_ns: int
    tid: int
    row: int  # in Events
    parent: int  # in LabelTree.spans, UNKNOWN at the top


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelTree:
    """All labels of a trace, by start."""

    spans: tuple[LabelSpan, ...]
    units: tuple[str, ...]  # FQNs, the root first, then as they first appear
    nesting: Nesting
    by_label: Mapping[Hook, Sequence[int]]  # indices of spans, by start

    def innermost(self, tid: Int64s, time_ns: Int64s) -> Int64s:
        """For each of N moments on a thread, the innermost label, or UNKNOWN."""
        return self.nesting.innermost(tid, time_ns)

    def enclosing(self, index: int, labels: Sequence[Hook]) -> LabelSpan | None:
        """The nearest label of some kinds around one, itself left out."""
        index = self.spans[index].parent
        while index != UNKNOWN:
            if self.spans[index].label in labels:
                return self.spans[index]
            index = self.spans[index].parent
        return None

    def of(self, *labels: Hook) -> list[int]:
        """Indices of the labels of some kinds, by start."""
        return sorted(chain.from_iterable(self.by_label.get(one, ()) for one in labels))


def build_label_tree(trace: TraceFile) -> LabelTree:
    """Find, nest and index the labels of a trace."""
    events = trace.events
    parsed = {
        name: label
        for name, text in enumerate(trace.names)
        if (label := parse_label(text)) is not None
    }
    is_label = np.zeros(len(trace.names), dtype=np.bool_)
    is_label[list(parsed)] = True
    nesting = nest(events, rows_named(trace, (Cat.ANNOTATION,), is_label))
    names = [parsed[name] for name in events.name[nesting.rows].tolist()]
    units = _units([name.unit for name in names])
    ids = {unit: i for i, unit in enumerate(units)}
    spans = [
        LabelSpan(
            label=name.label,
            # A prefetch label cannot say which of a module's groups it is for.
            unit=UNKNOWN if name.unit is None else ids.get(name.unit, UNKNOWN),
            start_ns=start,
            end_ns=end,
            tid=tid,
            row=row,
            parent=parent,
        )
        for name, start, end, tid, row, parent in zip(
            names,
            events.start_ns[nesting.rows].tolist(),
            events.ends(nesting.rows).tolist(),
            events.tid[nesting.rows].tolist(),
            nesting.rows.tolist(),
            nesting.parents.tolist(),
            strict=True,
        )
    ]
    by_label: dict[Hook, list[int]] = {}
    for index, span in enumerate(spans):
        by_label.setdefault(span.label, []).append(index)
    return LabelTree(
        spans=tuple(spans), units=units, nesting=nesting, by_label=by_label
    )


def _units(named: Sequence[str | None]) -> tuple[str, ...]:
    """The units in the order of first mention, which is that of the first forward.

    Prefetch labels leave `[pg=N]` out, so a name that only they use is no unit.
    """
    seen = dict.fromkeys(unit for unit in named if unit is not None)
    grouped = {unit.rsplit(" [pg=", 1)[0] for unit in seen if " [pg=" in unit}
    units = [unit for unit in seen if unit not in grouped]
    roots = [unit for unit in units if unit.split(" [pg=")[0] == ROOT]
    return (*roots, *(unit for unit in units if unit not in roots))
