"""One step's storages, counted: against a count of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.rig.ranks import run_ranks

JOB = Path(__file__).with_name("memory_job.py")
SCENARIOS = (
    "reshard",
    "keep",
    "int",
    "two_roots",
    "prefetch",
    "checkpoint",
    "accumulation",
)


def alone(folder: Path, *names: str) -> Any:
    """What came of scenarios in a process that stands for four ranks."""
    environment = {k: v for k, v in os.environ.items() if k != "RANK"}
    command = (sys.executable, "-W", "ignore", str(JOB), str(folder), *names)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "memory.0.json").read_text())


@cache
def _counted(folder: Path) -> Any:
    return alone(folder, *SCENARIOS)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every scenario, counted by the test and said by the recorder."""
    return _counted(tmp_path_factory.mktemp("memory"))


@pytest.mark.ranks
@pytest.mark.parametrize("name", SCENARIOS)
def test_says_what_was_held(counted: Any, name: str) -> None:
    """Peak, its unit and phase, each unit's own peaks and activations, and the most
    that was gathered are the test's, to the byte; the peak's parts add up to it.
    """
    truth, said = counted[name]["truth"], counted[name]["said"]

    assert {key: said.get(key) for key in truth} == truth
    assert said["parts"] == truth["peak"][0]
    assert said["step"] == 1
    assert said["warnings"] == []


@pytest.mark.ranks
@pytest.mark.parametrize("name", SCENARIOS)
def test_counting_changes_no_loss(counted: Any, name: str) -> None:
    """Losses are equal to the bit."""
    assert counted[name]["same"] is True


@pytest.mark.ranks
def test_each_bucket_is_met(counted: Any) -> None:
    """What a step can hold is told apart."""
    assert set(counted["int"]["said"]["buckets"]) == {
        "sharded_parameters",
        "post_forward_shards",
        "gathered_parameters",
        "gather_outputs",
        "reduce_inputs",
        "gradients",
        "unsharded_gradients",
        "optimizer_states",
        "activations",
        "backward",
        "buffers",
        "other",
    }


@pytest.mark.ranks
@pytest.mark.slow
def test_two_ranks_say_what_they_held(tmp_path: Path) -> None:
    """Over gloo, whose thread lets buffers go when it likes, the units' activations
    and what was gathered are exact, and losses are the same.
    """
    names = ("reshard", "prefetch", "accumulation")
    for finished in run_ranks(2, "-W", "ignore", str(JOB), str(tmp_path), *names):
        finished.ok()

    for rank in (0, 1):
        found = json.loads((tmp_path / f"memory.{rank}.json").read_text())
        for name in names:
            truth, said = found[name]["truth"], found[name]["said"]
            for key in ("activations", "gathered_most"):
                assert said[key] == truth[key], (name, key)
            assert found[name]["same"] is True
