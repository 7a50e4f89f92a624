"""Findings as SARIF: one result each, at a line of the script."""

from __future__ import annotations

import json

from fsdpdoctor.finding import Severity
from fsdpdoctor.renderers.sarif import findings_as_sarif, render
from fsdpdoctor.storage.json_value import replace
from tests.renderers.test_renderers import HOSTILE, finding, report_with


def test_a_finding_is_a_result_at_the_line() -> None:
    """Level, rule, words and place; advice in words, without its code."""
    report = report_with(findings=(finding(),))
    (run,) = json.loads(findings_as_sarif(report.findings, "a/train.py", 7))["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    assert (rule["id"], rule["name"]) == ("FD101", "exposed-all-gather")
    (result,) = run["results"]
    assert result["level"] == "error"
    assert result["ruleId"] == "FD101"
    assert result["message"] == {"text": "it waits\nprefetch."}
    (place,) = result["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "a/train.py"},
        "region": {"startLine": 7},
    }


def test_levels_are_sarifs_own() -> None:
    """Critical is an error, a warning a warning, information a note."""
    found = [replace(finding(), severity=severity) for severity in Severity]
    whole = json.loads(render(report_with(findings=tuple(found))))
    levels = {result["level"] for result in whole["runs"][0]["results"]}
    assert whole["version"] == "2.1.0"
    assert levels == {"error", "warning", "note"}


def test_names_of_anyones_are_text() -> None:
    """What a terminal obeys is written as its escape, and all of it reads back."""
    found = tuple(finding(name, summary=name) for name in HOSTILE)
    text = render(report_with(findings=found))
    assert "\x1b" not in text
    results = json.loads(text)["runs"][0]["results"]
    assert len(results) == len(HOSTILE)
