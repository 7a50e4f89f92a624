"""Explain: every finding has its page, every word of a table its meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")


from fsdpdoctor.detectors import ALL
from fsdpdoctor.renderers.reading.glossary import TERMS, term_of
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.pages.components import Context, with_codes
from fsdpdoctor_dashboard.pages.explain import page
from tests.dashboard.said import opened, pages_of, said, words_of

TRACES = Path(__file__).parents[3] / "traces"

PLAIN = {
    *("host", "rank", "ran in", "called at", "mean size", "time per step"),
    *("gathers in forward", "gathers in backward", "forward compute", "group", "kind"),
    *("backward compute", "bytes gathered", "bytes reduced", "peak memory", "size"),
    *("count", "count per step", "median time", "p99", "longest", "forward"),
    *("backward", "what it does more of than the others do on average"),
}
"""Heads in plain words: all others are terms."""


@pytest.fixture
def context(library: Library) -> Context:
    """Of a run, at a code's page."""
    run = library.wait("before")
    return Context(base="/", theme="light", runs=(run,), query={"code": "FD401"})


def test_a_code_has_the_page_that_the_command_prints(context: Context) -> None:
    """All of its words, the marks of emphasis and code apart."""
    detector = next(each for each in ALL if each.code == "FD401")
    words = [one.words for one in said("explain", page(context))]
    marks = str.maketrans("", "", "*`")
    expected = [" ".join(p.split()) for p in detector.page.strip().split("\n\n")]

    assert words[0] == "FD401 straggler-rank"
    assert [w.translate(marks) for w in words[1:-1]] == [
        w.translate(marks) for w in expected
    ]


def test_without_a_code_all_are_there(context: Context) -> None:
    """Each finding and each term."""
    bare = Context(base="/", theme="light", runs=context.runs)
    text = " ".join(one.words for one in said("explain", page(bare)))

    assert [each.code for each in ALL if f"{each.code} {each.name}" not in text] == []
    assert [term.name for term in TERMS if term.meaning not in text] == []


def test_codes_in_words_lead_to_their_pages(context: Context) -> None:
    """Each of them, and the words stay as they are."""
    parts: list[Any] = with_codes(context, "see FD401, or FD104.")

    assert [part.href for part in parts if not isinstance(part, str)] == [
        "/explain?run=before&code=FD401",
        "/explain?run=before&code=FD104",
    ]
    assert words_of(parts) == "see FD401, or FD104."


@pytest.mark.parametrize("case", ["slow-rank", "optimizer-gathers", "device-healthy"])
def test_heads_of_tables_are_terms_or_plain(case: str) -> None:
    """A new column has a meaning in the glossary, or is named here as plain."""
    heads = {one.column for one in pages_of(opened(TRACES / case)) if one.table}
    assert {head for head in heads if term_of(head) is None} - PLAIN == set()
