"""The figures of a step that trackers chart, by name; milliseconds and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fsdpdoctor.quantities import MS
from fsdpdoctor.report.step_rows import StepRow
from fsdpdoctor.report.value import Report
from fsdpdoctor.storage.json_value import asdict


def scalars_of(row: StepRow) -> dict[str, float]:
    """Of one step of one rank; what its source cannot know is left out."""
    times = {"step_ms": row.duration_ns, "exposed_ms": row.exposed_ns}
    for kind, ns in asdict(row.exposed_ns_by_kind).items():
        times[f"exposed_by_kind/{kind}_ms"] = ns
    if row.exposed_ns_by_cause is not None:
        for cause, ns in asdict(row.exposed_ns_by_cause).items():
            times[f"exposed_by_cause/{cause}_ms"] = ns
    found = {name: ns / MS for name, ns in times.items() if ns is not None}
    sizes = {
        "peak_allocated_bytes": row.peak_allocated_bytes,
        "peak_reserved_bytes": row.peak_reserved_bytes,
        "rss_bytes": row.rss_bytes,
    }
    return found | {n: float(size) for n, size in sizes.items() if size is not None}


def by_step(rows: Iterable[StepRow]) -> dict[int, dict[str, float]]:
    """Of all ranks together: the mean of times, and the most that one rank held.

    A figure that one of a step's ranks lacks is left out of that step.
    """
    of_steps: dict[int, list[dict[str, float]]] = {}
    for row in rows:
        of_steps.setdefault(row.step, []).append(scalars_of(row))
    return {step: _together(ranks) for step, ranks in sorted(of_steps.items())}


def _together(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in ranks[0] if all(name in rank for rank in ranks)]
    return {
        name: max(rank[name] for rank in ranks)
        if name.endswith("_bytes")
        else sum(rank[name] for rank in ranks) / len(ranks)
        for name in names
    }


def summary_of(report: Report) -> dict[str, float]:
    """Of the whole run: what two runs are compared by."""
    times = {
        "median_step_ms": report.step_time_ns.median,
        "p95_step_ms": report.step_time_ns.p95,
        "exposed_ms_per_step": report.exposed_ns_per_step.total,
    }
    found = {name: ns / MS for name, ns in times.items() if ns is not None}
    if report.overlap_share.all is not None:
        found["overlap_share"] = report.overlap_share.all
    for severity in ("critical", "warning", "info"):
        count = sum(one.severity == severity for one in report.findings)
        found[f"findings_{severity}"] = float(count)
    return found
