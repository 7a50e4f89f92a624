"""Detectors: what can be wrong with a run, one file per code."""

from __future__ import annotations

from fsdpdoctor.detectors.base import Detector, judge
from fsdpdoctor.detectors.exposed_all_gather import exposed_all_gather
from fsdpdoctor.detectors.exposed_reduce_scatter import exposed_reduce_scatter
from fsdpdoctor.detectors.host_issue_bound import host_issue_bound
from fsdpdoctor.detectors.host_sync_point import host_sync_point
from fsdpdoctor.detectors.prefetch_misconfig import prefetch_misconfig
from fsdpdoctor.finding import Finding, NotJudged, Severity
from fsdpdoctor.measures import Measures

ALL: tuple[Detector, ...] = (
    exposed_all_gather,
    exposed_reduce_scatter,
    host_issue_bound,
    host_sync_point,
    prefetch_misconfig,
)
"""Every detector, in report order."""

LAST_RESORT = "FD900"
"""Says where the time goes instead, so it is asked only where nothing else matters."""


def judge_all(m: Measures) -> tuple[list[Finding], list[NotJudged]]:
    """All findings, the worst first, and the detectors that could not tell."""
    findings: list[Finding] = []
    not_judged: list[NotJudged] = []
    for detector in ALL:
        matters = any(f.severity >= Severity.WARNING for f in findings)
        if detector.code == LAST_RESORT and matters:
            continue
        answer = judge(detector, m)
        if isinstance(answer, NotJudged):
            not_judged.append(answer)
        else:
            findings += answer
    findings.sort(key=lambda f: (-f.severity, -(f.cost_ns_per_step or 0), f.code))
    return findings, not_judged
