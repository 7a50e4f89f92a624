"""What a file that breaks off still holds whole, wherever and however it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.importers import import_run
from fsdpdoctor.quantities import MS
from tests.importers.drawn_trace import DrawnTrace
from tests.importers.test_misread import drawn, other_ns, warned


def cut(folder: Path, trace: DrawnTrace, text: str, after: int) -> Measures:
    """The trace up to the `after`th time that some text stands in it, and no more."""
    whole = trace.text()
    at = -1
    for _ in range(after):
        at = whole.index(text, at + 1)
    (folder / "rank0.json").write_text(whole[:at])
    return measure(import_run([folder]))


def judged(m: Measures) -> list[int]:
    """The steps whose figures count."""
    found: list[int] = m.ranks[0].judged_steps.tolist()
    return found


def test_a_file_in_order_of_time_ends_inside_a_step(tmp_path: Path) -> None:
    """No launch lacks its work: the cut step made none of its later ones."""
    m = cut(tmp_path, drawn(), "c10d::allreduce_", 3)

    assert judged(m) == [3, 4]
    assert other_ns(m) == 2 * MS
    assert warned(m, "ends inside a step: 2 of 3 steps are whole and judged")


@pytest.mark.parametrize("marks", [2, 3])
def test_kernels_that_come_first_lengthen_no_step(tmp_path: Path, marks: int) -> None:
    """The work of steps that the file does not reach is no part of the last one."""
    trace = drawn()
    trace.events.sort(key=lambda event: event["cat"] != "kernel")
    m = cut(tmp_path, trace, '"c10d::allreduce_"', marks)

    assert judged(m) == [3, 4][: marks - 2]
    assert m.step_ns.tolist() == [10 * MS, 10 * MS][: marks - 2]


def test_a_file_may_break_off_between_two_events(tmp_path: Path) -> None:
    """Each event is whole, and the array is not closed."""
    trace = drawn()
    trace.events.sort(key=lambda event: event["cat"] == "kernel")
    whole = trace.text()
    (tmp_path / "rank0.json").write_text(whole[: whole.rindex(",\n{")])
    m = measure(import_run([tmp_path]))

    assert judged(m) == [3, 4, 5]
    assert warned(m, "the file breaks off at byte")


def test_an_array_of_events_alone_need_not_be_closed(tmp_path: Path) -> None:
    """The format says so: nothing is missing."""
    text = drawn().text()
    events = text[text.index("[") : text.rindex("]")].rstrip()
    (tmp_path / "rank0.json").write_text(events)
    m = measure(import_run([tmp_path]))

    assert judged(m) == [3, 4, 5, 6]
    assert not warned(m, "breaks off")


def test_a_cut_before_the_first_mark_has_no_figures(tmp_path: Path) -> None:
    """Nor is the capture as a whole judged: what is missing of it is not known."""
    trace = drawn()
    trace.events.sort(key=lambda event: event["cat"] != "kernel")
    m = cut(tmp_path, trace, "ProfilerStep", 1)

    assert judged(m) == []
    assert m.overlap_share("all") is None
