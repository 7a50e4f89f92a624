"""Jobs whose ranks are forked from one process that has torch imported already.

Importing torch takes longer than most of the trainings here, and there are many of
them. A rank is otherwise what `torchrun` starts: a process with its environment, its
arguments and its own end. `python -m tests.rig.forked` reads a job a line.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import IO

from tests.rig.ranks import ROOT, free_port

IMPORTED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "fsdpdoctor.cli",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A script as some ranks."""

    script: str
    argv: tuple[str, ...] = ()
    ranks: int = 2
    folder: str  # of the ranks' output
    run: str | None = None  # where it is recorded, if it is
    counts: bool = False  # beside the record, by `tests.rig.counting`
    timeout_s: float = 150.0
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a job came to, by rank."""

    status: tuple[int, ...]
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    counts: tuple[str, ...]  # JSON, where they were asked for

    def ok(self) -> Ended:
        """Itself, or an assertion with all that it printed."""
        said = "\n".join((*self.stdout, *self.stderr))
        assert not any(self.status), f"ended with {self.status}\n{said}"
        return self


@dataclass(slots=True, kw_only=True)
class Nursery:
    """The process that forks them."""

    process: subprocess.Popen[str]

    def run(self, job: Job) -> Ended:
        """Run a job to its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        folder = Path(job.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.process.stdin.write(json.dumps(asdict(job)) + "\n")
        self.process.stdin.flush()
        status = json.loads(self.process.stdout.readline())

        def read(suffix: str) -> tuple[str, ...]:
            files = (folder / f"{rank}.{suffix}" for rank in range(job.ranks))
            return tuple(f.read_text("utf-8") if f.exists() else "" for f in files)

        return Ended(
            status=tuple(status),
            stdout=read("out"),
            stderr=read("err"),
            counts=read("json"),
        )


@contextmanager
def nursery(python: str = sys.executable) -> Iterator[Nursery]:
    """One such process, ended at the end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), env.get("PYTHONPATH")))
    )
    process = subprocess.Popen(
        [python, "-m", "tests.rig.forked"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=ROOT,
    )
    try:
        yield Nursery(process=process)
    finally:
        process.communicate()  # closes its input, which ends it


class Pool:
    """Several nurseries, and jobs that run in them beside each other.

    Ranks wait for each other most of the time, the more so on a busy machine.
    """

    def __init__(self, at_once: int) -> None:
        self._stack = ExitStack()
        self._free: SimpleQueue[Nursery] = SimpleQueue()
        for _ in range(at_once):
            self._free.put(self._stack.enter_context(nursery()))
        self._threads = ThreadPoolExecutor(at_once)

    def submit(self, job: Job) -> Future[Ended]:
        """Run a job as soon as there is room."""
        return self._threads.submit(self._run, job)

    def _run(self, job: Job) -> Ended:
        one = self._free.get()
        try:
            return one.run(job)
        finally:
            self._free.put(one)

    def close(self) -> None:
        """End what runs, and the nurseries."""
        self._threads.shutdown(cancel_futures=True)
        self._stack.close()


AT_ONCE = "RANKS_AT_ONCE"
"""An environment variable: how many jobs run beside each other, if not two."""


@contextmanager
def pool() -> Iterator[Pool]:
    """As many nurseries as the environment says."""
    one = Pool(int(os.environ.get(AT_ONCE, "2")))
    try:
        yield one
    finally:
        one.close()


# -- inside it


def _serve(lines: IO[str], answers: IO[str]) -> tuple[Job, int] | None:
    """Run jobs until there are no more; in a rank, return what it is."""
    for line in lines:
        job = Job(**json.loads(line))
        port = str(free_port())
        pids: list[int] = []
        for rank in range(job.ranks):
            pid = os.fork()
            if not pid:
                _become(job, rank, port)
                return job, rank
            pids.append(pid)
        print(json.dumps(_wait(pids, job.timeout_s)), file=answers, flush=True)
    return None


def _become(job: Job, rank: int, port: str) -> None:
    """A rank's environment and output."""
    os.environ.update(job.env)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        GROUP_RANK="0",
        WORLD_SIZE=str(job.ranks),
        LOCAL_WORLD_SIZE=str(job.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )
    os.setsid()
    for number, suffix in ((1, "out"), (2, "err")):
        target = os.open(
            f"{job.folder}/{rank}.{suffix}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        )
        os.dup2(target, number)
        os.close(target)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _wait(pids: Sequence[int], timeout_s: float) -> list[int]:
    """Exit statuses; who takes too long is killed."""
    ended: dict[int, int] = {}
    deadline = time.monotonic() + timeout_s
    while len(ended) < len(pids):
        for pid in pids:
            if pid in ended:
                continue
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [ended[pid] for pid in pids]


def _run(job: Job, rank: int) -> None:
    """The script, as the main module of this process."""
    if job.counts:
        from tests.rig import counting

        counting.install(Path(job.folder) / f"{rank}.json")
    if job.run is None:
        sys.argv = [job.script, *job.argv]
        sys.path[0] = str(Path(job.script).parent)
        runpy.run_path(job.script, run_name="__main__")
        return
    from fsdpdoctor.cli import main

    sys.argv = ["fsdpdoctor"]
    main(["run", "--out", job.run, "--no-report", job.script, *job.argv])


if __name__ == "__main__":
    for name in IMPORTED:
        __import__(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    rank_of = _serve(sys.stdin, answers)
    if rank_of is not None:
        _run(*rank_of)
