"""What a command takes, its worker processes included."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.01
"""Between looks at the memory of the processes; the kernel keeps no peak of it."""

PR_SET_CHILD_SUBREAPER = 36  # of Linux' prctl

KIB, MB = 1024, 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a command took, and what it printed."""

    wall_s: float
    cpu_s: float  # of all its processes, from their start to their end
    peak_mb: float  # resident, of the largest process; pages of mapped files included
    anon_mb: float  # of it, memory that no file backs; of the largest process, sampled
    output: str


def run(command: Sequence[str]) -> Cost:
    """Run a command and wait for all its processes, and for no other of ours, as a
    cluster that it uses. Raises SystemExit if it fails.
    """
    # Workers that outlive their parent become ours: they must be counted, too.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    others = _children(os.getpid())
    with tempfile.TemporaryFile("w+") as output:
        begin = time.monotonic()
        child = subprocess.Popen(command, stdout=output)
        watch = _Watch(child.pid)
        watch.start()
        cpu_s, peak_mb, wall_s = 0.0, 0.0, 0.0
        left = {child.pid}
        while left:
            pid, status, used = os.wait4(left.pop(), 0)
            cpu_s += used.ru_utime + used.ru_stime
            peak_mb = max(peak_mb, used.ru_maxrss * KIB / MB)
            if pid == child.pid:
                wall_s = time.monotonic() - begin
                child.returncode = os.waitstatus_to_exitcode(status)
                if status:
                    raise SystemExit(f"failed with {child.returncode}: {command}")
            left = left or _children(os.getpid()) - others
        watch.stop()
        output.seek(0)
        return Cost(
            wall_s=wall_s,
            cpu_s=cpu_s,
            peak_mb=peak_mb,
            anon_mb=watch.anon_mb,
            output=output.read(),
        )


class _Watch(threading.Thread):
    """Looks at the memory of a process and its descendants until told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.anon_mb = 0.0

    def run(self) -> None:
        """Look, and wait."""
        while not self._over.wait(POLL_S):
            for pid in _descendants(self._pid):
                self.anon_mb = max(self.anon_mb, _anonymous_mb(pid))

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self.join()


def _descendants(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for child in _children(pid):
        yield from _descendants(child)


def _children(pid: int) -> set[int]:
    """What a process started; none where it has just ended."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [(task / "children").read_text().split() for task in tasks]
    except OSError:
        return set()
    return {int(child) for child in itertools.chain(*children)}


def _anonymous_mb(pid: int) -> float:
    """Memory that only a swap could take; files in memory (tmpfs) count as such."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    kib = [int(one.split()[1]) for one in lines if one.startswith(_NO_FILE)]
    return sum(kib) * KIB / MB


_NO_FILE = ("RssAnon:", "RssShmem:")
