"""Looks at the training thread's Python stack where no span is open.

[Note: Samples of the stack] A thread of its own wakes a few times in a recorded step
and, where the step is outside every pass, optimizer and pause, notes which line of the
user's code runs. It lives only while steps are recorded, holds the interpreter for some
ten microseconds at a time, and takes no lock: a fork may happen at any moment. A gap
too short for it is named by its edges, the lines at which a pass or an optimizer step
ended and the next began.
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
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import UNKNOWN, Activity, Within

FIRST_INTERVAL_S = 0.002
LEAST_INTERVAL_S = 0.001
MOST_INTERVAL_S = 0.25
SAMPLES = 16
"""Taken of one step before the interval doubles, so that a step of any length costs
a few dozen at most."""

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


def start_thread(run: Callable[[], None]) -> None:
    """Not `threading.Thread`, whose start waits for the thread to run."""
    _thread.start_new_thread(run, ())


class StackSampler:
    """The training thread's stack in the gaps of recorded steps."""

    def __init__(self, recording: Recording, within: Callable[[], Within]) -> None:
        self._rec = recording
        self._within = within
        self._stack = CallStack()
        self._training = 0
        self._on = False
        self._alive = False
        self._interval_s = FIRST_INTERVAL_S
        self._taken = 0
        self._of_line: dict[str, Activity] = {}

    def turn(self, on: bool) -> None:
        """Sample from here on, or stop."""
        self._on = on
        if not on:
            return
        self._training = threading.get_ident()
        if not self._alive:
            self._alive = True
            start_thread(self._run)

    def boundary(self) -> None:
        """A step ends."""
        if self._taken < SAMPLES // 2:  # so few: more of the next step
            self._interval_s = max(self._interval_s / 2, LEAST_INTERVAL_S)
        self._taken = 0

    def edge(self) -> None:
        """A pass, or an optimizer step, begins or ends here."""
        mine = threading.get_ident() == self._training
        frame = sys._getframe() if mine else frame_of(self._training)
        site = self._stack.site(frame, 1)
        self._rec.stacks.add(perf_counter_ns(), Activity.EDGE, site.place, site.via)

    def _run(self) -> None:
        try:
            while self._on:
                sleep(self._interval_s)
                if self._in_gap():
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
