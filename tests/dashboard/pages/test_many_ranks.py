"""Pages of more ranks than a screen has room for: those that stand out, and how many
there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.pages import overview, ranks
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.pictures import figures
from fsdpdoctor_dashboard.server import first_paint


@pytest.fixture(scope="module")
def run(runs: dict[str, Path]) -> OpenRun:
    """Of 64 ranks."""
    return Library([runs["wide"]], open_run).wait("wide")


def said(page: Any) -> str:
    """A page as text."""
    return str(page)


def test_the_slowest_ranks_have_bars(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them up to a number, and of more it is said how many there are."""
    context = Context(base="/", theme="light", runs=(run,))
    budgets = run.sketches.budgets
    assert overview.folded(budgets) == [*range(64)]
    assert "All 64 ranks" in said(overview.page(context))
    monkeypatch.setattr(overview, "MOST_BARS", 63)
    monkeypatch.setattr(overview, "SHOWN_BARS", 5)
    slowest = sorted(budgets, key=lambda r: (-sum(budgets[r].values()), r))[:5]

    assert overview.folded(budgets) == sorted(slowest)
    page = said(overview.page(context))
    assert "The 5 slowest of 64 ranks" in page
    assert "All 64 ranks" not in page


def test_the_table_has_those_that_others_wait_for_most(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of ranks."""
    rows = run.report.ranks
    assert ranks.shown_rows(rows) is rows
    monkeypatch.setattr(ranks, "MOST_ROWS", 63)
    monkeypatch.setattr(ranks, "SHOWN_ROWS", 4)
    monkeypatch.setattr(figures, "MOST_BARS", 63)
    monkeypatch.setattr(figures, "SHOWN_BARS", 6)
    monkeypatch.setattr(figures, "MOST_COLUMNS", 32)
    caused = sorted(rows, key=lambda r: (-(r.wait_caused_ns_per_step or 0), r.rank))

    expected = sorted(row.rank for row in caused[:4])
    assert [row.rank for row in ranks.shown_rows(rows)] == expected
    page = said(ranks.page(Context(base="/", theme="light", runs=(run,))))
    assert "4 of 64 ranks: those that others wait for most" in page
    assert "A column is 2 ranks, of which it shows the one that is furthest off" in page
    assert "The 6 of 64 ranks that others wait for most" in page


def test_the_first_picture_has_the_ranks_of_a_screen(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are asked for when somebody scrolls to them."""
    assert first_paint.first_ranks(run.store) == run.store.ranks
    monkeypatch.setattr(first_paint, "FIRST_LINES", 20)
    assert first_paint.first_ranks(run.store) == tuple(range(20))
