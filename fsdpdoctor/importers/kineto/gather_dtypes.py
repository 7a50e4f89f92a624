"""In which dtype each unit is gathered, where the collectives' arguments say it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fsdpdoctor.importers.kineto.attribution import Context, comm_args_of
from fsdpdoctor.importers.reader.trace_file import CommArgs
from fsdpdoctor.schema import ITEMSIZE, UNKNOWN, Hook, torch_name


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
