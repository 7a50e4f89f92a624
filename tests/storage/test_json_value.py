"""Values of the report's JSON are Structs, each of them, and stay as they were made."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from fsdpdoctor.finding import Advice, Finding
from fsdpdoctor.report.value import Report
from fsdpdoctor.storage.json_value import asdict, replace


def rows_in(kind: Any) -> set[type]:
    """Every class of ours that a type's fields lead to."""
    found: set[type] = set()
    left = [kind]
    while left:
        one = left.pop()
        left += get_args(one)
        if not isinstance(one, type) or one in found:
            continue
        if is_dataclass(one) or issubclass(one, msgspec.Struct):
            found.add(one)
            left += get_type_hints(one).values()
    return found


def test_all_of_a_report_is_structs() -> None:
    """So nobody need ask which `replace` is a row's."""
    rows = rows_in(Report) | rows_in(Finding)

    assert len(rows) > 30
    assert [row for row in rows if not issubclass(row, msgspec.Struct)] == []


def test_a_value_is_frozen_and_by_keyword() -> None:
    """As every value of this project."""
    advice = Advice(text="Prefetch.")

    with pytest.raises(AttributeError):
        advice.text = "Do not."  # type: ignore[misc]
    with pytest.raises(TypeError):
        Advice("Prefetch.")  # type: ignore[call-arg]


def test_another_with_some_fields_changed() -> None:
    """The first stays; a field that there is not is refused."""
    advice = Advice(text="Prefetch.", memory_cost_bytes=8)
    other = replace(advice, text="Wrap.")

    assert asdict(other) == asdict(advice) | {"text": "Wrap."}
    assert advice.text == "Prefetch."
    with pytest.raises(TypeError, match="has no field"):
        replace(advice, words="Wrap.")  # type: ignore[call-arg]
