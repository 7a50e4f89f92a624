"""The rig's faults are what they say: each script's collectives, counted on the wire
without a recorder.
"""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest

from fsdpdoctor.rehearsal.modelled_work import Transfer
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from fsdpdoctor.schema import Kind
from tests.networks import uniform
from tests.rig.fake import one_thread
from tests.rig.ranks import TRAIN, run_python, run_ranks

STEPS = 3


def collectives(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, float, float]:
    """All-gathers, reduce-scatters and all-reduces of a step, as rank 0 of 4."""
    log: list[Transfer] = []
    argv = [str(TRAIN), "--fault", fault, "--steps", str(STEPS), "--sleep-ms", "0"]
    monkeypatch.setattr(sys, "argv", argv)
    job = Rehearsal(wire=uniform(1e12, 0), world_size=4)
    with one_thread(), rehearsing(job, log):
        runpy.run_path(str(TRAIN), run_name="__main__")
    counts = Counter(transfer.kind for transfer in log)
    kinds = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
    return (
        counts[kinds[0]] / STEPS,
        counts[kinds[1]] / STEPS,
        counts[kinds[2]] / STEPS,
    )


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("none", (9, 5, 0)),  # 4 layers gathered twice, the root once
        ("prefetch", (9, 5, 0)),
        ("skip-prefetch", (9, 5, 0)),
        ("checkpoint", (9, 5, 0)),
        ("slow-rank", (9, 5, 0)),
        ("early-optimizer", (9, 5, 0)),
        ("outside", (9, 5, 0)),
        ("ignored", (9, 5, 1)),  # the script averages what it left out
        ("every-linear", (65, 33, 0)),  # 7 linear layers and the norms of each
        ("nested-checkpoint", (20, 9, 0)),  # 17, and 3 prefetched in recomputation
        ("accumulate", (36, 20, 0)),
        ("accumulate-once", (36, 5, 0)),
        ("hsdp", (9, 5, 5)),
        ("sub-mesh", (9, 5, 0)),  # as hsdp, but replicas never meet
    ],
)
def test_each_fault_shows_in_its_collectives(
    fault: str, expected: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathers, reduce-scatters and all-reduces per step."""
    assert collectives(fault, monkeypatch) == expected


def test_ddp_only_reduces(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gathers nothing: with ranks that are not there it compares no shapes."""
    gathers, reduce_scatters, all_reduces = collectives("ddp", monkeypatch)
    assert (gathers, reduce_scatters) == (0, 0)
    assert all_reduces >= 1


@pytest.mark.ranks
def test_a_failing_rank_ends_its_job(tmp_path: Path) -> None:
    """The launcher kills the rank that would wait for it, and says how each ended."""
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, sys, time\n"
        "print('rank', os.environ['RANK'])\n"
        "if os.environ['RANK'] == '1':\n    sys.exit(3)\n"
        "time.sleep(600)\n"
    )
    first, second = run_ranks(2, str(script), grace_s=1.0)

    assert (first.status, first.stdout) == (-9, "rank 0\n")
    assert (second.status, second.stdout) == (3, "rank 1\n")


@pytest.mark.ranks
def test_the_gpu_script_says_where_there_is_no_gpu() -> None:
    """It is skipped, not failed, and nothing is written."""
    ended = run_python("-m", "tests.benchmarks.gpu", env={"CUDA_VISIBLE_DEVICES": ""})
    assert (ended.status, ended.stdout) == (0, "skipped: no CUDA device\n")
