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
