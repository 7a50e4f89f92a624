"""Starts a job of several gloo processes on this machine, and ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.rig.warm import VARIABLE, WarmProcess, start_warm

SCRIPTS = Path(__file__).parent / "scripts"
TRAIN = SCRIPTS / "train.py"
"""See `--help` of it."""

ROOT = Path(__file__).parents[2]

TIMEOUT_S = 240.0
"""Of a whole job: importing torch in four processes takes 30 s on a busy machine."""

GRACE_S = 15.0
"""What the others get once a rank has failed: they hang in its collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How one process, or one torchrun, ended."""

    argv: tuple[str, ...]
    status: int  # negative: the signal that ended it
    stdout: str
    stderr: str

    def ok(self) -> Finished:
        """Itself, or an assertion with all that it printed."""
        assert self.status == 0, (
            f"{' '.join(self.argv)} ended with {self.status}\n"
            f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )
        return self


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        # Of a job that this test process may itself be part of.
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    }
    path = os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return {**kept, **threads, **extra}


@dataclass(slots=True, kw_only=True)
class Started:
    """A process under way. Its output goes to files: pipes would fill up."""

    argv: tuple[str, ...]
    process: subprocess.Popen[bytes] | WarmProcess
    stdout: IO[bytes]
    stderr: IO[bytes]

    @property
    def pid(self) -> int:
        """Of the process, which leads its own session."""
        return self.process.pid

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to it and to what it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def finished(self) -> Finished:
        """Wait for its end, and close its files: once."""
        status = self.process.wait()
        texts = []
        for file in (self.stdout, self.stderr):
            with file:
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        out, err = texts
        return Finished(argv=self.argv, status=status, stdout=out, stderr=err)


def hear_interrupts() -> None:
    """Run in a child before it starts: what a shell puts in the background ignores
    SIGINT, its children do too, and a test that interrupts one would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(argv: Sequence[str], env: Mapping[str, str]) -> Started:
    """Start a process, in a session of its own so that it can be ended whole."""
    out = tempfile.TemporaryFile()  # noqa: SIM115 - `finished` closes it
    err = tempfile.TemporaryFile()  # noqa: SIM115 - and this
    process: subprocess.Popen[bytes] | WarmProcess
    if VARIABLE in os.environ and argv[0] == sys.executable:
        wanted = _environment(env)
        process = start_warm(argv[1:], wanted, out.fileno(), err.fileno())
    else:
        process = subprocess.Popen(
            argv,
            env=_environment(env),
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=hear_interrupts,  # no thread of ours holds a lock here
        )
    return Started(argv=tuple(argv), process=process, stdout=out, stderr=err)


def start_ranks(
    nproc: int, *argv: str, env: Mapping[str, str] | None = None
) -> list[Started]:
    """Start `python ARGV...` once for each rank, as torchrun would, without torchrun.

    `argv` is a script with its arguments, or `-m`, a module and its arguments.
    """
    port = str(free_port())
    return [
        start(
            (sys.executable, *argv),
            {
                **(env or {}),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(nproc),
                "LOCAL_WORLD_SIZE": str(nproc),
                "GROUP_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
        )
        for rank in range(nproc)
    ]


def finish(
    started: Sequence[Started],
    timeout_s: float = TIMEOUT_S,
    grace_s: float = GRACE_S,
) -> list[Finished]:
    """Wait for all; once one has failed the others get `grace_s`, then are killed."""
    deadline = time.monotonic() + timeout_s
    while any(s.process.poll() is None for s in started):
        if any(s.process.poll() for s in started):
            deadline = min(deadline, time.monotonic() + grace_s)
        if time.monotonic() > deadline:
            for s in started:
                s.kill()
        time.sleep(0.05)
    return [s.finished() for s in started]


def run_ranks(
    nproc: int,
    *argv: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    grace_s: float = GRACE_S,
) -> list[Finished]:
    """Run a job to its end: one `Finished` per rank, in order. See `start_ranks`."""
    return finish(start_ranks(nproc, *argv, env=env), timeout_s, grace_s)


def run_torchrun(
    nproc: int,
    *argv: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Finished:
    """Run `torchrun --nproc-per-node NPROC ARGV...`."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    started = start((sys.executable, *launcher, str(nproc), *argv), env or {})
    return finish([started], timeout_s)[0]


def run_python(
    *argv: str, env: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> Finished:
    """Run `python ARGV...`, which may start its own ranks."""
    return finish([start((sys.executable, *argv), env or {})], timeout_s)[0]
