"""A command whose output goes to a file without secrets, and that ends in time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fsdpdoctor.recorder.storage.run_folder import VARIABLE
from fsdpdoctor.redact.redacted_log import RedactedLog

GRACE_S = 40.0
"""Between asking a job to end and killing it. torchrun gives its ranks 30 s."""


def run_logged(
    command: Sequence[str],
    log: Path,
    timeout_s: float | None,
    environment: Mapping[str, str] | None = None,
    started: Callable[[subprocess.Popen[bytes]], None] = lambda _: None,
) -> int | None:
    """Its exit status; None where the time was up. `environment` is added to ours.

    `started` is told of the process: who runs several in threads can end them.
    """
    kept = {k: v for k, v in os.environ.items() if k != VARIABLE}
    process = subprocess.Popen(
        command,
        env=kept | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    started(process)
    assert process.stdout is not None
    writer = RedactedLog(process.stdout, log)
    writer.start()
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)
        writer.finish()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a job that is still there, and what it started."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
