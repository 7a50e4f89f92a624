"""`fsdpdoctor run --autotune=restart`: after the training, `tune` tries the rest.

What a running job can be told it has tried itself; other units, dtypes or meshes need
new starts, which `tune` makes once the job has come to its end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from fsdpdoctor.recorder.launch.run_script import Target, become

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Which end a launcher. A terminal's SIGINT its processes get as this one does."""


def train_then_tune(training: Sequence[str], nproc: str, target: Target) -> None:
    """Run a launcher to its end, then become `tune`; where the training fails, or a
    signal ends it, end as it did.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    process = subprocess.Popen(training)
    with _passing_on(process) as came:
        status = process.wait()
    if status < 0:
        status = 128 - status
    if status or came:
        raise SystemExit(status or 128 + came[0])
    command = tune_command(nproc, target)
    click.echo(
        "fsdpdoctor: autotune: the training is over; what needs a new start is tried "
        "in short runs of it",
        err=True,
    )
    become(command)


def tune_command(nproc: str, target: Target) -> list[str]:
    """`tune` of the same job, without what it has tried itself."""
    ours = (sys.executable, "-m", "fsdpdoctor", "tune", "--restart-only")
    return [*ours, "--nproc-per-node", nproc, *target.words]


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Inside, signals are the launcher's; those that came."""
    came: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if number != signal.SIGINT:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
