"""Two runs: a waterfall between two mean steps, findings gone and new."""

from __future__ import annotations

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.quantities import MS
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.pages.comparison import (
    changed_parts,
    differences,
    signed_ms,
    waterfall,
)
from tests.rig.changed import replace


def test_parts_add_up_from_one_step_to_the_other(library: Library) -> None:
    """8 ms less of gathers and 1 ms more of forward; what is tiny is one rest."""
    report = library.wait("before").report
    before = replace(
        report,
        budget_ns_per_step={
            "exposed_all_gather": 10 * MS,
            "forward": 20 * MS,
            "gc": 1000,
        },
    )
    after = replace(
        report,
        budget_ns_per_step={"exposed_all_gather": 2 * MS, "forward": 21 * MS},
    )

    assert changed_parts(before, after) == [
        ("exposed_all_gather", -8 * MS),
        ("forward", 1 * MS),
    ]
    (shown,) = waterfall(before, after)
    text = str(shown)
    assert text.index("mean step before") < text.index("-8.00 ms")
    assert text.index("+1.00 ms") < text.index("all smaller changes")
    assert "mean step after: 23.0 ms" in text


def test_findings_that_went_and_came_are_said(library: Library) -> None:
    """By code: the first run has one that the second has not."""
    run = library.wait("before")
    row = run.report.findings[0]
    without = replace(
        run,
        report=replace(
            run.report,
            findings=tuple(f for f in run.report.findings if f.code != row.code),
        ),
    )
    gone = str(list(differences(run, without)))
    new = str(list(differences(without, run)))

    assert "Gone: " in gone
    assert "New: " in new
    assert row.code in gone
    assert row.code in new


def test_a_change_has_its_sign() -> None:
    """Nothing is neither more nor less."""
    assert [signed_ms(ns) for ns in (MS, -MS, 0)] == ["+1.00 ms", "-1.00 ms", "0 ms"]
