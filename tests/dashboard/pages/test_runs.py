"""Runs: a row each, whatever is known of it, and where they lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from dash import dcc, html

from fsdpdoctor.quantities import MS
from fsdpdoctor_dashboard.data.run_registry import Entry
from fsdpdoctor_dashboard.data.run_summaries import RunSummary
from fsdpdoctor_dashboard.pages.runs import in_order, page
from tests.dashboard.client import Client

ENTRIES = [Entry(id=name, path=Path(name)) for name in ("a", "b", "c", "d")]
KNOWN = {
    "a": RunSummary(
        verdict="Compute waits",
        started_unix_ns=1_700_000_000 * 10**9,
        world_size=8,
        step_ns=120 * MS,
        exposed_share=0.25,
        steps=(120 * MS, 118 * MS, 300 * MS),
    ),
    "b": RunSummary(error="b is damaged"),
    "c": RunSummary(verdict="Fine", started_unix_ns=1_800_000_000 * 10**9),
}


def attributes(part: Any, kind: type, name: str) -> list[str]:
    """Of all components of a kind."""
    return [getattr(p, name) for p in part._traverse() if isinstance(p, kind)]


def test_a_row_says_what_is_known() -> None:
    """Figures where there are some, the error of what cannot be read, and that the
    others are being read.
    """
    found = page("/", ENTRIES, KNOWN)
    text = str(found)
    rows = found.children[3].children.children[1].children

    assert "4 runs, 1 being read" in text
    assert ["120 ms" in str(row) and "25.0 %" in str(row) for row in rows] == [
        True,
        False,
        False,
        False,
    ]
    assert "b is damaged" in str(rows[1])
    assert "being read" in str(rows[3])
    assert attributes(rows[0], html.Img, "alt") == [
        "3 judged steps, from 118 ms to 300 ms"
    ]
    links = attributes(found, dcc.Link, "href")
    assert links == ["/?run=a", "/?run=b", "/?run=c", "/?run=d"]


def test_the_newest_comes_first() -> None:
    """Those without a date after them, by their names."""
    assert [entry.id for entry in in_order(ENTRIES, KNOWN)] == ["c", "a", "b", "d"]


def test_what_was_not_measured_is_saved_as_nothing() -> None:
    """The head of each figure has a unit, and a cell without one no value."""
    found = page("/", ENTRIES, KNOWN)
    heads = attributes(found, html.Th, "data-saved")
    values = [
        getattr(cell, "data-value", None)
        for cell in found.children[3].children.children[1].children[2].children
    ]

    assert heads[3:5] == ["median step [ns]", "exposed share [share]"]
    assert values[3:5] == ["", ""]


def test_several_runs_open_on_their_table(admitted: Client) -> None:
    """Without a run in the address there is the table, and no run's pages beside it."""
    shown = admitted.ask("page.children", url_pathname="/", url_search="")
    header = admitted.ask("nav.children", url_pathname="/", url_search="")
    one = admitted.ask("nav.children", url_pathname="/", url_search="?run=before")

    assert "Runs" in str(shown["response"]["page"]["children"])
    titles = [
        link["props"]["children"] for link in header["response"]["nav"]["children"]
    ]
    assert titles == ["Runs"]
    assert len(one["response"]["nav"]["children"]) == 9
