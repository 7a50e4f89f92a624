"""`fsdpdoctor tune`, with short runs that are played."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.cli import main
from fsdpdoctor.cli import tune as tune_command
from fsdpdoctor.plan_file import read_settings
from fsdpdoctor.tune import Candidate, Failed, Outcome, Which
from tests.renderers.test_tune import candidate, run

FASTER = candidate(Plan(unshard_async_op=True), 70)


class Played:
    """`TrialRuns`, which start nothing: each run takes as long as was drawn."""

    outcomes: Sequence[Outcome] = ()
    usable = True
    made: Played

    def __init__(self, **asked: Any) -> None:
        self.asked = asked
        self.folder: Path = asked["folder"]
        self.first: Any = None
        self.plans: list[Plan | None] = []
        type(self).made = self

    def run(self, candidate: Candidate | None) -> Outcome:
        """The next one."""
        limits = SimpleNamespace(device_bytes=80 << 30)
        self.first = SimpleNamespace(
            calibration=SimpleNamespace(constraints=limits),
            usable=self.usable,
            why_withheld="its replay is 40 % off",
        )
        self.plans.append(None if candidate is None else candidate.plan)
        self.asked["say"](f"run {len(self.plans)}")
        return self.outcomes[min(len(self.plans), len(self.outcomes)) - 1]


@pytest.fixture
def played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[type[Played], list[tuple[Which, int]]]:
    """The runs' class, and what candidates were asked for."""
    kind = type("OfTest", (Played,), {})
    asked: list[tuple[Which, int]] = []

    def candidates_of(base: Any, *how: Any) -> list[Candidate]:
        asked.append(how)
        return [FASTER]

    monkeypatch.setattr(tune_command, "TrialRuns", kind)
    monkeypatch.setattr(tune_command, "candidates_of", candidates_of)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return kind, asked


def tune(*words: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(main, ["tune", *words])


def test_what_holds_is_kept_and_written(played: Any, tmp_path: Path) -> None:
    """As a plan that `run --apply` takes; the table says why."""
    kind, asked = played
    kind.outcomes = [run(100, 20), run(70, 0), run(100, 20), run(70, 0), run(100, 20)]
    words = ("--nproc-per-node", "2", "--out", "runs", "--max-runs", "5")
    result = tune(*words, "--save", "best.json", "train.py", "--lr", "1")

    assert result.exit_code == 0, result.output
    made = kind.made
    start = [sys.executable, "-m", "fsdpdoctor", "run", "--nproc-per-node", "2"]
    assert made.asked["launch"] == start
    assert made.asked["script"] == ["train.py", "--lr", "1"]
    options = ["--every", "1", "--stop-after", "12", "--check-bits", "--no-report"]
    assert made.asked["options"] == options
    assert (made.folder, made.asked["timeout_s"]) == (tmp_path / "runs", None)
    assert made.plans == [None, FASTER.plan, None, FASTER.plan, None]
    assert asked == [(Which(), 80 << 30)]
    assert "unshard_async_op" in result.stdout
    assert "run 1\n" in result.stderr
    assert "wrote best.json; use it with: fsdpdoctor run --apply best.json ..." in (
        result.stderr
    )
    assert read_settings(tmp_path / "best.json") is not None


def test_where_nothing_holds_nothing_is_written(played: Any, tmp_path: Path) -> None:
    """As JSON, by another launcher, for the same bits, in less memory."""
    kind, asked = played
    kind.outcomes = [run(100, 20)]
    kind.usable = False
    words = (
        *("--launcher", "srun -n 2 python", "--same-bits", "--restart-only"),
        *("--memory", "40GiB"),
    )
    result = tune(*words, "--json", "--max-runs", "3", "-m", "pkg.train")

    assert result.exit_code == 0, result.output
    launch = ["srun", "-n", "2", "python", "-m", "fsdpdoctor", "run"]
    assert kind.made.asked["launch"] == launch
    assert kind.made.asked["script"] == ["-m", "pkg.train"]
    assert asked == [(Which(same_bits=True, restart_only=True), 40 << 30)]
    told = json.loads(result.stdout)
    assert told["withheld"] == "its replay is 40 % off"
    assert [row["verdict"] for row in told["candidates"]] == ["no gain"]
    assert not list(tmp_path.glob("**/plan.json"))


def test_a_script_that_fails_is_said(played: Any) -> None:
    """One line, before any change is tried."""
    kind, asked = played
    kind.outcomes = [Failed(reason="out of memory")]
    result = tune("--nproc-per-node", "2", "train.py")
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: the script as it is: out of memory\n")
    assert asked == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.py",), "say how the ranks are started"),
        (
            ("--nproc-per-node", "2", "--launcher", "srun", "train.py"),
            "say how the ranks are started",
        ),
        (("--nproc-per-node", "2", "none.py"), "cannot run none.py"),
    ],
)
def test_wrong_words_start_nothing(
    words: tuple[str, ...], said: str, played: Any
) -> None:
    """Status 2 and one line."""
    result = tune(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_it_starts_the_ranks_itself(
    played: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun each rank would start a job of its own."""
    monkeypatch.setenv("RANK", "0")
    result = tune("--nproc-per-node", "2", "train.py")
    assert result.exit_code == 2
    assert "call it outside torchrun" in result.stderr
