"""A rank writes where it stands once nothing progresses, and takes it away."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d

from fsdpdoctor.rank_end import GONE, Call, EndKind, GroupCount, Position
from fsdpdoctor.rank_end_files import process_state, read_fatal, read_stall
from fsdpdoctor.recorder.host import position, stall_watch
from fsdpdoctor.recorder.host.position import call_in, frames_of
from fsdpdoctor.recorder.host.rank_ending import rank_end
from fsdpdoctor.recorder.host.stall_watch import StallWatch
from fsdpdoctor.recorder.launch.fatal_signals import FatalSignals
from fsdpdoctor.recorder.patching import ErrorBorder
from fsdpdoctor.recorder.storage.clocks import HostClock
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.run_writer import Heartbeat
from fsdpdoctor.schema import Kind, Phase
from tests.rig.ranks import run_python

WITHIN_S = 60.0
"""On a busy machine; nothing waits so long otherwise."""


def until(asked: Callable[[], bool]) -> bool:
    """Whether something comes true."""
    deadline = time.monotonic() + WITHIN_S
    while not asked():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def recording(folder: Path) -> Recording:
    """A rank's own state, with a heartbeat in a folder."""
    return Recording(
        HostClock(), ErrorBorder(lambda reason: None), Heartbeat(folder, 0)
    )


def test_a_stand_still_is_written_and_taken_away(tmp_path: Path) -> None:
    """The stack is this test's, the step the recording's; an event ends it."""
    rec = recording(tmp_path)
    rec.step = rec.heartbeat.step = 7
    rec.beat(Kind.FORWARD, Phase.FORWARD, 0)
    stem, path = tmp_path / "rank00000", tmp_path / "rank00000.stall"
    watch = StallWatch(rec, tmp_path, rank=0, after_s=0.2)
    watch.start()

    assert until(path.exists)
    stall = read_stall(stem)
    assert stall is not None
    assert (stall.rank, stall.after_s, stall.position.step) == (0, 0.2, 7)
    frame = next(
        f for f in stall.position.stack if f.file.endswith(Path(__file__).name)
    )
    assert frame.function == "test_a_stand_still_is_written_and_taken_away"
    rec.beat(Kind.FORWARD, Phase.FORWARD, 0)
    written = json.loads(path.read_text())["position"]["progress_unix_ns"]
    assert until(lambda: not path.exists() or _moved(path) > written)
    watch.stop(moved_on=True)
    assert until(lambda: not path.exists())


def _moved(path: Path) -> int:
    with contextlib.suppress(OSError):
        return int(json.loads(path.read_text())["position"]["progress_unix_ns"])
    return 0


def test_a_thread_that_held_it_up_is_told_at_the_end(tmp_path: Path) -> None:
    """Its collective ends as the rank goes on, so that it is seen no more; once the
    rank has gone on for long it has nothing to do with the end.
    """
    over = threading.Event()
    code = compile(
        "def broadcast(over):\n    over.wait()\n", distributed_c10d.__file__, "exec"
    )
    names: dict[str, Any] = {}
    exec(code, names)
    thread = threading.Thread(
        target=names["broadcast"], args=(over,), name="metrics", daemon=True
    )
    rec = recording(tmp_path)
    watch = StallWatch(rec, tmp_path, rank=0, after_s=60.0)
    thread.start()
    watch._look()
    watch._write(time.monotonic())  # as after that time
    over.set()
    thread.join()
    assert [one.thread for one in watch.position().threads] == ["metrics"]
    rec.beat(Kind.FORWARD, Phase.FORWARD, 0)
    watch._look()
    assert [one.thread for one in watch.position().threads] == ["metrics"]
    watch._stood_s -= 61.0
    assert watch.position().threads == ()
    watch.stop(moved_on=True)


