"""Which gaps are looked into: told from edges at moments that the test gives."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder.host import stack_sampler
from fsdpdoctor.recorder.host.source_paths import INSTALLED, PYTHON, TORCH
from fsdpdoctor.recorder.host.stack_sampler import StackSampler
from fsdpdoctor.schema import UNKNOWN, Activity, Within


class Clock:
    """Moments that are set by hand."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        """The moment that was set."""
        return self.ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The sampler's clock; its thread never starts."""
    clock = Clock()
    monkeypatch.setattr(stack_sampler, "perf_counter_ns", clock)
    monkeypatch.setattr(stack_sampler, "thread_time_ns", lambda: 0)
    monkeypatch.setattr(stack_sampler, "start_thread", lambda run: None)
    return clock


@pytest.fixture
def recording() -> Any:
    """Between two steps, where the script's own lines run."""
    stacks = SimpleNamespace(add=lambda *row: None)
    return SimpleNamespace(stacks=stacks, micro_batch=UNKNOWN, in_forward=False)


def gap_of(sampler: StackSampler, recording: Any, clock: Clock, length_ns: int) -> bool:
    """A gap after a backward, up to a forward; whether the thread is woken for it."""
    sampler._looks = False
    recording.micro_batch = 0  # as it is while the backward's end is told
    sampler.edge(ends_pass=True)
    woken = sampler._looks
    clock.ns += length_ns
    recording.micro_batch = 0
    sampler.edge()
    clock.ns += 50 * MS  # the pass
    return woken


def test_a_gap_is_looked_into_when_it_was_long_the_last_time(
    recording: Any, clock: Clock
) -> None:
    """And the first time; a step with no gap to speak of wakes nobody."""
    sampler = StackSampler(recording, lambda: Within.SCRIPT)
    sampler.turn(True)
    lengths = [1 * MS, 1 * MS, 2 * MS, 30 * MS, 1 * MS, 1 * MS]
    woken = [gap_of(sampler, recording, clock, length) for length in lengths]
    assert woken == [True, False, False, True, True, False]


def test_a_pass_is_no_gap(recording: Any, clock: Clock) -> None:
    """An edge at which a forward begins is not the beginning of a gap."""
    sampler = StackSampler(recording, lambda: Within.SCRIPT)
    sampler.turn(True)
    sampler._looks = False
    recording.in_forward = True
    sampler.edge()
    assert not sampler._looks


def test_samples_are_spread_over_the_length_of_the_gap(
    recording: Any, clock: Clock
) -> None:
    """Eight of a gap as long as the last time, and none closer than a millisecond."""
    sampler = StackSampler(recording, lambda: Within.SCRIPT)
    sampler.turn(True)
    gap_of(sampler, recording, clock, 400 * MS)
    gap_of(sampler, recording, clock, 3 * MS)
    assert sampler._interval_s == 0.05
    gap_of(sampler, recording, clock, 3 * MS)
    assert sampler._interval_s == 0.001


def test_the_thread_wakes_only_to_look(recording: Any, clock: Clock) -> None:
    """It sleeps behind a lock that is open for the moment of waking alone."""
    sampler = StackSampler(recording, lambda: Within.SCRIPT)
    assert sampler._asleep.locked()
    sampler.turn(True)
    assert sampler._asleep.acquire(blocking=False)  # as the thread does
    recording.in_forward = True
    sampler.edge()
    assert sampler._asleep.locked()
    sampler.turn(False)
    assert not sampler._asleep.locked()  # so that the thread ends


class Stacks:
    """What is noted."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Activity, str, str]] = []

    def add(self, time_ns: int, activity: Activity, place: str, via: str) -> None:
        """One row."""
        self.rows.append((time_ns, activity, place, via))


def sampled(recording: Any, path: Path, text: str) -> Stacks:
    """A sample of a script's thread, which calls `look` from a line of it."""
    stacks = recording.stacks = Stacks()
    sampler = StackSampler(recording, lambda: Within.SCRIPT)
    sampler.turn(True)
    path.write_text(text)
    exec(compile(text, str(path), "exec"), {"look": sampler._sample})
    return stacks


