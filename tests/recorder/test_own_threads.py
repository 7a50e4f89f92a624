"""Signals of the script's are not for our threads, nor for what we write."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from fsdpdoctor.recorder.own_threads import Door, start_thread
from tests.rig.ranks import run_python

WAITS = """
import os, signal, sys, time
from fsdpdoctor.recorder.own_threads import Door, start_thread
start_thread(time.sleep, 60)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(0.2)
print(signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1)
"""


def test_a_signal_that_the_script_waits_for_comes_to_it(tmp_path: Path) -> None:
    """With a thread of ours that took it, it would end the process."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS)

    assert run_python(str(script)).ok().stdout == "True\n"


def test_a_thread_blocks_all_but_its_own_errors() -> None:
    """And who starts it has the signals that it had."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    masks: list[set[signal.Signals]] = []
    done = threading.Event()

    def look() -> None:
        masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, [])))  # type: ignore[arg-type]
        done.set()

    start_thread(look)

    assert done.wait(60)
    assert {signal.SIGTERM, signal.SIGXFSZ, signal.SIGUSR1} <= masks[0]
    assert masks[0].isdisjoint({signal.SIGSEGV, signal.SIGABRT})
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


LIMITED = """
import os, resource, signal, sys
from fsdpdoctor.recorder.own_threads import unsignalled
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
read, write = os.pipe()
os.close(read)
found = []
for descriptor in (file, write):
    try:
        with unsignalled():
            os.write(descriptor, b"x" * 10)
            os.write(descriptor, b"x")
    except OSError as error:
        found.append(type(error).__name__)
if found == ["OSError", "BrokenPipeError"]:
    os.write(write, b"theirs")
"""


def test_a_write_that_fails_is_an_error_of_ours_alone(tmp_path: Path) -> None:
    """A write of the script's ends it, as it has asked for."""
    script = tmp_path / "limited.py"
    script.write_text(LIMITED)

    assert run_python(str(script), str(tmp_path / "file")).status == -signal.SIGPIPE


ENDS_INSIDE = """
import time
import torch.distributed as dist
from fsdpdoctor.recorder.own_threads import Door, start_thread
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
group, door = dist.group.WORLD, Door()
def run():
    while door.enter():
        try:
            group._get_sequence_number_for_group()
        finally:
            door.leave()
for _ in range(4):
    start_thread(run)
time.sleep(0.2)
print("ended")
"""


def test_python_ends_while_no_thread_is_in_cplusplus(tmp_path: Path) -> None:
    """Else it would be of SIGABRT: the interpreter is given up in that call, and the
    thread that asks for it again is ended in a frame which may not be unwound.
    """
    script = tmp_path / "ends.py"
    script.write_text(ENDS_INSIDE)

    assert run_python(str(script)).ok().stdout == "ended\n"


def test_a_door_is_shut_when_who_is_inside_has_left() -> None:
    """It waits no longer than it may, and lets nobody in after."""
    door = Door()
    assert door.enter()
    assert not door.shut(patience_s=0.01)
    door.leave()

    assert door.shut()
    assert not door.enter()
