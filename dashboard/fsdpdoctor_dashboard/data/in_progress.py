"""Runs in progress: what is seen of their processes, and what is too early to say."""

from __future__ import annotations

import socket
from pathlib import Path

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.finding import NotJudged
from fsdpdoctor.report import Report
from fsdpdoctor.schema import RankHeader
from fsdpdoctor.storage.json_value import replace

TOO_EARLY = ("FD406", "spmd-divergence")
"""It names ranks without a record: in a run that goes on they may be about to begin.
What ranks say themselves of a hang (`cause` in its evidence) stays."""


def still_going(measures: Measures) -> bool:
    """Whether every rank of this host that has not ended is a process that lives.

    A rank that was killed has not said that it ended either. Of ranks on other hosts
    nothing is known: without one here the answer is no.
    """
    here = socket.gethostname()
    open_ranks = [
        rank.header
        for rank in measures.ranks
        if rank.header.ended == "running" and rank.header.host == here
    ]
    return bool(open_ranks) and all(_lives(header) for header in open_ranks)


def _lives(header: RankHeader) -> bool:
    try:
        stat = Path(f"/proc/{header.pid}/stat").read_text()
    except OSError:
        return False
    state = stat.rpartition(")")[2].split()[0]
    return state not in ("Z", "X")  # a zombie has ended


def report_so_far(report: Report) -> Report:
    """A report without what only the end of the run can show."""
    code, name = TOO_EARLY
    reason = "the run is still going: it is judged when all ranks have ended"
    return replace(
        report,
        findings=tuple(
            row
            for row in report.findings
            if row.code != code or "cause" in row.evidence
        ),
        not_judged=(
            *report.not_judged,
            NotJudged(code=code, name=name, needs=(), reason=reason),
        ),
        health=replace(report.health, stopped=(), truncated=(), missing_ranks=()),
    )
