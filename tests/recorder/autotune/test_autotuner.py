"""Ranks that tune themselves train to the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rig.ranks import run_python, run_ranks

JOB = Path(__file__).with_name("tuned_job.py")
TRIED = {"lists", "gathered", "both"}

pytestmark = pytest.mark.ranks


def results(ranks: int, folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """What came of each kind on each rank; every rank says the same of its settings."""
    command = ("-W", "ignore", str(JOB), str(folder), ",".join(kinds))
    for finished in run_ranks(ranks, *command, timeout_s=900.0):
        finished.ok()
    found = [
        json.loads((folder / f"results.{rank}.json").read_text())
        for rank in range(ranks)
    ]
    for kind in kinds:
        first = found[0][kind]["settings"]
        assert [one[kind]["settings"] for one in found] == [first] * ranks
    return [one[kind] for one in found for kind in kinds]


def check(result: dict[str, Any]) -> None:
    """No bit differs, all three were tried, one was kept to the end."""
    assert result["other"] == []
    said = result["settings"]
    assert {one["words"] for one in said if one["trial"]} == TRIED
    assert [one["words"] for one in said if not one["trial"]] == ["gathered"]


def test_two_ranks_train_to_the_same_bits(tmp_path: Path) -> None:
    """Losses, gradients and parameters of every step, while settings change in the
    same steps on both ranks.
    """
    for result in results(2, tmp_path, "evaluation"):
        check(result)


@pytest.mark.slow
def test_a_rank_that_fails_in_a_trial_follows_it_to_its_end(tmp_path: Path) -> None:
    """It goes back to the script's settings where the others do, and votes no more."""
    command = ("-W", "ignore", str(JOB), str(tmp_path), "failing")
    first, second = run_ranks(2, *command, timeout_s=900.0)
    first.ok()
    second.ok()
    found = [
        json.loads((tmp_path / f"results.{rank}.json").read_text())["plain"]
        for rank in (0, 1)
    ]

    assert [one["other"] for one in found] == [[], []]
    assert found[0]["settings"] == found[1]["settings"]
    assert [one["words"] for one in found[0]["settings"]] == ["lists"]
    assert "fsdpdoctor stopped trying settings, training goes on" in second.stderr
    assert "autotune: over: rank 1: detached: MemoryError" in first.stderr


UNASKED = """
import sys, fsdpdoctor
with fsdpdoctor.record(sys.argv[1]):
    pass
print([name for name in sys.modules if "autotune" in name])
"""


def test_nothing_of_it_is_there_unasked(tmp_path: Path) -> None:
    """A recording imports none of it."""
    script = tmp_path / "script.py"
    script.write_text(UNASKED)

    assert run_python(str(script), str(tmp_path / "run")).ok().stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "kinds",
    [
        ("plain", "bf16", "accumulation", "keeping"),
        ("checkpoint", "reentrant", "hsdp"),
        ("lora", "moe", "compiled"),
        ("two optimizers", "skipped", "evaluation"),
    ],
    ids=" ".join,
)
def test_every_kind_of_training_keeps_its_bits(
    ranks: int, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    """Accumulation, checkpointing, HSDP, adapters, experts, compiled blocks and what
    else people do between two steps.
    """
    for result in results(ranks, tmp_path, *kinds):
        check(result)
