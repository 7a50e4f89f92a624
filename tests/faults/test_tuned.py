"""A job that tunes itself ends, stands still and begins again as one that does not."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdpdoctor.run import open_run
from fsdpdoctor.schema import RankHeader
from tests.rig.ranks import Finished, Started, finish, start
from tests.rig.warm import warm_starts

JOB = str(Path(__file__).with_name("tuned.py"))

pytestmark = [pytest.mark.faults, pytest.mark.ranks]


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """Eight torchruns import torch once."""
    with warm_starts():
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What came of a job."""

    folder: Path
    torchrun: Finished

    @property
    def trained(self) -> dict[str, str]:
        """Each step's losses, by attempt and rank."""
        return {
            path.name: path.read_text() for path in sorted(self.folder.glob("losses.*"))
        }

    @property
    def stdout(self) -> list[str]:
        """Ranks' lines, in any order."""
        return sorted(self.torchrun.stdout.splitlines())

    def headers(self, rank: int) -> list[RankHeader]:
        """Of a rank's attempts, in their order."""
        runs = (self.folder / "fsdpdoctor-runs").glob("*/run.json")
        folders = sorted(
            (path.parent for path in runs), key=lambda p: p.stat().st_ctime
        )
        return [open_run(p).sources[rank].load().header for p in folders]


Acts = Callable[[Started, Path], None]


def nothing(started: Started, folder: Path) -> None:
    """Let it end by itself."""


def run(folder: Path, tunes: str, how: str, acts: Acts = nothing) -> Job:
    """Two ranks under torchrun, which may start them again once."""
    folder.mkdir()
    launcher = ("torch.distributed.run", "--nproc-per-node", "2")
    options = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
    job = (JOB, str(folder), tunes, how)
    started = start(
        (sys.executable, "-m", *launcher, *options, "--max-restarts=1", *job), {}
    )
    try:
        acts(started, folder)
    finally:
        (finished,) = finish([started])
    return Job(folder=folder, torchrun=finished)


def happened(folder: Path, rank: int) -> int:
    """The process of a rank, once it has come to where something happens."""
    path, until = folder / f"happens.{rank}", time.monotonic() + 120
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return int(path.read_text())


def terminate(started: Started, folder: Path) -> None:
    """As a cluster does that takes its nodes back."""
    happened(folder, 0)
    happened(folder, 1)
    time.sleep(1.0)
    os.kill(started.pid, signal.SIGTERM)


def stop_for_a_while(started: Started, folder: Path) -> None:
    """A rank stands still, and goes on."""
    pid = happened(folder, 1)
    time.sleep(4.0)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_a_restart_begins_with_what_was_kept(tmp_path: Path, how: str) -> None:
    """Both attempts train as without us; the second one tries nothing."""
    plain, tuned = (run(tmp_path / tunes, tunes, how) for tunes in ("plain", "tuned"))

    assert plain.torchrun.ok().status == tuned.torchrun.ok().status
    assert tuned.stdout == plain.stdout == ["trained 0", "trained 1"]
    assert tuned.trained == plain.trained
    for rank in (0, 1):
        first, second = tuned.headers(rank)
        assert [one.words for one in first.settings if not one.trial] == ["gathered"]
        assert any(one.trial for one in first.settings)
        (kept,) = second.settings
        assert not kept.trial
        assert kept.steps[0][0] <= 20
    assert "in force as before the restart: " in tuned.torchrun.stderr


@pytest.mark.parametrize("how", ["terminated", "hangs"])
def test_a_signal_ends_it_as_without_us(tmp_path: Path, how: str) -> None:
    """Also where one rank waits in a collective for another."""
    plain, tuned = (
        run(tmp_path / tunes, tunes, how, terminate) for tunes in ("plain", "tuned")
    )

    assert tuned.torchrun.status == plain.torchrun.status != 0
    assert tuned.trained == plain.trained
    assert tuned.stdout == plain.stdout == []
    for rank in (0, 1):
        (header,) = tuned.headers(rank)
        assert any(one.trial for one in header.settings)


def test_a_rank_that_stands_still_goes_on_with_the_others(tmp_path: Path) -> None:
    """For longer than a decision has: it is agreed on later, or on another one."""
    plain, tuned = (
        run(tmp_path / tunes, tunes, "stopped", stop_for_a_while)
        for tunes in ("plain", "tuned")
    )

    assert plain.torchrun.ok().status == tuned.torchrun.ok().status
    assert tuned.trained == plain.trained
    first, second = (tuned.headers(rank)[0].settings for rank in (0, 1))
    assert first == second
