"""Rows as an Arrow table: every kind of field, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import nanoarrow as na

from fsdpdoctor.report.row_table import RowTable


@dataclass(frozen=True, kw_only=True)
class Inner:
    """What a row holds twice."""

    count: int | None
    share: float | None


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A row with a field of each kind."""

    name: str
    level: Literal["low", "high"]
    known: bool | None
    inner: Inner
    more: Inner | None
    ranks: tuple[int, ...]
    units: tuple[str, ...] | None
    policy: bool | int | None
    evidence: Mapping[str, object]
    inners: tuple[Inner, ...]


ROWS = (
    Whole(
        name="a\ud800",
        level="low",
        known=True,
        inner=Inner(count=1 << 62, share=0.5),
        more=None,
        ranks=(3, 1),
        units=None,
        policy=True,
        evidence={"b": [1, None]},
        inners=(Inner(count=1, share=None),),
    ),
    Whole(
        name="",
        level="high",
        known=None,
        inner=Inner(count=None, share=None),
        more=Inner(count=7, share=None),
        ranks=(),
        units=("x", "y\udfff"),
        policy=2,
        evidence={},
        inners=(),
    ),
)


def read(table: RowTable[Any]) -> Any:
    """What a reader of Arrow takes from it."""
    return na.ArrayStream(table).read_all()


def test_each_field_is_a_column_of_its_type() -> None:
    """Nested ones by their path; lists; text where a field has no one type."""
    types = {
        field.name: field.type.name
        for field in read(RowTable(Whole, ROWS)).schema.fields
    }

    assert types == {
        "name": "STRING",
        "level": "STRING",
        "known": "BOOL",
        "inner.count": "INT64",
        "inner.share": "DOUBLE",
        "more.count": "INT64",
        "more.share": "DOUBLE",
        "ranks": "LIST",
        "units": "LIST",
        "policy": "STRING",
        "evidence": "STRING",
        "inners": "STRING",
    }


def test_values_are_whole_and_what_is_not_known_is_null() -> None:
    """Large integers keep their digits; half a character becomes a question mark."""
    assert read(RowTable(Whole, ROWS)).to_pylist() == [
        {
            "name": "a?",
            "level": "low",
            "known": True,
            "inner.count": 1 << 62,
            "inner.share": 0.5,
            "more.count": None,
            "more.share": None,
            "ranks": [3, 1],
            "units": None,
            "policy": "true",
            "evidence": '{"b": [1, null]}',
            "inners": '[{"count": 1, "share": null}]',
        },
        {
            "name": "",
            "level": "high",
            "known": None,
            "inner.count": None,
            "inner.share": None,
            "more.count": 7,
            "more.share": None,
            "ranks": [],
            "units": ["x", "y?"],
            "policy": "2",
            "evidence": "{}",
            "inners": "[]",
        },
    ]


def test_a_table_without_rows_has_its_columns() -> None:
    """So that code that selects one works on a run without findings."""
    table = read(RowTable(Whole, ()))

    assert len(table) == 0
    assert len(table.schema.fields) == 12


def test_rows_are_reached_one_by_one() -> None:
    """From either end, and in a loop."""
    table = RowTable(Whole, ROWS)

    assert (len(table), table[0], table[-1]) == (2, *ROWS)
    assert list(table) == list(ROWS)
    assert repr(table) == "<RowTable of Whole, 2 rows>"
