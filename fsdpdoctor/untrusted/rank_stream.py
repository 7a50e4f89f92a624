"""The steps of one rank's stream: what `run_writer` wrote, as far as it is whole."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema import TABLE_SINCE, RankHeader, StepRecord, Table
from fsdpdoctor.schema.step_record import NAMES, SCALARS, TABLES
from fsdpdoctor.schema.string_table import StringTable
from fsdpdoctor.untrusted.arrow_messages import sound_length
from fsdpdoctor.untrusted.headers import short_word
from fsdpdoctor.untrusted.origin import foreign_stream
from fsdpdoctor.untrusted.rows import (
    Lists,
    check_scalars,
    checked_table,
    with_known_names,
)

Stream = tuple[tuple[StepRecord, ...], tuple[str, ...], str | None]
"""The steps, names and, where the stream breaks off, how."""


def steps_of(path: Path, content: bytes, header: RankHeader) -> Stream:
    """What a rank's file holds, as far as it is whole. `path` is for messages."""
    import nanoarrow as na  # where a stream is read: traces do without

    steps: list[StepRecord] = []
    names = StringTable()
    lists = Lists(units=len(header.units), groups=len(header.groups))
    if not content:
        ended = "the rank stopped before its first step"
        if header.ended == "done":
            ended = "the rank trained nothing that was seen"
        elif header.ended.startswith("detached"):
            ended = "its recording stopped before the first step was written"
        return (), (), f"{path} is empty: {ended}"
    sound, wrong = sound_length(content)
    try:
        stream = na.ArrayStream.from_readable(io.BytesIO(content[:sound]))
        if (foreign := foreign_stream(stream.schema.metadata, header)) is not None:
            return (), (), f"{path} is not read: {foreign}"
        for batch in stream:
            steps.append(_step_of(batch, names, header.schema_version, lists))
    # nanoarrow raises its own RuntimeError on a cut or corrupt message.
    except (RuntimeError, ValueError) as error:
        wrong = str(error)
    if wrong is not None:
        kept = f"{len(steps)} whole steps before it were read"
        wrong = f"{path} breaks off: {wrong} ({kept})"
    return _named(steps, names), names.all, wrong


def _named(steps: Sequence[StepRecord], names: StringTable) -> tuple[StepRecord, ...]:
    count = len(names.strings)
    return tuple(with_known_names(record, count) for record in steps)


def _step_of(batch: Any, names: StringTable, version: int, lists: Lists) -> StepRecord:
    fields = {field.name: i for i, field in enumerate(batch.schema.fields)}
    tables_then = {n: t for n, t in TABLES.items() if TABLE_SINCE.get(n, 1) <= version}
    if missing := [n for n in (*SCALARS, *tables_then, NAMES) if n not in fields]:
        raise ValueError(f"the stream has no column {', '.join(missing)}")
    if len(batch) != 1:
        raise ValueError(f"a batch holds {len(batch)} steps, expected one")
    scalars = {n: int(_values(batch.child(fields[n]))[0]) for n in SCALARS}
    check_scalars(scalars)
    tables = {
        n: checked_table(_table_of(batch.child(fields[n]), t), lists)
        for n, t in tables_then.items()
    }
    for item in batch.child(fields[NAMES]).child(0).iter_py():
        names.id(short_word(item))
    complete = bool(scalars.pop("complete"))
    return StepRecord(**scalars, complete=complete, **tables)  # type: ignore[arg-type]


def _table_of(column: Any, table: type[Table]) -> Table:
    rows = column.child(0)
    fields = {field.name: i for i, field in enumerate(rows.schema.fields)}
    if missing := [name for name in table.columns() if name not in fields]:
        raise ValueError(f"{table.__name__} has no column {', '.join(missing)}")
    return table(
        **{name: _values(rows.child(fields[name])) for name in table.columns()}
    )


def _values(column: Any) -> npt.NDArray[np.generic]:
    return np.asarray(column.buffer(1))[: len(column)].copy()
