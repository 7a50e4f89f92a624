"""Looks at the training thread's Python stack where no span is open.

[Note: Samples of the stack] A thread of its own notes which line of the user's code
runs where a recorded step is outside every pass, optimizer and pause. Each time it
wakes, the training thread has to give up the interpreter while its stack is written
down, see [Note: Stacks of other threads]. So it sleeps fifty times as long as
that took, and through passes, and through gaps that were short the last time: the
training thread, which knows where a gap begins, wakes it. It looks by itself a few
times a second, for what happens now and then. A gap without a sample is named by its
edges, the lines at which a pass or an optimizer step ended and the next began.

The thread lives only while steps are recorded.
"""

from __future__ import annotations

import _thread
import linecache
import re
import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns, sleep, thread_time_ns

from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.host.call_stack import CallSite, CallStack, WaitingThread
from fsdpdoctor.recorder.host.source_paths import module_of
from fsdpdoctor.recorder.host.thread_stacks import (
    StackFrame,
    ThreadStacks,
    tell_this_thread,
)
from fsdpdoctor.recorder.own_threads import start_thread
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import UNKNOWN, Activity, Within

FIRST_INTERVAL_S = 0.002
LEAST_INTERVAL_S = 0.001
MOST_INTERVAL_S = 0.25
WORTH_NS = 2_000_000
"""Gaps from this length on are looked into the next time."""
SLEEPS_PER_SAMPLE = 50
"""At most two percent of a gap go into looking at it."""
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
"""What a frame in a module's file says, the innermost first."""

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
        self._stacks = ThreadStacks()
        self._waiting = WaitingThread(self._stack)
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
        self._least_s = LEAST_INTERVAL_S  # between two samples, for what one costs
        self._of_line: dict[str, Activity] = {}

    def turn(self, on: bool) -> None:
        """Sample from here on, or stop."""
        self._on = on
        self._gap = None
        self._look(FIRST_INTERVAL_S)  # a gap may have begun; or to its end
        if not on:
            self._waiting.close()
            return
        self._training = threading.get_ident()
        tell_this_thread()
        if not self._alive:
            self._alive = True
            self._stacks.open()
            start_thread(self._run)

    def edge(self, *, ends_pass: bool = False) -> None:
        """A pass, or an optimizer step, begins or ends here."""
        if threading.get_ident() == self._training:
            # The caller's: a frame that held itself would keep all above it, and their
            # tensors, until the garbage collector comes.
            site = self._stack.site(sys._getframe(1), 1)
        else:
            rec = self._rec
            inside = rec.micro_batch != UNKNOWN
            of = (rec.step, rec.micro_batch) if inside else None
            site = self._waiting.site(self._training, of)
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
        self._interval_s = min(max(interval_s, self._least_s), MOST_INTERVAL_S)
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
            border.last_words(self._stacks.close)
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
        now, began = perf_counter_ns(), thread_time_ns()
        frame = self._stacks.of(self._training)
        self._least_s = max(
            (thread_time_ns() - began) * SLEEPS_PER_SAMPLE / 1e9, LEAST_INTERVAL_S
        )
        if frame is None:
            return
        modules = _modules(frame)
        site = self._stack.site(frame, 1)
        activity = self._activity(site, modules)
        self._rec.stacks.add(now, activity, site.place, site.via)
        self._taken += 1
        self._interval_s = max(self._interval_s, self._least_s)
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


def _modules(frame: StackFrame | None, most: int = 40) -> list[str]:
    found: list[str] = []
    while frame is not None and len(found) < most:
        found.append(module_of(frame.f_code.co_filename))
        frame = frame.f_back
    return found


def _of_line(place: str) -> Activity:
    path, _, line = place.rpartition(":")
    text = linecache.getline(path, int(line)) if line.isdecimal() else ""
    return next((what for found, what in _BY_LINE if found.search(text)), Activity.USER)
