"""Runs a training with and without the recorder, and tells the two apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdpdoctor.run import RankData
from tests.faults import RESULTS
from tests.rig.ranks import Finished, run_ranks
from tests.rig.warm import VARIABLE, start_warm

SCRIPTS = Path(__file__).parent
TRAIN = str(SCRIPTS / "train.py")
ROOT = SCRIPTS.parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job has ended."""

    status: tuple[int, ...]
    stdout: tuple[str, ...]
    losses: tuple[str, ...]
    stderr: str = ""

    @property
    def trained(self) -> tuple[object, ...]:
        """What must be as without us."""
        return self.losses, self.stdout, self.status


GLOO_ABORTS = "terminate called without an active exception"
"""Of some 50 jobs two or three end so, plain ones as often as recorded ones: a thread
of gloo's is still there when the interpreter has ended."""


def status_of(rank: Finished) -> int:
    """As it would be without that."""
    aborted = rank.status == -signal.SIGABRT and GLOO_ABORTS in rank.stderr
    return 0 if aborted and "done" in rank.stdout else rank.status


def job(
    folder: Path, name: str, *recorder: str, env: Mapping[str, str] | None = None
) -> Ended:
    """Train on two ranks, with or without the recorder."""
    folder.mkdir()
    ranks = run_ranks(
        2,
        *recorder,
        TRAIN,
        name,
        str(folder),
        env={"RUN_FOLDER": str(folder.parent / "run"), **(env or {})},
        grace_s=30.0,
        timeout_s=1800.0,  # ten thousand steps take their time on a busy machine
    )
    return Ended(
        status=tuple(status_of(r) for r in ranks),
        stdout=tuple(r.stdout for r in ranks),
        losses=tuple(losses_in(folder)),
        stderr="".join(r.stderr for r in ranks),
    )


def losses_in(folder: Path) -> Iterator[str]:
    """What each rank has written."""
    for rank in (0, 1):
        path = folder / f"rank{rank}.txt"
        yield path.read_text() if path.exists() else ""


def python(*argv: str, cwd: Path, stdin: int | None = None) -> Ended:
    """Run a process of its own, with its output."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if VARIABLE in os.environ:
        return _warm(argv, env, cwd)
    done = subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        stdin=stdin,
        env=env,
    )
    return Ended(
        status=(done.returncode,), stdout=(done.stdout,), losses=(), stderr=done.stderr
    )


def _warm(argv: tuple[str, ...], env: dict[str, str], cwd: Path) -> Ended:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        done = start_warm(argv, env, out.fileno(), err.fileno(), cwd)
        status = done.wait()
        out.seek(0)
        err.seek(0)
        return Ended(
            status=(status,), stdout=(out.read(),), losses=(), stderr=err.read()
        )


def recorder(folder: Path) -> tuple[str, ...]:
    """The options that record into a folder."""
    return ("-m", "fsdpdoctor", "run", "--no-report", "--out", str(folder))


def note(name: str, plain: Ended, ours: Ended, ended: object, whole: object) -> None:
    """A row of the table, before anything is asserted."""
    same = "same" if plain.losses == ours.losses else "DIFFERENT"
    out = "same" if plain.stdout == ours.stdout else "DIFFERENT"
    status = f"{ours.status}" + ("" if plain.status == ours.status else " DIFFERENT")
    RESULTS[name] = f"| {name} | {status} | {same} | {out} | {ended} | {whole} |"


def last_whole(rank: RankData) -> int:
    """The last step whose duration is on disk."""
    whole = [-1]
    rest = () if rank.rest is None else (rank.rest,)
    for record in (*rank.steps, *rest):
        whole += [record.step] if record.complete else []
        whole += record.unrecorded.step.tolist()
    return max(whole)
