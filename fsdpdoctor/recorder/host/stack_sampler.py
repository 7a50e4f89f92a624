"""Looks at the training thread's Python stack where no span is open.

[Note: Samples of the stack] A thread of its own notes which line of the user's code
runs where a recorded step is outside every pass, optimizer and pause. Each time it
wakes, the training thread has to give up the interpreter and get it back, which takes
ten times as long as the note. So it sleeps through passes, and through gaps that were
short the last time: the training thread, which knows where a gap begins, wakes it. It
looks by itself a few times a second, for what happens now and then. A gap without a
sample is named by its edges, the lines at which a pass or an optimizer step ended and
the next began.

The thread lives only while steps are recorded.
"""

from __future__ import annotations

import _thread
import linecache
import re
import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns, sleep
from types import FrameType

from fsdpdoctor.recorder.host.call_stack import CallSite, CallStack, frame_of
from fsdpdoctor.recorder.own_threads import start_thread
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import UNKNOWN, Activity, Within

FIRST_INTERVAL_S = 0.002
LEAST_INTERVAL_S = 0.001
MOST_INTERVAL_S = 0.25
WORTH_NS = 2_000_000
"""Gaps from this length on are looked into the next time."""
SAMPLES = 8
"""Taken of a gap as long as the last time. Then the interval doubles, so that a gap of
any length costs a few dozen at most."""

_BY_MODULE = (
    ("torch._dynamo.convert_frame", Activity.COMPILE),  # not eval_frame, which runs
    ("torch._dynamo.symbolic_convert", Activity.COMPILE),
    ("torch._inductor", Activity.COMPILE),
    ("torch.utils.data", Activity.INPUT),
    ("torch.distributed.checkpoint", Activity.CHECKPOINT),
    ("torch.serialization", Activity.CHECKPOINT),
    ("torch.distributed", Activity.COLLECTIVE),
    ("logging", Activity.LOGGING),
    ("wandb", Activity.LOGGING),
    ("mlflow", Activity.LOGGING),
    ("torch.utils.tensorboard", Activity.LOGGING),
    ("tensorboard", Activity.LOGGING),
    ("tqdm", Activity.LOGGING),
)
"""What a module's frame says, the innermost first."""

_BY_LINE = (
    (re.compile(r"\bsleep\("), Activity.SLEEP),
    (re.compile(r"\.(item|cpu|tolist|numpy)\(|synchronize\("), Activity.SYNC),
    (re.compile(r"\b(save|dump|load_state_dict|state_dict)\w*\("), Activity.CHECKPOINT),
    (re.compile(r"\bprint\(|\blog(ger|ging)?\w*\.|\.log\w*\("), Activity.LOGGING),
)
"""What a line calls, where what it calls is no Python and leaves no frame."""


class StackSampler:
    """The training thread's stack in the gaps of recorded steps."""

    def __init__(self, recording: Recording, within: Callable[[], Within]) -> None:
        self._rec = recording
        self._within = within
        self._stack = CallStack()
        self._training = 0
        self._on = False
        self._alive = False
        self._asleep = _thread.allocate_lock()  # held, but for a moment to wake it
        self._asleep.acquire()
        self._looks = False  # into a gap
        self._interval_s = FIRST_INTERVAL_S
        self._taken = 0
        self._gap: tuple[str, int] | None = None  # where, and when, the last one began
        self._lengths_ns: dict[str, int] = {}  # by place
        self._of_line: dict[str, Activity] = {}

    def turn(self, on: bool) -> None:
        """Sample from here on, or stop."""
        self._on = on
        self._gap = None
        self._look(FIRST_INTERVAL_S)  # a gap may have begun; or to its end
        if not on:
            return
        self._training = threading.get_ident()
        if not self._alive:
            self._alive = True
            start_thread(self._run)

    def edge(self, *, ends_pass: bool = False) -> None:
        """A pass, or an optimizer step, begins or ends here."""
        mine = threading.get_ident() == self._training
        # The caller's: a frame that held itself would keep all above it, and their
        # tensors, until the garbage collector comes.
        frame = sys._getframe(1) if mine else frame_of(self._training)
        site = self._stack.site(frame, 1)
        now = perf_counter_ns()
        self._rec.stacks.add(now, Activity.EDGE, site.place, site.via)
        if self._gap is not None:
            place, began = self._gap
            self._lengths_ns[place] = now - began
        self._gap = (site.place, now) if ends_pass or self._in_gap() else None
        if self._gap is None:
            return
        length_ns = self._lengths_ns.get(site.place)
        if length_ns is None:
            self._look(FIRST_INTERVAL_S)
        elif length_ns >= WORTH_NS:
            self._look(length_ns / SAMPLES / 1e9)

    def _look(self, interval_s: float) -> None:
        """Wake the thread."""
        self._interval_s = min(max(interval_s, LEAST_INTERVAL_S), MOST_INTERVAL_S)
        self._taken = 0
        self._looks = True
        if self._asleep.locked():
            self._asleep.release()

    def _run(self) -> None:  # untraced: its own thread
        try:
            while self._on:
                if self._looks:
                    sleep(self._interval_s)
                else:
                    self._asleep.acquire(timeout=MOST_INTERVAL_S)
                self._looks = self._in_gap()
                if self._looks:
                    self._sample()
        except Exception as error:
            self._on = False
            self._rec.guard.fail(error)
        finally:
            self._alive = False

    def _in_gap(self) -> bool:
        rec = self._rec
        return (
            self._on
            and rec.micro_batch == UNKNOWN
            and not rec.in_forward
            and self._within() == Within.SCRIPT
        )

    def _sample(self) -> None:
        frame = frame_of(self._training)
        if frame is None:
            return
        now = perf_counter_ns()
        modules = _modules(frame)
        site = self._stack.site(frame, 1)
        activity = self._activity(site, modules)
        self._rec.stacks.add(now, activity, site.place, site.via)
        self._taken += 1
        if self._taken % SAMPLES == 0:
            self._interval_s = min(self._interval_s * 2, MOST_INTERVAL_S)

    def _activity(self, site: CallSite, modules: list[str]) -> Activity:
        for module in modules:
            for start, activity in _BY_MODULE:
                if module == start or module.startswith(f"{start}."):
                    return activity
        known = self._of_line.get(site.place)
        if known is None:
            known = self._of_line[site.place] = _of_line(site.place)
        return known


def _modules(frame: FrameType | None, most: int = 40) -> list[str]:
    found: list[str] = []
    while frame is not None and len(found) < most:
        found.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return found


def _of_line(place: str) -> Activity:
    path, _, line = place.rpartition(":")
    text = linecache.getline(path, int(line)) if line.isdecimal() else ""
    return next((what for found, what in _BY_LINE if found.search(text)), Activity.USER)
