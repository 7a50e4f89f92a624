"""What of a report needs no timing: the judgement before any device is paid for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fsdpdoctor.changes.fsdp1_migration import Migration
from fsdpdoctor.report.costs import SEVERITY
from fsdpdoctor.report.value import FindingRow, Report
from fsdpdoctor.storage.json_text import json_text
from fsdpdoctor.storage.json_value import replace

CODES: Final = ("FD105", "FD2", "FD30", "FD5")
"""Codes, or how they begin, that settings, counts and bytes decide."""

CHECK_VERSION: Final = 1
"""Of the JSON."""

ENDED: Final = "FD408"
"""Said where the script itself ended in an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A script's sharding, judged from its first steps on a modelled device."""

    schema_version: int = CHECK_VERSION
    script: str
    report: Report | None  # findings of CODES alone; None: nothing was recorded
    memory: str | None  # whether it fits, in words
    ended: str | None  # why the script did not come to its steps
    migration: Migration | None  # of a script of FSDP1
    seconds: float

    @property
    def findings(self) -> tuple[FindingRow, ...]:
        """What was found, worst first."""
        return () if self.report is None else self.report.findings


def untimed(report: Report) -> Report:
    """The report without what time decides."""
    kept = tuple(one for one in report.findings if _is_untimed(one))
    return replace(
        report,
        # What a modelled device takes is no cost that was measured.
        findings=tuple(
            replace(one, cost_ns_per_step=None, part_of=None)
            for one in sorted(kept, key=lambda one: -SEVERITY[one.severity])
        ),
        not_judged=tuple(
            one for one in report.not_judged if one.code.startswith(CODES)
        ),
    )


def _is_untimed(one: FindingRow) -> bool:
    of_script = one.code == ENDED and one.severity == "critical"
    # What one hardware queue will do is read from the environment.
    predicted = one.code == "FD106" and one.cost_ns_per_step is None
    return of_script or predicted or one.code.startswith(CODES)


def encode_check(check: Check) -> str:
    """The check as JSON text."""
    return json_text(check)
