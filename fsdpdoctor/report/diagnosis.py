"""diagnose(run): measures, findings and facts, put into one Report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fsdpdoctor.advice import recommend
from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.detectors import judge_all
from fsdpdoctor.finding import Finding, NotJudged
from fsdpdoctor.report.collectives_ranks import collective_rows, rank_rows
from fsdpdoctor.report.facts_health import health, recorder_cost, run_facts
from fsdpdoctor.report.memory import memory_row
from fsdpdoctor.report.models import model_rows, no_grad_rows
from fsdpdoctor.report.other_collectives import (
    other_collective_rows,
    script_rows,
    unexplained_ns,
)
from fsdpdoctor.report.start import start_row
from fsdpdoctor.report.units import by_cause, unit_rows
from fsdpdoctor.report.value import (
    CaptureOverlap,
    Exposed,
    FindingRow,
    OverlapShare,
    Report,
    SeverityName,
    StepTime,
)
from fsdpdoctor.report.verdict import with_verdict
from fsdpdoctor.run import Run
from fsdpdoctor.schema import COLLECTIVE_KINDS, Evidence, Kind, percentiles
from fsdpdoctor.storage.json_value import replace

if TYPE_CHECKING:
    from concurrent.futures import Executor

_SEVERITIES: tuple[SeverityName, ...] = ("info", "warning", "critical")


def diagnose(
    run: Run,
    executor: Executor | None = None,
    on_rank: Callable[[int], None] = lambda rank: None,
) -> Report:
    """Measure a run, judge it, and say all of it. Arguments as for `measure`."""
    return report_of(measure(run, executor, on_rank), run)


def report_of(m: Measures, run: Run | None = None) -> Report:
    """What is said of a measured run.

    What advice would give is predicted where the run itself is given: one rank's
    record is read once more for it.
    """
    findings, not_judged = judge_all(m)
    if run is None:
        return report_from(m, findings, not_judged)
    advised = recommend(run, m, findings)
    report = report_from(m, advised.findings, not_judged)
    trust = replace(
        report.health,
        replay_error=advised.replay_error,
        predictions_withheld=advised.withheld,
    )
    return replace(report, health=trust)


def report_from(
    m: Measures, findings: Sequence[Finding], not_judged: Sequence[NotJudged]
) -> Report:
    """The same, from findings that are already there."""
    return with_verdict(_unordered(m, findings, not_judged))


def _unordered(
    m: Measures, findings: Sequence[Finding], not_judged: Sequence[NotJudged]
) -> Report:
    return Report(
        run=run_facts(m),
        step_time_ns=_step_time(m),
        exposed_ns_per_step=_exposed(m),
        overlap_share=OverlapShare(
            all_gather=m.overlap_share("all_gather"),
            reduce_scatter=m.overlap_share("reduce_scatter"),
            all_reduce=m.overlap_share("all_reduce"),
            all=m.overlap_share("all"),
        ),
        capture=_capture(m),
        budget_ns_per_step=m.budget_ns_per_step(),
        models=model_rows(m),
        units=unit_rows(m),
        memory=memory_row(m),
        start=start_row(m),
        no_grad=no_grad_rows(m),
        unexplained_ns_per_step=unexplained_ns(m),
        collectives=collective_rows(m),
        other_collectives=other_collective_rows(m),
        script=script_rows(m),
        ranks=rank_rows(m),
        findings=tuple(_finding_row(finding) for finding in findings),
        not_judged=tuple(not_judged),
        health=health(m),
        recorder=recorder_cost(m),
    )


def _capture(m: Measures) -> CaptureOverlap | None:
    if Evidence.KERNELS not in m.evidence or not m.stalls_known:
        return None
    whole = m.overlap("all")
    return CaptureOverlap(
        communication_ns=whole.communication_ns,
        overlapped_ns=whole.overlapped_ns,
        exposed_ns=whole.exposed_ns,
    )


def _step_time(m: Measures) -> StepTime:
    if not len(m.step_ns):
        return StepTime(median=None, p95=None, mean=None)
    return StepTime(
        median=m.median_step_ns,
        p95=int(percentiles(m.step_ns, (95,))[0]),
        mean=int(m.step_ns.sum()) // len(m.step_ns),
    )


def _exposed(m: Measures) -> Exposed:
    """Every sum is over the same whole cells, so that they agree to the nanosecond."""
    cells = {
        kind: {cause: m.exposed_ns_per_step(kind, cause) for cause in CAUSES}
        for kind in COLLECTIVE_KINDS
    }
    by_kind = {kind: _sum(list(cells[kind].values())) for kind in COLLECTIVE_KINDS}
    return Exposed(
        total=_sum(list(by_kind.values())),
        all_gather=by_kind[Kind.ALL_GATHER],
        reduce_scatter=by_kind[Kind.REDUCE_SCATTER],
        all_reduce=by_kind[Kind.ALL_REDUCE],
        by_cause=by_cause(
            m.evidence,
            {c: _sum([cells[k][c] for k in COLLECTIVE_KINDS]) for c in CAUSES},
            told=m.late_ranks_told,
        ),
        by_kind_and_cause={
            kind.key: by_cause(m.evidence, cells[kind], told=m.late_ranks_told)
            for kind in COLLECTIVE_KINDS
        },
    )


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _finding_row(finding: Finding) -> FindingRow:
    return FindingRow(
        code=finding.code,
        name=finding.name,
        severity=_SEVERITIES[finding.severity],
        confidence=finding.confidence.value,
        units=finding.units,
        phase=finding.phase,
        ranks=finding.ranks,
        cost_ns_per_step=finding.cost_ns_per_step,
        cost_bytes=finding.cost_bytes,
        summary=finding.summary,
        evidence=dict(finding.evidence),
        advice=finding.advice,
        places=finding.places,
    )
