"""Steps of a trace, and which of them are set aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.quantities import US
from fsdpdoctor.schema import (
    Kind,
)
from tests.importers.drawn_trace import (
    GATHER,
    DrawnTrace,
    collective,
)
from tests.importers.kineto.drawn_step import (
    imported,
)


def test_r37_the_last_step_is_kept(tmp_path: Path) -> None:
    """Every whole step counts, the last one too, with the kernels that it launched
    wherever they ran.
    """
    trace = DrawnTrace()
    for step in range(3):
        start = 100 * step
        trace.host(f"ProfilerStep#{step}", start, start + 99.9)
        trace.device("gemm", start + 150, start + 240, launched=start + 10)
    data = imported(trace, tmp_path)

    assert [step.step for step in data.steps] == [0, 1, 2]
    assert [step.duration_ns / US for step in data.steps] == [240.0, 100.0, 100.0]
    assert [int((step.spans.kind == Kind.KERNEL).sum()) for step in data.steps] == [
        1
    ] * 3


def test_steps_from_optimizers_where_none_are_marked(tmp_path: Path) -> None:
    """Between two optimizer steps lies one step, if profiler.step() was not called."""
    trace = DrawnTrace()
    for step in range(3):
        trace.host("Optimizer.step#SGD.step", 100 * step + 80, 100 * step + 90)
        trace.device("gemm", 100 * step + 30, 100 * step + 60, launched=100 * step + 20)
    data = imported(trace, tmp_path)

    assert [
        (step.step, step.host_start_ns / US, step.host_end_ns / US)
        for step in data.steps
    ] == [(0, 90.0, 190.0), (1, 190.0, 290.0)]


def ranges(*names: str) -> DrawnTrace:
    """Ranges of 90 us, every 100 us, each with a kernel."""
    trace = DrawnTrace()
    for at, name in enumerate(names):
        trace.host(name, 100 * at, 100 * at + 90)
        trace.device("gemm", 100 * at + 30, 100 * at + 60, launched=100 * at + 20)
    return trace


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["step 3", "step 4", "step 5"], [3, 4, 5]),
        (["## Iteration#7 ##", "## Iteration#8 ##", "## Iteration#9 ##"], [7, 8, 9]),
        (["train_step_0", "train_step_1", "train_step_2"], [0, 1, 2]),
        (["ProfilerStep #3", "ProfilerStep #4"], [3, 4]),
        (["step 3", "step 4"], []),
        (["step 3", "step 5", "step 4"], []),
        (["layer 3", "layer 4", "layer 5"], []),
    ],
)
def test_ranges_of_the_scripts_own(
    tmp_path: Path, names: list[str], found: list[int]
) -> None:
    """Three or more that are numbered in turn are steps; others say nothing."""
    data = imported(ranges(*names), tmp_path)

    assert [step.step for step in data.steps] == found


def steps_of(
    count: int, *, first_took: float = 20, kernels_in_first: int = 4
) -> DrawnTrace:
    """Steps of 100 ms, each with an all-reduce of 20 us and four kernels."""
    trace = DrawnTrace()
    for step in range(count):
        start = 100_000.0 * step
        trace.host(f"ProfilerStep#{step}", start, start + 99_999)
        took = 20 if step else first_took
        trace.device(
            "ncclDevKernel_AllReduce_Sum_f32",
            start + 10,
            start + 10 + took,
            launched=start + 1,
            stream=GATHER,
            args=collective("allreduce", 9, 9),
        )
        for kernel in range(4):
            at = start + 60_000 + 10 * kernel
            if step == 0 and kernel >= kernels_in_first:
                trace.host("cudaLaunchKernel", at - 50, at - 49, cat="cuda_runtime")
                continue
            trace.device("gemm", at, at + 5, launched=at - 50)
    return trace


def test_r25_capture_skew(tmp_path: Path) -> None:
    """A first collective that waited for other ranks' captures is not training time:
    its step is set aside, and said to be.
    """
    data = imported(steps_of(5, first_took=50_000), tmp_path)

    assert [step.step for step in data.steps] == [1, 2, 3, 4]
    assert data.header.warnings[0] == (
        "step 0 is set aside: its first collective took 50.0 ms, where the median of "
        "its kind is 20.0 us: it waited for ranks whose capture began later. Start "
        "captures together, after a barrier"
    )
    assert int((data.outside.kind == Kind.KERNEL).sum()) == 4


def test_r34_device_events_begin_late(tmp_path: Path) -> None:
    """A first step whose kernels were lost is set aside; a sound one is kept."""
    late = imported(steps_of(3, kernels_in_first=0), tmp_path)
    (tmp_path / "sound").mkdir()
    sound = imported(steps_of(3), tmp_path / "sound")

    assert [step.step for step in late.steps] == [1, 2]
    assert "most of its kernels are missing" in late.header.warnings[0]
    assert [step.step for step in sound.steps] == [0, 1, 2]
