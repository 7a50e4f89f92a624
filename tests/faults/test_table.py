"""Each fault: training as without us, the record up to its last whole step, and what
was lost is said. `pytest -m faults` writes a table beside the benchmarks.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.report import report_of
from fsdpdoctor.run import open_run
from tests.faults import RESULTS
from tests.rig.ranks import Finished, run_ranks

pytestmark = [pytest.mark.faults, pytest.mark.ranks]

TRAIN = str(Path(__file__).with_name("train.py"))
SCRIPTS = Path(__file__).parent

AT = 8
LAST = 17
ALL = (LAST, LAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What must have come of it."""

    name: str
    whole: tuple[int, int] = ALL  # the last whole step on disk, at least, by rank
    ended: tuple[str, str] = ("done", "done")  # patterns
    says: str | None = None  # what the report says


RAISED, PEER = "exception: ValueError", "exception: |signal: |running"

TABLE = (
    Fault(name="none"),
    Fault(
        name="kill-one",
        whole=(AT - 1, AT - 2),
        ended=(PEER, "running"),
        says="ended without a word",
    ),
    Fault(
        name="kill-all",
        whole=(AT - 2, AT - 2),
        ended=("running", "running"),
        says="ended without a word",
    ),
    Fault(name="term-one", whole=(AT - 1, AT - 2), ended=(PEER, "signal: SIGTERM")),
    Fault(
        name="term-all",
        whole=(AT - 2, AT - 2),
        ended=("signal: SIGTERM", "signal: SIGTERM"),
    ),
    Fault(name="int-one", whole=(AT - 1, AT - 1), ended=(PEER, "signal: SIGINT")),
    Fault(
        name="int-all",
        whole=(AT - 1, AT - 1),
        ended=("signal: SIGINT", "signal: SIGINT"),
    ),
    Fault(
        name="os-exit-all",
        whole=(AT - 2, AT - 2),
        ended=("running", "running"),
        says="ended without a word",
    ),
    Fault(name="sys-exit", whole=(AT - 1, AT - 1), ended=("exit: 3", "exit: 3")),
    Fault(name="forward-raises", whole=(AT - 1, AT - 1), ended=(RAISED, PEER)),
    Fault(name="backward-raises", whole=(AT - 1, AT - 1), ended=(RAISED, RAISED)),
    Fault(name="optimizer-raises", whole=(AT - 1, AT - 1), ended=(RAISED, RAISED)),
    Fault(
        name="loader-raises",
        whole=(AT - 1, AT - 1),
        ended=("exception: OSError", "exception: OSError"),
    ),
    Fault(
        name="out-of-memory",
        whole=(AT - 1, AT - 1),
        ended=("exception: OutOfMemoryError", "exception: OutOfMemoryError"),
    ),
    Fault(name="checkpoint-thread-raises"),
    Fault(name="workers-fork"),
    Fault(name="workers-spawn"),
    Fault(name="patch-before"),
    Fault(name="patch-recorded"),
    Fault(name="patch-between"),
    Fault(name="profiler"),
    Fault(name="backward-in-a-thread"),
    Fault(name="collector-off"),
    Fault(name="reload"),
    Fault(name="deepcopy"),
    Fault(name="pickle"),
    Fault(name="compile-per-block"),
    Fault(name="rebuilt-model"),
    Fault(name="groups-made-again"),
    Fault(name="stderr-closed"),
)


