"""FD508's advice mends training, on two real ranks with data of their own.

The modelled world of `test_advice_applied` cannot say it: its ranks are copies of one,
so an average over them is what each has already.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpdoctor.report import diagnose
from fsdpdoctor.run import open_run
from tests.rig.forked import Job, Pool, pool

pytestmark = [pytest.mark.slow, pytest.mark.ranks]

JOB = Path(__file__).with_name("outside_job.py")

Said = dict[str, float]
"""Losses by step and sums of parameters by name, of one rank."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """Where jobs run."""
    with pool() as one:
        yield one


def trained(
    ranks: Pool, folder: Path, *argv: str, run: Path | None = None
) -> list[Said]:
    """What each rank said."""
    job = Job(
        script=str(JOB),
        argv=argv,
        folder=str(folder),
        run=None if run is None else str(run),
    )
    ended = ranks.submit(job).result().ok()
    lines = [[line.split() for line in text.splitlines()] for text in ended.stdout]
    return [{name: float(value) for name, value in each} for each in lines]


def advised(run: Path) -> list[str]:
    """The code of FD508's advice."""
    report = diagnose(open_run(run))
    (found,) = [f for f in report.findings if f.code == "FD508"]
    return [a.code for a in found.advice if a.code is not None]


def worst(run: Path) -> str | None:
    """FD508's severity, None where it is not found."""
    found = [f.severity for f in diagnose(open_run(run)).findings if f.code == "FD508"]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("way", "pieces"), [("blocks", 2), ("prompt", 2), ("injected", 1)]
)
def test_advice_mends_training(
    way: str, pieces: int, ranks: Pool, tmp_path: Path
) -> None:
    """Without it ranks drift apart; with it they train as if nothing were sharded."""
    truth = trained(ranks, tmp_path / "truth", way, "averaged")
    before = trained(ranks, tmp_path / "before", way, "-", run=tmp_path / "run")
    outside = [name for name in truth[0] if before[0][name] != before[1][name]]
    outside = [name for name in outside if not name.isdecimal()]
    codes = advised(tmp_path / "run")

    assert outside
    assert worst(tmp_path / "run") == "critical"
    assert before[0] != pytest.approx(truth[0], rel=1e-4)
    assert len(codes) == pieces
    for at, code in enumerate(codes):
        pasted = tmp_path / f"{at}.py"
        pasted.write_text(code, "utf-8")
        run = tmp_path / f"run-{at}"
        after = trained(ranks, tmp_path / str(at), way, "-", str(pasted), run=run)
        for mine, true in zip(after, truth, strict=True):
            assert mine == pytest.approx(true, rel=1e-4)
        assert all(after[0][name] == after[1][name] for name in outside)
        assert worst(run) in (None, "info")  # held whole, where they are not sharded
