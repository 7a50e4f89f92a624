"""What the builders of spans share: one trace with its labels, passes and groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.fsdp2.label_tree import LabelTree, build_label_tree
from fsdpdoctor.importers.fsdp2.nesting import Nesting, nest
from fsdpdoctor.importers.fsdp2.operations import Operation, Operations, find_operations
from fsdpdoctor.importers.fsdp2.passes import Passes, passes_of_labels
from fsdpdoctor.importers.kineto.process_groups import Groups
from fsdpdoctor.importers.reader.trace_file import (
    COMM_OP_PREFIXES,
    Bools,
    Cat,
    CommArgs,
    Int64s,
    RowIds,
    TraceFile,
    names_that,
    rows_named,
)
from fsdpdoctor.schema import ITEMSIZE, UNKNOWN, Hook, Spans, torch_name
from fsdpdoctor.schema.string_table import StringTable
from fsdpdoctor.storage.spill import blocks, let_go


class SpansWithHostTime(NamedTuple):
    """Spans, and for each the host time that says which step it belongs to."""

    spans: Spans
    host_ns: Int64s


def rows_that(spans: Spans, test: Callable[[Spans], Bools]) -> Spans:
    """The few of a trace's spans that pass a test, of which a block at a time is read:
    their rows lie scattered over all the pages of the columns.
    """
    kept = [Spans.build(0)]
    for block in blocks(len(spans)):
        some = spans.rows(block)
        kept.append(some.rows(test(some)))
        let_go(spans)
    return Spans.concat(kept)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Context:
    """A trace and what was read off it."""

    trace: TraceFile
    tree: LabelTree
    passes: Passes
    operations: Operations
    comm_ops: Nesting  # c10d operators and the annotations of their backends
    groups: Groups
    units: list[str]  # FQNs; those of the labels, else what `device_order` makes up
    names: StringTable  # of the rank's record; begins with the trace's

    @property
    def has_labels(self) -> bool:
        return len(self.tree.units) > 0

    def operation(self, label: int) -> Operation | None:
        """The unshard or reduction that a label belongs to."""
        op = self.operations.of_label.get(label)
        return None if op is None else self.operations.by_op[op]


def build_context(trace: TraceFile) -> Context:
    """Read the labels of a trace."""
    tree = build_label_tree(trace)
    passes = passes_of_labels(tree, trace)
    info = trace.metadata.get("distributedInfo")
    names = StringTable()
    for name in trace.names:
        names.id(name)
    return Context(
        trace=trace,
        tree=tree,
        passes=passes,
        operations=find_operations(tree, passes),
        comm_ops=nest(trace.events, comm_op_rows(trace)),
        units=list(tree.units),
        groups=Groups(info=info if isinstance(info, dict) else {}),
        names=names,
    )


def comm_op_rows(trace: TraceFile) -> RowIds:
    """Rows of the host's events that say which collective is called."""
    named = names_that(trace, lambda name: name.startswith(COMM_OP_PREFIXES))
    return rows_named(trace, (Cat.CPU_OP, Cat.ANNOTATION), named)


def comm_args_of(trace: TraceFile, row: int) -> CommArgs | None:
    """The collective arguments of a row, if it has any."""
    comm = int(trace.events.comm[row])
    return None if comm == UNKNOWN else trace.comms[comm]


def pick(column: npt.NDArray[np.generic], at: Int64s, absent: int) -> Int64s:
    """`column[at]`, and `absent` where `at` is UNKNOWN."""
    padded = np.concatenate((column.astype(np.int64), [absent]))
    return np.where(at >= 0, padded[at], absent)


def gather_dtypes(context: Context) -> Mapping[int, str]:
    """By unit, of its first all-gather that says it."""
    rows = context.comm_ops.rows
    events = context.trace.events
    label = context.tree.innermost(events.tid[rows], events.start_ns[rows])
    found: dict[int, str] = {}
    of_label, by_op = context.operations.of_label, context.operations.by_op
    for row, under in zip(rows.tolist(), label.tolist(), strict=True):
        operation = by_op.get(of_label.get(under, UNKNOWN))
        if operation is None or operation.unit in found:
            continue
        if operation.span.label == Hook.ALL_GATHER:
            dtype = _said(comm_args_of(context.trace, row))
            if dtype is not None:
                found[operation.unit] = dtype
    return found


def _said(args: CommArgs | None) -> str | None:
    if args is None:
        return None
    words = [args.dtype] if args.dtype else _types(args.types)
    known = {torch_name(word) for word in words} & set(ITEMSIZE)
    return known.pop() if len(known) == 1 else None


def _types(text: str | None) -> list[str]:
    """The words of "Input type"."""
    try:
        value = json.loads(text or "")
    except ValueError:
        return []
    found = value if isinstance(value, list) else []
    return [word for word in found if isinstance(word, str)]