@pytest.mark.parametrize("issued_since", [False, True])
def test_groups_that_are_gone_are_told_as_they_were_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issued_since: bool
) -> None:
    """Counted up to half a second before, they are told only where nothing has been
    issued since: two ranks count at two moments, and would not agree.
    """
    counted = (GroupCount(name="0", ranks=(0, 1), seq=19),)
    told = [counted, ()]
    monkeypatch.setattr(stall_watch, "group_counts", lambda: told[0])
    monkeypatch.setattr(position, "group_counts", lambda: told[0])
    rec = recording(tmp_path)
    watch = StallWatch(rec, tmp_path, rank=0, after_s=60.0)
    rec.beat(Kind.ALL_GATHER, Phase.FORWARD, 0)
    watch._look()
    if issued_since:
        rec.beat(Kind.ALL_GATHER, Phase.FORWARD, 0)
    told.pop(0)  # as in `destroy_process_group`
    watch._look()

    assert watch.position().groups == (() if issued_since else counted)
    watch.stop(moved_on=True)


def test_nothing_is_watched_where_it_is_off(tmp_path: Path) -> None:
    """No thread, and no file."""
    watch = StallWatch(recording(tmp_path), tmp_path, rank=0, after_s=0.0)
    watch.start()
    time.sleep(0.3)
    watch.stop(moved_on=False)

    assert list(tmp_path.glob("*.stall")) == []


def test_the_end_has_type_words_and_line() -> None:
    """Secrets are left out of the words; the stack is the exception's."""
    try:
        raise KeyError("api_key=sk-abcdefghijklmnop")
    except KeyError as caught:
        error = caught
    end = rank_end("exception: KeyError: x", error, Position(step=3), 5)

    assert end is not None
    assert (end.kind, end.exception) == (EndKind.EXCEPTION, "KeyError")
    assert end.message == "'api_key=<redacted>'"
    assert end.position is not None
    assert end.position.step == 3
    frame = end.position.user_frame
    assert frame is not None
    assert frame.function == "test_the_end_has_type_words_and_line"
    assert frame.code == 'raise KeyError("api_key=<redacted>")'


@pytest.mark.parametrize(
    ("ended", "kind", "signal_name", "status"),
    [
        ("done", EndKind.DONE, None, None),
        ("signal: SIGTERM", EndKind.SIGNAL, "SIGTERM", None),
        ("exit: 3", EndKind.EXIT, None, 3),
    ],
)
def test_ends_without_an_exception(
    ended: str, kind: EndKind, signal_name: str | None, status: int | None
) -> None:
    """As the header's words say."""
    end = rank_end(ended, None, Position(step=0), 5)

    assert end is not None
    assert (end.kind, end.signal, end.status) == (kind, signal_name, status)
    assert rank_end("detached: ours", None, Position(step=0), 5) is None


ABORTS = """
import os, sys
from pathlib import Path
from fsdpdoctor.recorder.launch.fatal_signals import FatalSignals

FatalSignals(Path(sys.argv[1]), 0).start()

def native():
    os.abort()

if os.fork() == 0:
    os.abort()  # a worker's end is not the rank's
os.wait()
native()
"""


def test_a_fatal_signal_leaves_its_stack(tmp_path: Path) -> None:
    """The status is the signal's, stderr stays empty, and a child writes nothing."""
    ended = run_python("-c", ABORTS, str(tmp_path))
    fatal = read_fatal(tmp_path / "rank00000")

    assert ended.status == -signal.SIGABRT
    assert ended.stderr == ""
    assert fatal is not None
    assert fatal.reason == "Aborted"
    assert [frame.function for frame in fatal.stack] == ["<module>", "native"]
    assert not fatal.native


CUT_SHORT = """Fatal Python error: Aborted

Thread 0x00007fb5c24c66c0 (most recent call first):
  File "/x/fsdpdoctor/recorder/host/stack_sampler.py", line 141 in _run

Thread 0x00007fb5e49e1b80 (most recent call first):
  File "/x/torch/_library/custom_ops.py", line 475 in backend_impl
  File "/x/torch/_ops.py"Fatal Python error: Segmentation fault
"""


