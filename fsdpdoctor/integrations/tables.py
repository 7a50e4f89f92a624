"""Every table of a run as CSV, or as Parquet where pyarrow is installed.

A column is named for its place in the report's JSON, with its unit, as
`exposed_ns.forward` and `peak_bytes`. A cell is empty where the source cannot know:
0 was measured.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nanoarrow as na

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.errors import need
from fsdpdoctor.finding import NotJudged
from fsdpdoctor.report.memory import MemoryPart, UnitPeak
from fsdpdoctor.report.model_rows import ModelRow, NoGradRow
from fsdpdoctor.report.row_table import RowTable
from fsdpdoctor.report.step_rows import BudgetRow, StepRow, budget_rows, step_rows
from fsdpdoctor.report.value import (
    CollectiveRow,
    FindingRow,
    OtherCollectiveRow,
    RankRow,
    Report,
    ScriptRow,
    UnitRow,
)

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is run by spreadsheets: they get an apostrophe before it."""


def tables_of(report: Report, measures: Measures) -> Mapping[str, RowTable[Any]]:
    """All tables by name."""
    memory = report.memory
    return {
        "steps": RowTable(StepRow, step_rows(measures)),
        "budget": RowTable(BudgetRow, budget_rows(measures)),
        "models": RowTable(ModelRow, report.models),
        "units": RowTable(UnitRow, report.units),
        "memory_peak": RowTable(MemoryPart, memory.parts if memory else ()),
        "memory_units": RowTable(UnitPeak, memory.units if memory else ()),
        "no_grad": RowTable(NoGradRow, report.no_grad),
        "collectives": RowTable(CollectiveRow, report.collectives),
        "other_collectives": RowTable(OtherCollectiveRow, report.other_collectives),
        "script": RowTable(ScriptRow, report.script),
        "ranks": RowTable(RankRow, report.ranks),
        "findings": RowTable(FindingRow, report.findings),
        "not_judged": RowTable(NotJudged, report.not_judged),
    }


def write_csv(table: RowTable[Any], path: Path) -> None:
    """Write a table as RFC 4180 has it, in UTF-8; lists are JSON."""
    rows = na.ArrayStream(table).read_all().to_pylist()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows([_cell(value) for value in row.values()] for row in rows)


def write_parquet(table: RowTable[Any], path: Path) -> None:
    """Write a table with its types; lists stay lists."""
    need("pyarrow", "parquet")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(table), path)


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


WRITERS: Mapping[str, Callable[[RowTable[Any], Path], None]] = {
    "csv": write_csv,
    "parquet": write_parquet,
}
"""By the suffix of their files."""
