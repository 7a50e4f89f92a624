"""What of a report is said before anything is timed."""

from __future__ import annotations

import json

from fsdpdoctor.finding import Finding, Severity
from fsdpdoctor.report.check import Check, encode_check, untimed
from tests.renderers.test_renderers import finding, report_with
from tests.rig.changed import replace


def coded(code: str, severity: Severity) -> Finding:
    """A finding of a code."""
    return replace(finding(), code=code, severity=severity)


def test_what_time_decides_is_left_out() -> None:
    """Worst first, without costs in time: a modelled device's are no measurement."""
    report = report_with(
        findings=(
            coded("FD101", Severity.CRITICAL),
            coded("FD502", Severity.INFO),
            coded("FD201", Severity.CRITICAL),
            coded("FD301", Severity.WARNING),
            coded("FD105", Severity.WARNING),
            coded("FD408", Severity.WARNING),
            coded("FD404", Severity.CRITICAL),
        )
    )
    kept = untimed(report)
    assert [one.code for one in kept.findings] == ["FD201", "FD105", "FD301", "FD502"]
    assert {one.cost_ns_per_step for one in kept.findings} == {None}
    assert {one.cost_bytes for one in kept.findings} == {1 << 20}
    assert [one.code for one in kept.not_judged] == ["FD302"]


def test_what_one_hardware_queue_will_do_is_kept() -> None:
    """It is read from the environment; what collectives took in turns is timed."""
    predicted = replace(coded("FD106", Severity.INFO), cost_ns_per_step=None)
    report = report_with(findings=(predicted, coded("FD106", Severity.WARNING)))

    assert [one.severity for one in untimed(report).findings] == ["info"]


def test_an_exception_of_the_script_is_kept() -> None:
    """It is what has to be mended first."""
    report = report_with(findings=(coded("FD408", Severity.CRITICAL),))
    assert [one.code for one in untimed(report).findings] == ["FD408"]


def test_its_json_has_all_of_it() -> None:
    """The report's fields stand in it as in `analyze --json`."""
    report = untimed(report_with(findings=(coded("FD201", Severity.CRITICAL),)))
    check = Check(
        script="train.py",
        report=report,
        memory="fits: all of it",
        ended=None,
        migration=None,
        seconds=2.5,
    )
    told = json.loads(encode_check(check))
    assert told["schema_version"] == 1
    assert told["memory"] == "fits: all of it"
    assert told["report"]["findings"][0]["code"] == "FD201"
    assert check.findings == report.findings
    assert replace(check, report=None).findings == ()
