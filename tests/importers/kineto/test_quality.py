"""What a trace says that cannot be, and how it is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers import import_run
from tests.importers.drawn_trace import (
    DrawnTrace,
)
from tests.importers.kineto.drawn_step import (
    imported,
)


def test_r19_merged_file(tmp_path: Path) -> None:
    """Calls of two processes in one file are refused: their ids collide."""
    trace = DrawnTrace()
    trace.host("aten::add", 0, 1, cat="cpu_op")
    trace.pid = 4001
    trace.host("aten::add", 0, 1, cat="cpu_op")
    trace.host("cudaLaunchKernel", 0, 1, cat="cuda_runtime", args={"correlation": 1})
    trace.write(tmp_path / "rank0.json")

    with pytest.raises(InputError, match=r"2 processes \(pid 4000, 4001\): a merged"):
        list(import_run([tmp_path]).load())


def test_r31_durations_that_cannot_be(tmp_path: Path) -> None:
    """Kernels of one stream that overlap by more than a clock's jitter are counted,
    and a trace full of them is called unreliable.
    """
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 200)
    trace.device("a", 10, 25, launched=1)
    trace.device("b", 20, 30, launched=2)  # 5 us before a ended
    trace.device("c", 29.5, 40, launched=3)  # half a microsecond: jitter
    data = imported(trace, tmp_path)

    assert data.header.health["kernels_overlapping_on_a_stream"] == 1
    assert (
        "1 kernel began before the one before them on the same stream had ended: "
        "durations in this trace are not reliable"
    ) in data.header.warnings


def test_r34_counts_of_what_cannot_be(tmp_path: Path) -> None:
    """Kernels of no length, before their launch, and without one are counted."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 200)
    trace.device("zero", 10, 10, launched=1)
    trace.device("early", 20, 30, launched=25)
    trace.device("orphan", 40, 50)
    data = imported(trace, tmp_path)

    assert data.header.health == {
        "events": 6,
        "repaired": 0,
        "dropped": 0,
        "negative_durations": 0,
        "kernels_before_their_launch": 1,
        "kernels_of_no_length": 1,
        "kernels_without_a_launch": 1,
    }


def test_r35_base_time_is_added(tmp_path: Path) -> None:
    """Files of different origins compare: times are since the Unix epoch."""
    trace = DrawnTrace(metadata={"baseTimeNanoseconds": 1_790_857_026_000_000_000})
    trace.host("ProfilerStep#0", 4_955_104_754_192.022, 4_955_104_754_200.0)
    data = imported(trace, tmp_path)

    assert data.steps[0].host_start_ns == 1_795_812_130_754_192_022
