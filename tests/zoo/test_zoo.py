"""Every entry of the zoo: its fault is found, and its twin is quiet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.zoo import page
from tests.zoo.catalogue import ENTRIES, ROWS, UNTOLD, reports
from tests.zoo.entry import Entry, false_alarms, in_words, missed, wrong_proofs

STILL_TO_COME: dict[str, str] = {
    "C08": "the head is a tree of its own, and has no name",
    "I01": "a cast of the layer's own is not seen: information only",
    "L08": "reads that take the host's lead away are not seen",
    "Q01": "layers that are compiled after they were sharded are not seen",
}
"""What is not answered rightly yet, and what is said in its place."""


def parameters() -> Sequence[object]:
    """All entries; those of the slow group, and those still to come, are marked."""
    result = []
    for entry in ENTRIES:
        marks = [] if entry.fast else [pytest.mark.slow]
        if entry.told == "ranks":
            marks.append(pytest.mark.ranks)
        if entry.number in STILL_TO_COME:
            reason = STILL_TO_COME[entry.number]
            marks.append(pytest.mark.xfail(reason=reason, strict=False))
        result.append(pytest.param(entry, id=entry.number, marks=marks))
    return result


@pytest.mark.parametrize("entry", parameters())
def test_the_fault_is_found_and_its_twin_is_quiet(entry: Entry, tmp_path: Path) -> None:
    """The code of what its author found, at its units; nothing of the cured job."""
    report = entry.fault.report(tmp_path / "fault")
    assert missed(entry, report) is None, in_words(report)
    wrong = [row.summary for row in wrong_proofs(entry, report)]
    assert wrong == []
    if entry.cure is not None:
        cured = entry.cure.report(tmp_path / "cure")
        assert [row.summary for row in false_alarms(entry, cured)] == []


def test_each_report_has_a_row() -> None:
    """Told, or not told with the reason; none twice, none that the catalogue lacks."""
    assert [row.number for row in ROWS] == sorted(reports())


def test_what_cannot_be_told_says_why() -> None:
    """A reason, and not a word."""
    assert [row.number for row in UNTOLD if len(row.why.split()) < 5] == []


MOST_LEFT_OUT = 55
"""Of 175 reports: what no CPU, rehearsal or drawing can show."""


def test_most_reports_are_told() -> None:
    """All but those of other vendors, of settings that leave no trace, and the like."""
    assert len(UNTOLD) <= MOST_LEFT_OUT


def test_a_job_with_a_fault_has_a_twin() -> None:
    """Only a report of a job that is well needs none."""
    without = [entry.number for entry in ENTRIES if entry.cure is None and entry.codes]
    assert without == []


def test_the_page_is_not_stale() -> None:
    """Make it anew with `python -m tests.zoo.page > tests/zoo/README.md`."""
    assert page.README.read_text(encoding="utf-8") == page.page()
