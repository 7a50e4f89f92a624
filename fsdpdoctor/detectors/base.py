"""Detector: one question asked of a measured run, with three answers.

Found, clear, cannot tell: `judge` gives findings, an empty list, or a `NotJudged`
that names the missing evidence. A detector's function never asks for its declared
needs itself; for finer reasons it raises `CannotTell`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.of_models import of_its_model
from fsdpdoctor.finding import Confidence, Finding, NotJudged, Severity
from fsdpdoctor.schema import Evidence
from fsdpdoctor.storage.json_value import replace

Find = Callable[[Measures], Iterator[Finding]]

STALLS_KNOWN = (Evidence.STALLS, Evidence.KERNELS)
"""Stalls are measured, or derived from kernels: either will do."""

WORDS: dict[Evidence, str] = {
    Evidence.UNITS: "FSDP units",
    Evidence.UNITS_BY_ORDER: "FSDP units, by size and order",
    Evidence.CONFIG: "the effective FSDP tree",
    Evidence.PREFETCH: "prefetch lists",
    Evidence.STEPS: "steps",
    Evidence.MICRO_BATCHES: "micro-batches",
    Evidence.STALLS: "waits of the compute lane",
    Evidence.COLLECTIVES: "start and end of collectives",
    Evidence.KERNELS: "compute kernels",
    Evidence.ISSUE_TIMES: "host issue times",
    Evidence.HOST: "FSDP2's hooks on the host",
    Evidence.SYNC_CALLS: "synchronising calls",
    Evidence.GC: "garbage collections",
    Evidence.INPUT: "data loader waits",
    Evidence.OPTIMIZER: "optimizer and clip spans",
    Evidence.OPTIMIZER_CONFIG: "the optimizers' parameters",
    Evidence.CHECKPOINT: "checkpoint saves and loads",
    Evidence.WINDOWS: "unshard windows",
    Evidence.ALLOCATOR: "device allocator statistics",
    Evidence.RANKS: "collectives matched over ranks",
    Evidence.OTHER_COLLECTIVES: "collectives outside FSDP2",
    Evidence.STACKS: "samples of the training thread's stack",
    Evidence.COMPILE: "graph breaks and recompiles",
    Evidence.REPLICAS: "samples of what ranks must hold alike",
}
"""What a reader is told was not recorded."""


class CannotTell(Exception):
    """Raised inside a detector that has its evidence but not enough of it."""

    def __init__(self, reason: str, *needs: Evidence) -> None:
        super().__init__(reason)
        self.reason = reason
        self.needs = needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """One code of the table of findings."""

    code: str  # "FD101"
    name: str  # "exposed-all-gather"
    needs: tuple[Evidence, ...]  # all of them
    needs_any: tuple[Evidence, ...]  # at least one of them, where there are any
    find: Find
    page: str  # what `fsdpdoctor explain` prints
    also: tuple[str, ...] = ()  # what some of its findings are called

    def missing(self, evidence: Collection[Evidence]) -> tuple[Evidence, ...]:
        """The needs that some evidence leaves open."""
        missing = tuple(need for need in self.needs if need not in evidence)
        if self.needs_any and not any(need in evidence for need in self.needs_any):
            missing += self.needs_any
        return missing


def detector(
    code: str,
    name: str,
    *,
    needs: Collection[Evidence] = (),
    needs_any: Collection[Evidence] = (),
    also: tuple[str, ...] = (),
) -> Callable[[Find], Detector]:
    """Make a detector of a generator function; its docstring is the user's page."""

    def make(find: Find) -> Detector:
        return Detector(
            code=code,
            name=name,
            needs=tuple(sorted(needs)),
            needs_any=tuple(sorted(needs_any)),
            find=find,
            page=inspect.getdoc(find) or "",
            also=also,
        )

    return make


def judge(detector: Detector, m: Measures) -> list[Finding] | NotJudged:
    """A detector's answer for a run."""
    if missing := detector.missing(m.evidence):
        words = ", ".join(WORDS[need] for need in missing)
        return NotJudged(
            code=detector.code,
            name=detector.name,
            needs=missing,
            reason=f"not measured: this run does not show {words}",
        )
    try:
        found = [_signed(finding, detector, m) for finding in detector.find(m)]
    except CannotTell as answer:
        return NotJudged(
            code=detector.code,
            name=detector.name,
            needs=answer.needs,
            reason=f"not measured: {answer.reason}",
        )
    if any(Evidence.UNITS_BY_ORDER in rank.evidence for rank in m.ranks):
        return [_less_sure(finding) for finding in found]
    return found


def _signed(finding: Finding, detector: Detector, m: Measures) -> Finding:
    """A finding with what its detector says once for all of its findings."""
    signed = replace(
        finding,
        code=detector.code,
        name=finding.name or detector.name,
        ranks=finding.ranks or m.rank_numbers,
    )
    return of_its_model(signed, m)


def _less_sure(finding: Finding) -> Finding:
    """A finding on units that no label named."""
    return replace(finding, confidence=Confidence.LOW) if finding.units else finding


def level(value: float, warning: float, critical: float | None = None) -> Severity:
    """How much a share matters, by a detector's own thresholds."""
    if critical is not None and value >= critical:
        return Severity.CRITICAL
    return Severity.WARNING if value >= warning else Severity.INFO
