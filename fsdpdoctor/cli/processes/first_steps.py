"""The first steps of a script in a rehearsal of its own, which may be stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ENDS_WITHIN_S = 3.0
"""Of a script that is told to end; then it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSteps:
    """What became of the first steps."""

    status: int | None  # None: the time was over
    said: tuple[str, ...]  # lines, the script's own and ours
    seconds: float


def rehearse_first_steps(
    arguments: Sequence[str], folder: Path, limit_s: float
) -> FirstSteps:
    """Run the first steps in a process of their own, which may be stopped."""
    log = folder / "output"
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "fsdpdoctor", "rehearse", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        status = None
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # its record is closed, and can be read
        finally:
            _gone(process)
    lines = log.read_text(errors="replace").splitlines()
    return FirstSteps(
        status=status,
        said=tuple(line.strip() for line in lines if line.strip()),
        seconds=time.monotonic() - began,
    )


def _gone(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
