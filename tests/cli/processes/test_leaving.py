"""A process ends of its own accord while threads of it are at work."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpdoctor.cli.processes.leaving import leave
from tests.rig.ranks import run_python

AT_WORK = """
import atexit, sys, threading, time
import torch, torch.distributed as dist
from fsdpdoctor.cli.processes.leaving import leave
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
group = dist.group.WORLD
def work():
    while True:  # in C++, which gives the interpreter up and asks for it again
        group._get_sequence_number_for_group()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
atexit.register(sys.stdout.write, "cleared away\\n")
time.sleep(0.2)
sys.stdout.write("served\\n")
leave()
"""


def test_it_ends_well_and_clears_away(tmp_path: Path) -> None:
    """Python's own end is one of SIGABRT then."""
    script = tmp_path / "at_work.py"
    script.write_text(AT_WORK)

    assert run_python(str(script)).ok().stdout == "served\ncleared away\n"


def test_its_end_is_pythons_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails on the way keeps nothing else from being done."""
    done: list[object] = []

    def fails() -> None:
        done.append("at exit")
        raise KeyboardInterrupt

    monkeypatch.setattr(threading, "_shutdown", lambda: done.append("threads"))
    monkeypatch.setattr(atexit, "_run_exitfuncs", fails)
    monkeypatch.setattr(os, "_exit", done.append)
    end: Callable[[], object] = leave
    end()

    assert done == ["threads", "at exit", 0]