@pytest.mark.parametrize(
    ("line", "activity"),
    [
        ("time.sleep(look())", Activity.SLEEP),
        ("loss.item(look())", Activity.SYNC),
        ("torch.cuda.synchronize(look())", Activity.SYNC),
        ("torch.save(look())", Activity.CHECKPOINT),
        ("optimizer.state_dict(look())", Activity.CHECKPOINT),
        ("logger.info(look())", Activity.LOGGING),
        ("print(look())", Activity.LOGGING),
        ("blogs.post(look())", Activity.USER),
    ],
)
def test_a_line_says_what_it_does(
    line: str, activity: Activity, recording: Any, clock: Clock, tmp_path: Path
) -> None:
    """Where what it calls leaves no frame of Python's."""
    calls = f"""\
class Anything:
    def __getattr__(self, name): return Anything()
    def __call__(self, *_): return Anything()
time = loss = torch = optimizer = logger = blogs = Anything()
print = Anything()
{line}
"""
    clock.ns = 7
    ((at, found, place, _),) = sampled(recording, tmp_path / "train.py", calls).rows
    assert (at, found) == (7, activity)
    assert place.endswith("train.py:6")


@pytest.mark.parametrize(
    ("file", "activity"),
    [
        (f"{TORCH}utils/data/dataloader.py", Activity.INPUT),
        (f"{TORCH}distributed/checkpoint/state_dict_saver.py", Activity.CHECKPOINT),
        (f"{TORCH}distributed/distributed_c10d.py", Activity.COLLECTIVE),
        (f"{PYTHON}logging/__init__.py", Activity.LOGGING),
        (f"{INSTALLED[0]}wandb/sdk/wandb_run.py", Activity.LOGGING),
        (f"{INSTALLED[0]}wandbox/run.py", Activity.USER),
        ("/home/me/wandb/run.py", Activity.USER),
    ],
)
def test_a_module_on_the_stack_says_more_than_the_line(
    file: str, activity: Activity, recording: Any, clock: Clock, tmp_path: Path
) -> None:
    """By the files of all frames, the innermost first, and by whole names."""
    stacks = recording.stacks = Stacks()
    sampler = StackSampler(recording, lambda: Within.SCRIPT)
    sampler.turn(True)
    names = {"look": sampler._sample}
    exec(compile("def within():\n    look()\n", file, "exec"), names)
    exec(compile("x = 1\nwithin()\n", str(tmp_path / "a.py"), "exec"), names)
    ((_, found, _, _),) = stacks.rows
    assert found == activity


def test_a_long_gap_is_looked_into_less_and_less(
    recording: Any, clock: Clock, tmp_path: Path
) -> None:
    """The interval doubles with every eight samples, up to the most."""
    recording.stacks = Stacks()
    sampler = StackSampler(recording, lambda: Within.SCRIPT)
    sampler.turn(True)
    seen = []
    for at in range(1, 73):
        sampler._sample()
        if at % 8 == 0:
            seen.append(sampler._interval_s)
    assert seen == [0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.25, 0.25]
    assert len(recording.stacks.rows) == 72


def test_looking_takes_a_small_share_of_a_gap(
    recording: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a sample costs, the thread sleeps fifty times."""
    recording.stacks = Stacks()
    times = iter([0, 100_000, 200_000, 600_000])
    monkeypatch.setattr(stack_sampler, "thread_time_ns", lambda: next(times))
    sampler = StackSampler(recording, lambda: Within.SCRIPT)
    sampler.turn(True)
    sampler._sample()
    assert sampler._interval_s == 0.005
    sampler._sample()
    assert sampler._interval_s == 0.02
    sampler._look(0.001)
    assert sampler._interval_s == 0.02


def test_a_thread_that_is_gone_has_no_stack(recording: Any, clock: Clock) -> None:
    """Nothing is noted."""
    recording.stacks = Stacks()
    sampler = StackSampler(recording, lambda: Within.SCRIPT)
    sampler._training = -1
    sampler._sample()
    assert recording.stacks.rows == []
    assert stack_sampler._of_line("?") is Activity.USER
