"""Comparison: what differs between two runs, beyond what their steps' noise explains.

Settings come first: two runs that were not set up alike are compared in vain. Then
figures, each with the noise that it had to exceed. Counts and bytes are exact, and
any difference of theirs counts. A longer or shorter step is credited to a setting only
where one alone was changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import MIN_JUDGED_STEPS
from fsdpdoctor.quantities import percent
from fsdpdoctor.report.comparison.difference import Difference
from fsdpdoctor.report.comparison.settings import (
    changed_settings,
    exact_differences,
    set_up_differently,
    unit_rows,
)
from fsdpdoctor.report.comparison.times import time_differences
from fsdpdoctor.report.value import FindingRow, Report
from fsdpdoctor.storage.json_text import json_text

COMPARISON_VERSION = 1
"""Of the JSON."""

MIN_SHARE_OF_STEP = 0.005
"""A figure that moved by less than this share of the step is not worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFinding:
    """A finding that one of the runs has, and the other has not."""

    code: str
    name: str
    summary: str
    cost_ns_per_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs from run A to run B: settings, then figures, largest first."""

    schema_version: int = COMPARISON_VERSION
    a: str
    b: str
    step_time_ns: tuple[int | None, int | None]  # medians
    regression_share: float | None  # of A's median step; 0.0: none beyond noise
    conclusion: str  # what may be said of the step, in one sentence
    changed: tuple[str, ...]  # settings, each once; what follows from one is left out
    findings_gone: tuple[ComparedFinding, ...]
    findings_new: tuple[ComparedFinding, ...]
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...]  # what one of the runs cannot tell, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One side of a comparison."""

    name: str
    measures: Measures
    report: Report


def compare(a: Subject, b: Subject, *, spread_ns: int = 0) -> Comparison:
    """Settings that differ, then figures that differ beyond noise.

    Args:
        a: The run before.
        b: The run after.
        spread_ns: What repeated runs of A differ by in their median step: a longer
            step has to exceed it, too.
    """
    step = a.measures.median_step_ns, b.measures.median_step_ns
    longest = max((s for s in step if s is not None), default=0)
    times = sorted(
        (
            found
            for found in time_differences(
                a.measures, b.measures, longest * MIN_SHARE_OF_STEP
            )
            if found.figure != "step_time_ns"
            or abs(found.change or 0) > (found.noise or 0) + spread_ns
        ),
        key=lambda d: -abs(d.change or 0),
    )
    not_compared = tuple(_not_compared(a, b))
    changed = changed_settings(a.report, b.report)
    regression = _regression(times, step, not_compared)
    gone, new = _findings(a.report, b.report), _findings(b.report, a.report)
    differences = (
        *set_up_differently(a.report, b.report),
        *exact_differences(a.report, b.report),
        *times,
    )
    said = _conclusion(regression, changed, times)
    return Comparison(
        a=a.name,
        b=b.name,
        step_time_ns=step,
        regression_share=regression,
        conclusion=said if differences or step[0] != step[1] else "Nothing differs",
        changed=changed,
        findings_gone=gone,
        findings_new=new,
        differences=differences,
        not_compared=not_compared,
    )


def encode_comparisons(comparisons: tuple[Comparison, ...]) -> str:
    """One as itself; several, each with the first run, as a list of them."""
    if len(comparisons) == 1:
        return json_text(comparisons[0])
    return json_text(
        {"schema_version": COMPARISON_VERSION, "comparisons": list(comparisons)}
    )


def _not_compared(a: Subject, b: Subject) -> Iterator[str]:
    for side in (a, b):
        steps = len(side.report.health.judged_steps)
        if steps < MIN_JUDGED_STEPS:
            yield (
                f"times: {side.name} has {steps} steps to judge, "
                f"fewer than {MIN_JUDGED_STEPS} have no noise to tell"
            )
    known_a, known_b = unit_rows(a.report), unit_rows(b.report)
    if known_a and known_b and not known_a.keys() & known_b.keys():
        yield "units: the runs have no unit of the same name"


def _regression(
    times: list[Difference],
    step: tuple[int | None, int | None],
    not_compared: tuple[str, ...],
) -> float | None:
    """Of the median step: B's more, of A's; zero where that is within noise."""
    before, after = step
    if any(line.startswith("times:") for line in not_compared):
        return None
    if after is None or not before:
        return None
    for found in times:
        if found.figure == "step_time_ns" and found.rank is None:
            return (found.change or 0) / before
    return 0.0


def _conclusion(
    regression: float | None, changed: tuple[str, ...], times: list[Difference]
) -> str:
    if regression is None:
        return "The steps cannot be compared"
    if not regression:
        said = "No difference of the step beyond noise"
    else:
        word = "slower" if regression > 0 else "faster"
        said = f"The step is {percent(abs(regression))} {word}"
    if len(changed) > 1:
        return (
            f"{said}; {len(changed)} settings were changed at once, so that none can "
            f"be credited with what differs: {', '.join(changed)}"
        )
    if changed:
        return f"{said}; one setting was changed: {changed[0]}"
    if not regression:
        return f"{said}; no setting was changed"
    return f"{said}, and no setting was changed{_where(times)}"


def _where(times: list[Difference]) -> str:
    """The rank that a difference is of, where it is not of all alike."""
    own = next((t for t in times if t.rank is not None), None)
    if own is None:
        return ""
    return f": rank {own.rank} differs from the others, in {own.figure}"


def _findings(mine: Report, other: Report) -> tuple[ComparedFinding, ...]:
    """Those that the other run has not, whatever their figures. One is there where its
    code is, in the same phase and of the same model, where both say so.
    """
    ours, theirs = _models(mine), _models(other)
    there: dict[str, list[tuple[str | None, frozenset[str]]]] = defaultdict(list)
    for row in other.findings:
        there[row.code].append((row.phase, _of(row, theirs)))
    return tuple(
        _compared(row)
        for row in mine.findings
        if not any(
            None in (row.phase, phase) or row.phase == phase
            for phase, models in there[row.code]
            if not models or not (own := _of(row, ours)) or own & models
        )
    )


def _models(report: Report) -> dict[str, str]:
    """The name of each unit's model, where a run has several."""
    if len(report.models) < 2:
        return {}
    return {
        row.unit: report.models[row.model].name
        for row in report.units
        if row.model < len(report.models)
    }


def _of(row: FindingRow, models: dict[str, str]) -> frozenset[str]:
    return frozenset(models[unit] for unit in row.units if unit in models)


def _compared(row: FindingRow) -> ComparedFinding:
    return ComparedFinding(
        code=row.code,
        name=row.name,
        summary=row.summary,
        cost_ns_per_step=row.cost_ns_per_step,
    )
