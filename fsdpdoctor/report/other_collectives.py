"""The report's rows of collectives that are not FSDP2's, and of the script's lines."""

from __future__ import annotations

from fsdpdoctor.analysis.call_sites import CalledFrom, Calls, calls, gap_lines
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.report.value import InName, OtherCollectiveRow, ScriptRow
from fsdpdoctor.schema import Evidence, Within

_IN: dict[Within, InName] = {
    Within.SCRIPT: "script",
    Within.UNIT: "unit",
    Within.OPTIMIZER: "optimizer",
    Within.CLIP: "clip",
    Within.LOADER: "loader",
    Within.CHECKPOINT: "script",
}


def other_collective_rows(m: Measures) -> tuple[OtherCollectiveRow, ...]:
    """Every call site, kind and group, the costliest first."""
    steps = len(m.step_ns)
    if not steps:
        return ()
    rows = [_row(m, of, found, steps) for of, found in calls(m).items()]
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                -(row.exposed_ns_per_step or 0),
                -row.ns_per_step,
                row.where or "",
                row.kind,
            ),
        )
    )


def _row(m: Measures, of: CalledFrom, found: Calls, steps: int) -> OtherCollectiveRow:
    return OtherCollectiveRow(
        where=of.where,
        kind=of.kind,
        group=of.group,
        count_per_step=found.count / steps,
        bytes=round(found.bytes / found.sized) if found.sized else None,
        phase=of.phase.name.lower(),
        in_=_IN[of.within],
        ns_per_step=round(found.ns / steps),
        exposed_ns_per_step=round(found.exposed_ns / steps) if m.stalls_known else None,
        called=of.via,
        ranks=found.ranks,
    )


def script_rows(m: Measures) -> tuple[ScriptRow, ...]:
    """Where the budget's `script` goes, by line."""
    steps = len(m.step_ns)
    return tuple(
        ScriptRow(
            where=line.where,
            until=line.until,
            activity=line.activity.name.lower(),
            ns_per_step=round(ns / steps),
        )
        for line, ns in gap_lines(m).items()
        if round(ns / steps)
    )


def unexplained_ns(m: Measures) -> int | None:
    """What of the mean step nothing says anything of; None: no whole step."""
    known = Evidence.STEPS in m.evidence
    return m.budget_ns_per_step().get("other") if known else None
