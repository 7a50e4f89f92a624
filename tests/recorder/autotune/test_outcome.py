"""What rank 0 says of a tuning, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.recorder.autotune.outcome import Outcome
from tests.recorder.autotune.test_tuning import candidate, ranking, steady, tuned


def test_a_kept_change_is_said_with_its_gain_and_what_to_do(tmp_path: Path) -> None:
    """Once when it is over, and where the plan lies when the training has ended."""
    lines: list[str] = []
    said = Outcome(tmp_path, lines.append)
    lengths = steady({"as it is": 1000, "fast": 800})
    tuning, _, _ = tuned(ranking(fast=800), lengths)

    said.over(tuning, ["wrap the embedding"])
    said.over(tuning, ["wrap the embedding"])
    said.close(tuning, None)

    assert lines[0].startswith(
        "over: nothing else promises 0.5 % of a step; kept fast:"
    )
    assert "more steps in the same time" in lines[0]
    assert lines[1] == "with a new start, untried: wrap the embedding"
    assert lines[2:] == [f"or: fsdpdoctor run --apply {tmp_path / 'plan.json'} ..."]


def test_what_was_kept_before_a_restart_is_not_nothing(tmp_path: Path) -> None:
    """It is in force, though this attempt has tried nothing; its plan is named."""
    lines: list[str] = []
    said = Outcome(tmp_path, lines.append)
    tuning, _, _ = tuned(ranking(), steady({"as it is": 1000}))

    said.kept(candidate("fast", 800))
    said.over(tuning, [])
    said.close(tuning, None)

    assert "; in force as before the restart: fast (0 " in lines[0]
    assert lines[1:] == [f"or: fsdpdoctor run --apply {tmp_path / 'plan.json'} ..."]


def test_where_nothing_is_kept_that_is_said(tmp_path: Path) -> None:
    """A slower one is put back."""
    lines: list[str] = []
    said = Outcome(tmp_path, lines.append)
    tuning, _, _ = tuned(ranking(slow=900), steady({"as it is": 1000, "slow": 1200}))

    said.close(tuning, "the script has set it itself")

    assert lines[0] == "ended early: the script has set it itself"
    assert len(lines) == 1


def test_a_training_that_ends_first(tmp_path: Path) -> None:
    """Nothing was tried, or the tuning was not over."""
    lines: list[str] = []
    said = Outcome(tmp_path, lines.append)
    said.close(None, None)
    going_on, _, _ = tuned(ranking(), steady({"as it is": 1000}))
    going_on.stopped = None
    said.close(going_on, None)

    assert lines[0] == "nothing was tried: the training ended too early"
    assert lines[1].startswith("not over when the training ended; nothing was kept (0 ")


def test_a_store_that_is_gone_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half a minute, not before."""
    now = [100.0]
    clock = "fsdpdoctor.recorder.autotune.outcome.time.monotonic"
    monkeypatch.setattr(clock, lambda: now[0])
    lines: list[str] = []
    said = Outcome(tmp_path, lines.append)
    said.store_answers()
    now[0] += 29
    said.store_fails(OSError("gone"))
    assert lines == []
    now[0] += 2
    said.store_fails(OSError("gone"))
    said.store_fails(OSError("gone"))

    assert len(lines) == 1
    assert "the job's store does not answer" in lines[0]


def test_a_plan_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """The training goes on."""
    lines: list[str] = []
    Outcome(tmp_path / "nowhere", lines.append).kept(candidate("fast", 800))

    assert len(lines) == 1
    assert lines[0].startswith("the plan is not written: ")
