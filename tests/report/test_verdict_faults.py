"""Which findings are faults, and are said before all that costs time."""

from __future__ import annotations

from fsdpdoctor.quantities import MS
from fsdpdoctor.report.verdict import with_verdict
from fsdpdoctor.storage.json_value import replace
from tests.report.test_verdict import LATE, report, row


def test_gradients_that_are_left_over_are_a_fault_and_waits_for_them_are_none() -> None:
    """FD108 is critical for both, and only the first costs no time."""
    kinds = []
    for cost_ns in (None, 5 * MS):
        found = row("FD108", cost_ns, "critical")
        made = with_verdict(replace(report("slow-script"), findings=(LATE, found)))
        kinds.append((made.verdict.kind == "fault", made.findings[0].code))

    assert kinds == [(True, "FD108"), (False, "FD108")]


def test_long_steps_that_are_most_of_the_time_are_said_first() -> None:
    """No mean step has them; below half of the recorded time the mean step is said."""
    begins = []
    for share in (0.5, 0.49):
        aside = row(
            "FD902",
            evidence={"share_of_recorded_time": share},
            summary="2 long steps are slow",
        )
        made = with_verdict(replace(report("slow-script"), findings=(aside,)))
        begins.append(made.verdict.text.startswith("2 long steps are slow; beside "))

    assert begins == [True, False]
