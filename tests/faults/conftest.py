"""The table of what came of each fault: rows that ran are put in place of earlier."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import RESULTS
from tests.rig.warm import warm_starts

TABLE = Path(__file__).parents[1] / "benchmarks" / "fault-results.md"
HEAD = """# What came of each fault

Written by `pytest -m faults`: trainings on gloo, plain and recorded. Losses and
standard output are compared to the bit, exit status by rank. A row is of the last time
that its fault was run.

| fault | exit status | losses | stdout | ended | last whole step |
|---|---|---|---|---|---|
"""


@pytest.fixture(scope="session", autouse=True)
def results() -> Iterator[None]:
    """Write the table when all have run."""
    yield
    if RESULTS:
        found = re.findall(r"^\| ([^|]+) \| \(.*$", TABLE.read_text(), re.MULTILINE)
        lines = TABLE.read_text().splitlines()
        rows = {name: next(r for r in lines if f"| {name} |" in r) for name in found}
        TABLE.write_text(HEAD + "\n".join({**rows, **RESULTS}.values()) + "\n")


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Ranks are forked of a process that has imported torch: minutes less."""
    with warm_starts():
        yield
