"""What the detectors' tests ask of an answer."""

from __future__ import annotations

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import Detector, judge
from fsdpdoctor.finding import Finding, NotJudged
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind
from fsdpdoctor.testing import Drawing
from tests.rig.changed import replace

CUDA = Drawing(device="cuda", clock="cuda")
"""A drawing on a device that works beside its host."""


def found(detector: Detector, m: Measures) -> list[Finding]:
    """The findings of a run that can be judged; their code has to run."""
    answer = judge(detector, m)
    assert not isinstance(answer, NotJudged), answer.reason
    for finding in answer:
        for advice in finding.advice:
            if advice.code is not None:
                compile(advice.code, f"<advice of {finding.code}>", "exec")
        assert (finding.code, finding.name) == (detector.code, detector.name)
    return answer


def only(detector: Detector, m: Measures) -> Finding:
    """The one finding."""
    answer = found(detector, m)
    assert len(answer) == 1, [finding.summary for finding in answer]
    return answer[0]


def not_judged(detector: Detector, m: Measures) -> NotJudged:
    """The answer of a detector that could not tell."""
    answer = judge(detector, m)
    assert isinstance(answer, NotJudged), [finding.summary for finding in answer]
    return answer


def without(evidence: tuple[Evidence, ...], *absent: Evidence) -> tuple[Evidence, ...]:
    """Some evidence, less what a source cannot show."""
    return tuple(e for e in evidence if e not in absent)


def sized(rank: RankData, size: int) -> RankData:
    """The same with so many bytes in each collective of the script's."""
    steps = []
    for step in rank.steps:
        sizes = np.where(step.spans.kind == Kind.COLLECTIVE, size, step.spans.bytes)
        steps.append(replace(step, spans=replace(step.spans, bytes=sizes)))
    return replace(rank, steps=tuple(steps))


def unsized(rank: RankData) -> RankData:
    """The same with no byte told of any span, as in a trace without arguments."""
    steps = tuple(
        replace(
            step,
            spans=replace(step.spans, bytes=np.full_like(step.spans.bytes, UNKNOWN)),
        )
        for step in rank.steps
    )
    return replace(rank, steps=steps)


def codes(finding: Finding) -> list[str]:
    """The code of each advice that has one."""
    return [advice.code for advice in finding.advice if advice.code is not None]
