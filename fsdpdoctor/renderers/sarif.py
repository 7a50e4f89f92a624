"""Findings as SARIF 2.1.0, which editors and code review show at a line.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from fsdpdoctor.renderers.formatting import visible_lines
from fsdpdoctor.report.value import FindingRow, Report
from fsdpdoctor.version import __version__

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS: Final = {"critical": "error", "warning": "warning", "info": "note"}


def render(report: Report) -> str:
    """A report's findings, at the first line of the script that was run."""
    command = report.run.command
    return findings_as_sarif(report.findings, command[0] if command else None, 1)


def findings_as_sarif(
    findings: Sequence[FindingRow], script: str | None, line: int
) -> str:
    """One result each. `line` counts from 1: where the script shards its model."""
    rules = {one.code: one.name for one in findings}
    tool = {
        "name": "fsdpdoctor",
        "version": __version__,
        "rules": [
            {"id": code, "name": name, "shortDescription": {"text": name}}
            for code, name in sorted(rules.items())
        ],
    }
    results = [_result(one, script, line) for one in findings]
    run = {"tool": {"driver": tool}, "results": results}
    whole = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(whole, indent=1) + "\n"


def _result(one: FindingRow, script: str | None, line: int) -> dict[str, object]:
    """A finding with its advice in words: code is for the other formats."""
    words = [one.summary, *(advice.text for advice in one.advice)]
    result: dict[str, object] = {
        "ruleId": one.code,
        "level": LEVELS[one.severity],
        "message": {"text": visible_lines("\n".join(words))},
        "properties": {"units": list(one.units), "confidence": one.confidence},
    }
    if script is not None:
        place = {"uri": script.replace("\\", "/")}
        region = {"startLine": line}
        result["locations"] = [
            {"physicalLocation": {"artifactLocation": place, "region": region}}
        ]
    return result
