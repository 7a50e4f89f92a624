"""Odd things that a training does between its steps, by name."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.faults.oddities import say


def callbacks_cleared(step: int) -> None:
    """The collector's callbacks are thrown away, ours among them."""
    if step == 5:
        gc.callbacks.clear()


def forks(step: int) -> None:
    """A child that trains on in its own way, and ends."""
    if step in (4, 9):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0)
        say("child", os.waitpid(child, 0)[1])


def forks_and_returns(step: int) -> None:
    """A child that runs to the end of the script, as the parent does."""
    if step == 9:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            atexit.register(os._exit, 0)  # gloo would wait for threads that are gone
            raise SystemExit(0)
        say("child", os.waitpid(child, 0)[1])


def runs_programs(step: int) -> None:
    """Programs of its own, with what is open."""
    if step == 6:
        done = subprocess.run(
            [sys.executable, "-c", "print('sub')"], capture_output=True, check=False
        )
        say(done.stdout)


def exits_in_a_hook(step: int) -> None:
    """A module's hook ends the script."""
    if step == 8:
        handle = nn.modules.module.register_module_forward_hook(lambda *a: sys.exit(4))
        atexit.register(handle.remove)


def late_threads(step: int) -> None:
    """Threads that outlive the training, one after the other."""
    if step == 2:
        before = threading.main_thread()
        for number in range(3):
            before = threading.Thread(target=_says_after, args=(before, number))
            before.start()


def _says_after(other: threading.Thread, number: int) -> None:
    other.join()
    say("late", number)


def umask(step: int) -> None:
    """Files of others can be read by nobody."""
    if step == 0:
        os.umask(0o777)


def swaps_modules(step: int) -> None:
    """A module of torch's is imported anew."""
    if step == 7:
        module = importlib.import_module("torch.optim.sgd")
        importlib.reload(module)


def streams_swapped(step: int) -> None:
    """Standard streams are the script's own for a while."""
    if step == 5:
        with contextlib.redirect_stderr(io.StringIO()) as text:
            torch.ones(1)
        say(text.getvalue() == "")


def closes_descriptors(step: int) -> None:
    """What is open and not the script's own is closed; others get the numbers."""
    if step != 6:
        return
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "rank00000." in str(link.readlink()):
                os.close(int(link.name))
    mine = [tempfile.TemporaryFile() for _ in range(6)]  # noqa: SIM115 - to the end
    atexit.register(lambda: os._exit(9) if any(map(_size, mine)) else None)


def _size(file: Any) -> int:
    return os.fstat(file.fileno()).st_size


def stops_and_goes_on(step: int) -> None:
    """A pause of the whole process."""
    if step == 6:
        subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)


WITHIN: dict[str, Callable[[int], None]] = {
    "forks": forks,
    "forks-and-returns": forks_and_returns,
    "runs-programs": runs_programs,
    "exits-in-a-hook": exits_in_a_hook,
    "late-threads": late_threads,
    "umask": umask,
    "swaps-modules": swaps_modules,
    "streams-swapped": streams_swapped,
    "closes-descriptors": closes_descriptors,
    "stops-and-goes-on": stops_and_goes_on,
    "callbacks-cleared": callbacks_cleared,
}
