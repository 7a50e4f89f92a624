"""An entry of the zoo: a public report, a job that has its fault, and its twin.

What is expected is what the report's author found to be the cause. It was written
down before the job was run, and does not follow what the tool says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from fsdpdoctor.finding import Severity
from fsdpdoctor.report.value import FindingRow, Report


class Situation(Protocol):
    """A job that can be told, healthy or not."""

    told: ClassVar[str]  # "rehearsal", "drawn", "ranks"

    def report(self, folder: Path) -> Report:
        """What the tool says of it. It may leave files in the folder."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A report that can be told."""

    number: str  # of the catalogue in docs/detectors.md
    why: str  # what its author found
    fault: Situation
    cure: Situation | None = None  # the same with the report's cure; None: it is well
    codes: tuple[
        str, ...
    ] = ()  # any of them; none: the report is of a job that is well
    units: tuple[str, ...] = ()  # of these the finding has to speak
    ranks: tuple[int, ...] = ()
    least: Severity = Severity.WARNING
    # What is said at warning or above, and is true of the twin all the same.
    still: Mapping[str, str] = field(default_factory=dict)
    fast: bool = False  # runs in the default suite

    def __str__(self) -> str:
        return self.number

    @property
    def told(self) -> str:
        """How it is told."""
        return self.fault.told


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """A report that cannot be told here, and why."""

    number: str
    why: str


PROOF = ("FD406", "FD408", "FD501", "FD504", "FD506", "FD507", "FD508")
"""What says that a job is wrong, and not only slow: never to be said by mistake."""


def severity(row: FindingRow) -> Severity:
    """A finding's, in order."""
    return Severity[row.severity.upper()]


def alarms(report: Report) -> list[FindingRow]:
    """What a reader is asked to look at."""
    return [row for row in report.findings if severity(row) >= Severity.WARNING]


def missed(entry: Entry, report: Report) -> str | None:
    """What is not said of the fault, if anything."""
    if not entry.codes:
        return None
    rows = [
        row
        for row in report.findings
        if row.code in entry.codes and severity(row) >= entry.least
    ]
    if not rows:
        return f"no {' or '.join(entry.codes)}"
    units = {unit for row in rows for unit in row.units}
    if absent := [unit for unit in entry.units if unit not in units]:
        return f"{', '.join(absent)} not among its units"
    ranks = {rank for row in rows for rank in row.ranks}
    if entry.ranks and (absent_ranks := [r for r in entry.ranks if r not in ranks]):
        return f"ranks {absent_ranks} not among its ranks"
    return None


def false_alarms(entry: Entry, report: Report) -> list[FindingRow]:
    """What is said of the twin and is not so: the fault, or any other alarm."""
    return [row for row in alarms(report) if row.code not in entry.still]


def wrong_proofs(entry: Entry, report: Report) -> list[FindingRow]:
    """What is said of the fault, calls the job wrong, and is not what it has."""
    wrong = set(PROOF) - set(entry.codes) - set(entry.still)
    if not entry.codes:
        return false_alarms(entry, report)
    return [row for row in alarms(report) if row.code in wrong]


def in_words(report: Report) -> str:
    """All that is said, in a line."""
    said = [
        f"{row.code}{'' if severity(row) else ' (info)'}" for row in report.findings
    ]
    return ", ".join(dict.fromkeys(said)) or "nothing"