def test_a_stack_that_a_second_fault_cut_is_read_to_there(tmp_path: Path) -> None:
    """A thread without Python aborts while the main thread runs, whose frames change
    under the hand that writes them down.
    """
    (tmp_path / "rank00000.fatal").write_text(CUT_SHORT)
    fatal = read_fatal(tmp_path / "rank00000")

    assert fatal is not None
    assert fatal.reason == "Aborted"
    assert fatal.native
    assert [frame.function for frame in fatal.stack] == ["backend_impl"]


def test_who_has_the_handler_keeps_it(tmp_path: Path) -> None:
    """Pytest's own is left as it is."""
    assert faulthandler.is_enabled()
    assert FatalSignals(tmp_path, 0).start() is False
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_has_ended_is_gone() -> None:
    """Of another host nothing is known."""
    import os
    import socket

    now = time.time_ns()
    assert process_state(socket.gethostname(), os.getpid(), now) in ("R", "S")
    assert process_state(socket.gethostname(), 2**22 + 1, now) == GONE
    assert process_state("elsewhere", os.getpid(), now) is None
    clock = time.time_ns() - time.perf_counter_ns()
    assert process_state(socket.gethostname(), os.getpid(), now, clock) in ("R", "S")
    earlier = clock - 3600 * 10**9
    assert process_state(socket.gethostname(), os.getpid(), now, earlier) is None
    assert process_state(socket.gethostname(), 2**22 + 1, now, earlier) == GONE


def test_an_error_that_is_being_noted_is_still_of_its_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch asks for the backend, and more, before it passes an error on."""
    seen: list[Call | None] = []
    logger: Any = importlib.import_module("torch.distributed.c10d_logger")

    def noted(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        seen.append(call_in(frames_of(sys._getframe())))
        return {}

    monkeypatch.setattr(logger, "_get_msg_dict", noted)
    with pytest.raises(ValueError, match="Default process group"):
        distributed_c10d.all_reduce(torch.ones(7))

    assert seen == [Call(name="all_reduce", operands="float32[7]")]


def test_what_stands_still_is_written_anew_each_second(tmp_path: Path) -> None:
    """Not at the first look, and not at each: a living rank's word is that old."""
    rec = recording(tmp_path)
    path = tmp_path / "rank00000.stall"
    watch = StallWatch(rec, tmp_path, rank=0, after_s=2.0)
    watch._look()
    watch._look()
    assert not path.exists()
    watch._moved_s -= 2.0
    watch._look()
    first = path.read_bytes()
    watch._look()
    assert path.read_bytes() == first
    watch._wrote_s -= 1.0
    watch._look()
    assert path.read_bytes() != first
    rec.beat(Kind.FORWARD, Phase.FORWARD, 0)
    watch._look()
    assert not path.exists()
    watch.stop(moved_on=True)


def test_the_nodes_other_ranks_are_told_by_their_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 5 of a node from 4 on: running, gone, and those that say nothing."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "6")
    said = {4: {"pid": 1}, 5: {"pid": 1}, 6: {"pid": 2**22 + 1}, 7: {"pid": "x"}}
    for rank, header in said.items():
        (tmp_path / f"rank{rank:05}.json").write_text(json.dumps(header))
    (tmp_path / "rank00008.json").write_text("{")
    (tmp_path / "rank00009.json").write_text("[]")
    watch = StallWatch(recording(tmp_path), tmp_path, rank=5, after_s=2.0)
    watch._write(time.monotonic())
    stall = read_stall(tmp_path / "rank00005")
    assert stall is not None
    assert set(stall.neighbours) == {"4", "6"}
    assert stall.neighbours["4"] in "RSDI"
    assert stall.neighbours["6"] == GONE
