"""Stacks of threads that run, wait, and are many."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor.recorder.host import thread_stacks
from fsdpdoctor.recorder.host.position import Positions, frames_of
from fsdpdoctor.recorder.host.thread_stacks import (
    ThreadStacks,
    ToldFrame,
    tell_this_thread,
)
from tests.rig.ranks import run_python


@contextmanager
def thread(run: Callable[[], Any]) -> Iterator[int]:
    """A thread's identity, which has told itself, while it runs until the event is
    set in it.
    """
    told_itself = threading.Event()

    def tell_and_run() -> None:
        tell_this_thread()
        told_itself.set()
        run()

    one = threading.Thread(target=tell_and_run, daemon=True)
    one.start()
    assert told_itself.wait(10)
    assert one.ident is not None
    yield one.ident
    one.join(10)


def compiled(source: str, path: str, **names: Any) -> dict[str, Any]:
    """A module's names, as if it were a file's."""
    exec(compile(source, path, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def this_thread_has_told_itself() -> None:
    """As a training thread has."""
    tell_this_thread()


@pytest.fixture(params=[False, True], ids=["by-its-state", "among-all"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the interpreter that this is, and as on others."""
    if not request.param and not hasattr(ctypes.pythonapi, "_Py_DumpTraceback"):
        pytest.skip("this interpreter writes all threads down only")
    monkeypatch.setattr(thread_stacks, "WHOLE_WHEN_LINKED", request.param)


def told(frame: ToldFrame | None) -> list[tuple[str, str, int | None]]:
    """A stack by file, function and line, innermost first."""
    return [
        (Path(f.f_code.co_filename).name, f.f_code.co_name, f.f_lineno)
        for f in frames_of(frame)
    ]


WAITS = "def wait(over):\n    inner(over)\n\ndef inner(over):\n    over.acquire()\n"


@pytest.mark.usefixtures("each_way")
def test_a_waiting_thread_is_told_line_by_line() -> None:
    """File, function and line of each frame, innermost first; and of no other."""
    over = threading.Lock()
    over.acquire()
    names = compiled(WAITS, "/somewhere/wärts \U0001f600.py")
    stacks = ThreadStacks()
    with thread(lambda: names["wait"](over)) as ident:
        while len(told(stacks.of(ident))) < 2 or told(stacks.of(ident))[0][2] != 5:
            time.sleep(0.001)
        found = told(stacks.of(ident))
        own = told(stacks.of(threading.get_ident()))
        over.release()
    stacks.close()

    file = "wärts \U0001f600.py"
    assert found[:2] == [(file, "inner", 5), (file, "wait", 2)]
    assert "test_a_waiting_thread_is_told_line_by_line" in [n for _, n, _ in own[:5]]


@pytest.mark.usefixtures("each_way")
def test_a_thread_that_is_gone_has_no_stack() -> None:
    """It is not told, though it had told itself."""
    with thread(lambda: None) as ident:
        pass
    stacks = ThreadStacks()
    assert stacks.of(-1) is None
    assert stacks.of(ident) is None
    stacks.close()


def test_the_file_is_begun_again_before_it_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often it is asked; a dump that has no room tells nothing, once."""
    monkeypatch.setattr(thread_stacks, "SIZE_BYTES", 1 << 15)
    monkeypatch.setattr(thread_stacks, "ROOM_BYTES", 1 << 14)
    stacks = ThreadStacks()
    me = threading.get_ident()
    room = thread_stacks.SIZE_BYTES // 400  # that a stack takes at least
    here = [stacks.of(me) is not None for _ in range(room)]
    assert all(here)
    monkeypatch.setattr(thread_stacks, "ROOM_BYTES", 0)
    stacks._at = thread_stacks.SIZE_BYTES - 8
    os.lseek(stacks._descriptor, stacks._at, os.SEEK_SET)
    assert stacks.of(me) is None
    assert stacks.of(me) is not None
    stacks.close()


def test_nothing_is_written_to_who_got_the_number(tmp_path: Path) -> None:
    """A script that closes what it did not open, and opens data of its own."""
    stacks = ThreadStacks()
    me = threading.get_ident()
    assert stacks.of(me) is not None
    ours = stacks._descriptor
    data = tmp_path / "data"
    opened = os.open(data, os.O_RDWR | os.O_CREAT)
    os.dup2(opened, ours)
    assert stacks.of(me) is not None
    assert stacks._descriptor != ours
    assert data.read_bytes() == b""
    stacks.close()
    os.write(ours, b"x")  # still open, and theirs
    os.close(ours)
    os.close(opened)


def test_a_script_keeps_the_file_that_got_the_mapping_s_number(tmp_path: Path) -> None:
    """A mapping keeps a low number of its own, and closes whatever that leads to."""

    def numbers() -> set[int]:
        """That lead to a file in memory of ours."""
        return {
            int(path.name)
            for path in Path("/proc/self/fd").iterdir()
            if path.is_symlink() and "fsdpdoctor-stacks" in str(path.readlink())
        }

    before = numbers()
    for use in (ThreadStacks.close, lambda stacks: stacks.of(threading.get_ident())):
        stacks = ThreadStacks()
        assert stacks.of(threading.get_ident()) is not None
        ours = numbers() - before
        for number in ours:
            os.close(number)
        mine = [os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT) for _ in range(9)]
        use(stacks)
        assert [os.fstat(one).st_size for one in mine] == [0] * 9
        stacks.close()
        del stacks
        assert [os.write(one, b"x") for one in mine] == [1] * 9
        for one in mine:
            os.close(one)
        (tmp_path / "data").unlink()


def test_its_descriptor_is_given_back() -> None:
    """As many are open after it as before; asked again, it opens another."""
    before = len([*Path("/proc/self/fd").iterdir()])
    stacks = ThreadStacks()
    for _ in range(3):
        assert stacks.of(threading.get_ident()) is not None
        stacks.close()
    assert len([*Path("/proc/self/fd").iterdir()]) == before


STRESS = """
import gc, sys, threading, time
from fsdpdoctor.recorder.host.call_stack import CallStack
from fsdpdoctor.recorder.host.thread_stacks import ThreadStacks, tell_this_thread

