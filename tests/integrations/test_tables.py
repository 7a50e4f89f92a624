"""Tables as CSV and Parquet: every table, typed, and empty where nothing is known."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor.errors import MissingDependencyError, need
from fsdpdoctor.integrations.tables import tables_of, write_csv, write_parquet
from fsdpdoctor.report.memory import MemoryPart, MemoryRow, UnitPeak
from fsdpdoctor.report.row_table import RowTable
from fsdpdoctor.report.value import Report
from tests.integrations.drawn import measured_run
from tests.rig.changed import replace


def rows_of(path: Path) -> list[dict[str, str]]:
    """A file as Python's own reader has it."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_of_the_report_is_in_a_table() -> None:
    """By name: what the report has as rows, and its steps."""
    measures, report = measured_run()
    tables = tables_of(report, measures)
    in_report = {
        name
        for name in Report.__struct_fields__
        if isinstance(getattr(report, name), tuple)
    }

    own = {"steps", "budget", "memory_peak", "memory_units"}
    assert set(tables) == in_report | own
    assert {name: tuple(tables[name]) for name in in_report} == {
        name: getattr(report, name) for name in in_report
    }


def test_the_counted_step_has_its_tables() -> None:
    """What the peak was made of, and each unit's; without such a step: empty."""
    measures, report = measured_run()
    part = MemoryPart(bucket="gradients", unit="layers.0", bytes=7)
    unit = UnitPeak(
        unit="layers.0",
        forward_peak_bytes=9,
        backward_peak_bytes=8,
        activation_bytes=None,
    )
    row = MemoryRow(step=1, rank=0, ranks=2, parts=(part,), units=(unit,))
    counted = tables_of(replace(report, memory=row), measures)
    without = tables_of(replace(report, memory=None), measures)

    assert (*counted["memory_peak"], *counted["memory_units"]) == (part, unit)
    assert (*without["memory_peak"], *without["memory_units"]) == ()


def test_csv_has_the_figures_and_nothing_for_what_is_not_known(tmp_path: Path) -> None:
    """A rank's step, cell by cell; a list is JSON."""
    measures, report = measured_run()
    tables = tables_of(report, measures)
    for name, table in tables.items():
        write_csv(table, tmp_path / f"{name}.csv")
    steps = rows_of(tmp_path / "steps.csv")
    finding = rows_of(tmp_path / "findings.csv")[0]

    assert len(steps) == 8
    assert {k: v for k, v in steps[0].items() if not k.startswith("exposed_ns_")} == {
        "rank": "0",
        "step": "3",
        "judged": "true",
        "duration_ns": "16000000",
        "micro_batches": "1",
        "tokens": "",
        "samples": "",
        "exposed_ns": "8000000",
        "peak_allocated_bytes": "",
        "peak_reserved_bytes": "",
        "rss_bytes": "",
    }
    assert steps[0]["exposed_ns_by_cause.wire"] == "8000000"
    assert steps[0]["exposed_ns_by_cause.wire_or_straggler"] == ""
    assert json.loads(finding["units"]) == list(report.findings[0].units)
    assert list(rows_of(tmp_path / "script.csv")) == []
    assert (tmp_path / "other_collectives.csv").read_text().split(",")[6] == "in"


@dataclass(frozen=True, kw_only=True)
class Named:
    """A row of anyone's names."""

    name: str
    value: int


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ('a,"b"\nc', 'a,"b"\nc'),
        ("layers.0", "layers.0"),
        ("\ud800", "?"),
    ],
)
def test_a_name_is_a_text_to_a_spreadsheet(
    name: str, cell: str, tmp_path: Path
) -> None:
    """None runs as a formula; a number below zero stays one."""
    path = tmp_path / "names.csv"
    write_csv(RowTable(Named, [Named(name=name, value=-1)]), path)

    assert rows_of(path) == [{"name": cell, "value": "-1"}]


def test_an_absent_package_says_how_to_get_it() -> None:
    """In one line."""
    with pytest.raises(MissingDependencyError) as raised:
        need("no_such_package", "parquet")
    assert str(raised.value) == (
        "no_such_package is not installed: pip install 'fsdpdoctor[parquet]'"
    )


def test_parquet_has_the_same(tmp_path: Path) -> None:
    """Read back by pyarrow: each table's rows, with their types."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs fsdpdoctor[parquet]")
    nanoarrow = pytest.importorskip("nanoarrow")
    measures, report = measured_run()
    for name, table in tables_of(report, measures).items():
        path = tmp_path / f"{name}.parquet"
        write_parquet(table, path)
        back: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        assert back == nanoarrow.ArrayStream(table).read_all().to_pylist()
        assert len(back) == len(table)
    units = parquet.read_table(tmp_path / "findings.parquet")["units"]
    assert units.to_pylist()[0] == list(report.findings[0].units)
