"""Scripts of public reports' kinds: what is wrong is named, and their twins are not.

`pytest -m slow tests/reports` runs each as two or four gloo ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdpdoctor.report import diagnose
from fsdpdoctor.report.costs import SEVERITY
from fsdpdoctor.report.value import FindingRow, Report
from fsdpdoctor.run import open_run
from tests.reports.answers import ANSWERS, Answer
from tests.rig.forked import Ended, Job, Pool, pool
from tests.rig.selected import selected

pytestmark = [pytest.mark.slow, pytest.mark.ranks]

SCRIPTS = Path(__file__).parent / "scripts"

UNEXPLAINED_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A script under way, and where it is recorded."""

    ended: Future[Ended]
    run: Path


@pytest.fixture(scope="module")
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Answer, Started]]:
    """All scripts that were selected, some beside each other."""
    answers: list[Answer] = selected(request, "answer")
    with pool() as ranks:
        yield {one: start(ranks, one, tmp_path_factory) for one in answers}


def start(ranks: Pool, answer: Answer, folders: pytest.TempPathFactory) -> Started:
    """Record a script."""
    folder = folders.mktemp(str(answer))
    job = Job(
        script=str(SCRIPTS / f"{answer.script}.py"),
        argv=(answer.way,),
        ranks=answer.ranks,
        folder=str(folder / "out"),
        run=str(folder / "run"),
    )
    return Started(ended=ranks.submit(job), run=folder / "run")


def said(finding: FindingRow) -> str:
    """What it says, without its advice."""
    return f"{finding.summary}\n{finding.evidence}"


def advised(findings: list[FindingRow]) -> str:
    """What they advise, as one text."""
    return "\n".join(f"{a.text}\n{a.code or ''}" for f in findings for a in f.advice)


def is_wrong(never: str, finding: FindingRow) -> bool:
    """Whether a finding is what must not be said: `FD407`, `FD407:warning` (or
    worse), `FD503:100.0 %` (in these words).
    """
    code, _, what = never.partition(":")
    if finding.code != code:
        return False
    if what in SEVERITY:
        return SEVERITY[finding.severity] >= SEVERITY[what]
    return what in said(finding)


def check(answer: Answer, report: Report) -> None:
    """The right finding with its place and advice, and no wrong one."""
    for never in answer.never:
        wrong = [f.summary for f in report.findings if is_wrong(never, f)]
        assert wrong == [], never
    if not answer.codes:
        return
    found = [f for f in report.findings if f.code in answer.codes]
    assert found, [(f.code, f.summary) for f in report.findings]
    text = "\n".join(map(said, found))
    for pattern in (*answer.says, *filter(None, [answer.place])):
        assert re.search(pattern, text, re.IGNORECASE), (pattern, text)
    assert re.search(answer.advises, advised(found), re.IGNORECASE | re.DOTALL)
    assert not re.search(answer.not_advised, advised(list(report.findings)))


STILL_TO_COME: dict[str, str] = {}
"""What is not answered rightly yet, and why."""


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            answer,
            marks=pytest.mark.xfail(reason=STILL_TO_COME[str(answer)], strict=False),
        )
        if str(answer) in STILL_TO_COME
        else answer
        for answer in ANSWERS
    ],
    ids=str,
)
def test_the_right_answer(answer: Answer, started: dict[Answer, Started]) -> None:
    """What is wrong, where, and what to do; of a twin nothing of the kind."""
    one = started[answer]
    ended = one.ended.result()
    report = diagnose(open_run(one.run))

    assert any(ended.status) == answer.fails, ended.stderr
    check(answer, report)
    if report.step_time_ns.mean:
        unexplained = report.unexplained_ns_per_step or 0
        assert unexplained <= UNEXPLAINED_SHARE * report.step_time_ns.mean