tell_this_thread()
sys.setswitchinterval(1e-6)
gc.set_threshold(5, 1, 1)
training = threading.get_ident()
over = False
seen = [0]

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        for _ in range(20):
            len([0])

def look():
    stacks, stack = ThreadStacks(), CallStack()
    while not over:
        frame = stacks.of(training)
        stack.site(frame, 8)
        seen[0] += frame is not None

threads = [threading.Thread(target=look) for _ in range(2)]
for thread in threads:
    thread.start()

def numbers(depth):
    if depth:
        yield from numbers(depth - 1)
    yield [Cycle() for _ in range(3)]

end = time.monotonic() + 1
while time.monotonic() < end or seen[0] < 50:
    for _ in numbers(20):
        pass
over = True
for thread in threads:
    thread.join()
print("seen")
"""


def test_frames_that_come_and_go_are_told_without_harm() -> None:
    """Two threads look, as fast as they can, at one that calls and returns, while
    the garbage collector runs code of its own in the midst of it.
    """
    ended = run_python("-c", STRESS)
    assert (ended.status, ended.stdout) == (0, "seen\n"), ended.stderr


THREADS_OF_OTHERS = """
import ctypes, threading, time
from fsdpdoctor.recorder.host.thread_stacks import ThreadStacks, tell_this_thread

libc = ctypes.CDLL(None)
Start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
address = ctypes.c_void_p
libc.pthread_create.argtypes = [address, address, Start, address]
libc.pthread_join.argtypes = [ctypes.c_ulong, address]
come = Start(lambda _: 0)  # comes to the interpreter, and goes
over = False

def threads_come_and_go():
    while not over:
        started = [ctypes.c_ulong() for _ in range(8)]
        for one in started:
            libc.pthread_create(ctypes.byref(one), None, come, None)
        for one in started:
            libc.pthread_join(one, None)

tell_this_thread()
others = [threading.Thread(target=threads_come_and_go) for _ in range(2)]
for other in others:
    other.start()
me, stacks = threading.get_ident(), ThreadStacks()
end, seen = time.monotonic() + 6, 0
while time.monotonic() < end:
    seen += stacks.of(me) is not None
over = True
for other in others:
    other.join()
print("seen" if seen > 100 else seen)
"""


def test_threads_that_python_did_not_start_come_and_go_without_harm() -> None:
    """As gloo's do, which drop tensors: their states are in the interpreter's list
    before they are whole. A dump of all threads ended five of ten such processes.
    """
    ended = run_python("-c", THREADS_OF_OTHERS)
    assert (ended.status, ended.stdout) == (0, "seen\n"), ended.stderr


def test_frames_of_running_threads_are_asked_for_in_one_place() -> None:
    """Where a thread stands in a collective. Walking those of a running one ended a
    recorded rank in a segmentation fault.
    """
    recorder = Path(thread_stacks.__file__).parents[1]
    asking = [
        path.name
        for path in recorder.rglob("*.py")
        if "sys._current_frames(" in path.read_text()
    ]
    assert asking == ["position.py"]


def test_a_collective_that_another_thread_stands_in_is_told_with_its_tensors() -> None:
    """Its frames are asked for once, and again when something has moved."""
    import torch
    from torch.distributed import distributed_c10d

    over = threading.Lock()
    over.acquire()
    source = "def all_reduce(tensor, group=None):\n    over.acquire()\n"
    names = compiled(source, str(distributed_c10d.__file__), over=over)
    positions = Positions()
    with thread(lambda: names["all_reduce"](torch.ones(3, 2))) as ident:
        frame = sys._current_frames()
        while frame[ident].f_code.co_name != "all_reduce":
            time.sleep(0.001)
            frame = sys._current_frames()
        del frame
        time.sleep(0.05)  # until it waits
        first = positions.now(ident, 4, 1, 0, standing=True)
        kept = dict(positions._asked)
        again = positions.now(ident, 4, 1, 0, standing=True)
        assert positions._asked == kept
        positions.forget()
        assert positions._asked == {}
        over.release()
    positions.close()
    assert first.call is not None
    assert (first.call.name, first.call.operands) == ("all_reduce", "float32[3, 2]")
    assert again == first
    assert [f.function for f in first.stack][-1] == "all_reduce"


def test_as_a_rank_ends_no_thread_is_asked_that_may_just_be_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dump of all threads that met one of gloo's there ended a job that was done in a
    segmentation fault. The training's own thread is told all the same.
    """

    def all_threads(*_: object) -> None:
        raise AssertionError("all threads were asked for")

    monkeypatch.setattr(thread_stacks, "WHOLE_WHEN_LINKED", False)
    monkeypatch.setattr(faulthandler, "dump_traceback", all_threads)
    over, ready = threading.Lock(), threading.Event()
    over.acquire()

    def train() -> None:
        tell_this_thread()
        ready.set()
        over.acquire()

    positions = Positions()
    with thread(train) as ident:
        ready.wait()
        time.sleep(0.05)  # until it waits
        told = positions.now(ident, 4, 1, 0, standing=False)
        over.release()
    positions.close()

    assert [frame.function for frame in told.stack][-1].endswith("train")
    assert told.threads == ()
