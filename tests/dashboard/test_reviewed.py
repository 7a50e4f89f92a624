"""Each fault of the pages that somebody found has a test, which is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.dashboard.reviewed import FAULTS

TESTS = Path(__file__).parents[1]


def test_no_fault_is_left_out() -> None:
    """All 38, and the one that was found beside the nineteenth."""
    assert [*FAULTS] == [
        *map(str, range(1, 20)),
        "19b",
        *map(str, range(20, 39)),
    ]


@pytest.mark.parametrize("number", FAULTS)
def test_a_faults_tests_are_there(number: str) -> None:
    """Under the names that the list has."""
    for test in FAULTS[number].tests:
        path, _, name = test.partition("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        there = {part.name for part in tree.body if isinstance(part, ast.FunctionDef)}
        assert re.sub(r"\[.*", "", name) in there