@pytest.fixture(scope="module", autouse=True)
def results() -> Iterator[None]:
    """Write the table when all have run."""
    RESULTS.clear()
    yield
    lines = [
        "# What came of each fault",
        "",
        "Written by `pytest -m faults`: two gloo ranks, plain and recorded. Losses and",
        "standard output are compared to the bit, exit status by rank.",
        "",
        "| fault | exit status | losses | stdout | ended | last whole step |",
        "|---|---|---|---|---|---|",
        *RESULTS,
        "",
    ]
    path = Path(__file__).parents[1] / "benchmarks" / "fault-results.md"
    if len(RESULTS) > len(TABLE):
        path.write_text("\n".join(lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job has ended."""

    status: tuple[int, ...]
    stdout: tuple[str, ...]
    losses: tuple[str, ...]
    stderr: str = ""


def job(folder: Path, name: str, *recorder: str) -> Ended:
    """Train on two ranks, with or without the recorder."""
    folder.mkdir()
    ranks = run_ranks(
        2,
        *recorder,
        TRAIN,
        name,
        str(folder),
        env={"RUN_FOLDER": str(folder.parent / "run")},
        grace_s=30.0,
    )
    losses = [(folder / f"rank{rank}.txt").read_text() for rank in (0, 1)]
    return Ended(
        status=tuple(_status(r) for r in ranks),
        stdout=tuple(r.stdout for r in ranks),
        losses=tuple(losses),
        stderr="".join(r.stderr for r in ranks),
    )


GLOO_ABORTS = "terminate called without an active exception"
"""Of some 50 jobs two or three end so, plain ones as often as recorded ones: a thread
of gloo's is still there when the interpreter has ended."""


def _status(rank: Finished) -> int:
    """As it would be without that."""
    aborted = rank.status == -signal.SIGABRT and GLOO_ABORTS in rank.stderr
    return 0 if aborted and "done" in rank.stdout else rank.status


def note(name: str, plain: Ended, ours: Ended, ended: object, whole: object) -> None:
    """A row of the table, before anything is asserted."""
    same = "same" if plain.losses == ours.losses else "DIFFERENT"
    out = "same" if plain.stdout == ours.stdout else "DIFFERENT"
    status = f"{ours.status}" + ("" if plain.status == ours.status else " DIFFERENT")
    RESULTS.append(f"| {name} | {status} | {same} | {out} | {ended} | {whole} |")


def recorder(folder: Path) -> tuple[str, ...]:
    """The options that record into a folder."""
    return ("-m", "fsdpdoctor", "run", "--no-report", "--out", str(folder))


@pytest.mark.parametrize("fault", TABLE, ids=lambda fault: fault.name)
def test_trains_as_without_us(fault: Fault, tmp_path: Path) -> None:
    """To the bit, with the same end; the record is whole up to where it broke off."""
    run = tmp_path / "run"
    plain = job(tmp_path / "plain", fault.name)
    ours = job(tmp_path / "recorded", fault.name, *recorder(run))
    ranks = list(open_run(run).load())
    ended = tuple(rank.header.ended for rank in ranks)
    whole = tuple(
        max(
            (n for r in rank.steps for n in _written(r.step, r.complete, r)),
            default=-1,
        )
        for rank in ranks
    )
    note(fault.name, plain, ours, "; ".join(e[:40] for e in ended), whole)

    assert (ours.losses, ours.stdout) == (plain.losses, plain.stdout)
    assert ours.status == plain.status
    assert all(at >= least for at, least in zip(whole, fault.whole, strict=True))
    for said, expected in zip(ended, fault.ended, strict=True):
        assert re.match(expected, said), ended
    if fault.says is not None:
        assert fault.says in _stopped_words(run)


def _written(step: int, complete: bool, record: object) -> Iterator[int]:
    if complete:
        yield step
    unrecorded = getattr(record, "unrecorded", None)
    if unrecorded is not None:
        yield from unrecorded.step.tolist()


def _stopped_words(run: Path) -> str:
    from fsdpdoctor.renderers.report_view import _stopped

    return "\n".join(_stopped(report_of(measure(open_run(run))).health.stopped))


# Disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, where one may be made."""
    mount = tmp_path / "disk"
    mount.mkdir()
    tool = shutil.which("mount")
    if os.geteuid() != 0 or tool is None:
        pytest.skip("a small disk can be made by root only")
    made = subprocess.run(
        [tool, "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)], check=False
    )
    if made.returncode:
        pytest.skip("no file system may be mounted here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=False)


def fill(disk: Path, leave: int = 0) -> None:
    """Take what is free, all but so many bytes."""
    with (disk / "filler").open("wb", buffering=0) as file:
        free = shutil.disk_usage(disk).free - leave
        try:
            while free > 0:
                free -= file.write(b"\0" * min(free, 4096))
        except OSError:
            return


@pytest.mark.parametrize("left_kb", [0, 4, 8, 12, 16, 20, 24, 40])
def test_a_disk_that_is_full(disk: Path, tmp_path: Path, left_kb: int) -> None:
    """Training is as without us; each rank says once that it is not recorded."""
    fill(disk, left_kb * 1024)
    plain = job(tmp_path / "plain", "none")
    ours = job(tmp_path / "recorded", "none", *recorder(disk / "run"))
    note(f"disk with {left_kb} KB left", plain, ours, "", "")

    assert (ours.losses, ours.stdout, ours.status) == (
        plain.losses,
        plain.stdout,
        plain.status,
    )
    said = [line for line in ours.stderr.splitlines() if "training goes on" in line]
    assert len(said) == 2
    assert "Traceback" not in ours.stderr


@pytest.mark.parametrize("how", ["full", "vanishes"])
def test_a_disk_that_fails_in_the_middle(disk: Path, tmp_path: Path, how: str) -> None:
    """The steps before stay readable, and training goes on."""
    plain = job(tmp_path / "plain", "disk-fails")

    def fail() -> None:
        losses = tmp_path / "recorded" / "rank0.txt"
        until = time.monotonic() + 120
        while time.monotonic() < until:
            if losses.exists() and losses.read_text().count("\n") >= 5:
                break
            time.sleep(0.02)
        if how == "full":
            fill(disk)
        else:
            subprocess.run(["umount", "-l", str(disk)], check=False)

    thread = threading.Thread(target=fail)
    thread.start()
    ours = job(tmp_path / "recorded", "disk-fails", *recorder(disk / "run"))
    thread.join()
    note(f"disk {how}", plain, ours, "", "")

    assert (ours.losses, ours.stdout, ours.status) == (
        plain.losses,
        plain.stdout,
        plain.status,
    )
    if how == "full":
        for rank in open_run(disk / "run").load():
            assert rank.header.ended.startswith("detached: OSError")
            assert [step.step for step in rank.steps][:4] == [0, 1, 2, 3]


@pytest.mark.parametrize("where", ["a-file", "no-such/../there", "one-rank"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    """It is no folder, or one rank's file is in the way: training goes on."""
    run = tmp_path / "run"
    if where == "a-file":
        run.write_text("not a folder")
    elif where == "one-rank":
        (run / "rank00001.json").mkdir(parents=True)
    else:
        run = Path("/proc/1/fdinfo") / where
    plain = job(tmp_path / "plain", "none")
    ours = job(tmp_path / "recorded", "none", *recorder(run))
    note(f"folder: {where}", plain, ours, "", "")

    assert (ours.losses, ours.stdout, ours.status) == (
        plain.losses,
        plain.stdout,
        plain.status,
    )
    said = [line for line in ours.stderr.splitlines() if "is not recorded" in line]
    assert len(said) == (1 if where == "one-rank" else 2)
    assert "Traceback" not in ours.stderr


# Ends of a process

ENDS = {
    "working directory removed": "import os, tempfile\n"
    "d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d); print('fine')",
    "stdout closed": "import sys\nprint('fine')\nsys.stdout.close()",
    "descriptor 1 closed": "import os\nprint('fine')\nos.close(1)",
    "descriptor 2 closed": "import os\nos.close(2)\nprint('fine')",
    "stderr is None": "import sys\nprint('fine')\nsys.stderr = None",
    "stderr raises": "import sys\nprint('fine')\n"
    "class E:\n    def __getattr__(s, n): raise SystemExit(9)\nsys.stderr = E()",
    "stdout raises": "import sys\nprint('fine', flush=True)\n"
    "class E:\n    def flush(s): raise ValueError\nsys.stdout = E()",
    "environment cleared": "import os, sys\n"
    "os.environ.clear(); sys.path.clear(); sys.argv.clear(); print('fine')",
    "excepthook raises": "import sys\n"
    "def hook(*a): raise KeyError('mine')\nsys.excepthook = hook\nraise ValueError(1)",
    "excepthook exits": "import sys\n"
    "def hook(*a): sys.exit(6)\nsys.excepthook = hook\nraise ValueError(1)",
    "excepthook deleted": "import sys\ndel sys.excepthook\nraise ValueError(1)",
    "late thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(1), print('late'))).start()",
    "atexit": "import atexit\natexit.register(lambda: print('bye'))\n"
    "raise SystemExit({'a': 1})",
    "last error": "import atexit, sys\n"
    "atexit.register(lambda: print(repr(sys.last_value)))\nraise ValueError(3)",
    "threads joined": "import threading\n"
    "print([t.name for t in threading.enumerate()])",
    "signal chained": "import os, signal, time\n"
    "old = signal.signal(signal.SIGTERM, lambda n, f: (callable(old) and old(n, f),"
    " print('mine')))\nos.kill(os.getpid(), signal.SIGTERM)\nprint('after')",
    "os._exit": "import os\nprint('fine', flush=True)\nos._exit(5)",
    "recursion": "import sys\ndef f(n): return f(n + 1)\n"
    "try: f(0)\nexcept RecursionError: print('deep')",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_ends_as_without_us(name: str, tmp_path: Path) -> None:
    """The same exit status and standard output, with the report at the end."""
    script = tmp_path / "script.py"
    script.write_text(ENDS[name] + "\n")

    def ended(*before: str) -> Ended:
        done = subprocess.run(
            [sys.executable, *before, str(script)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
            env={**os.environ, "PYTHONPATH": str(SCRIPTS.parents[1])},
        )
        return Ended(status=(done.returncode,), stdout=(done.stdout,), losses=())

    plain = ended()
    ours = ended("-m", "fsdpdoctor", "run", "--out", str(tmp_path / "run"))
    note(name, plain, ours, "", "")

    assert ours == plain
