"""The device allocator's events in a trace."""

from __future__ import annotations

import json
from pathlib import Path

from fsdpdoctor.importers import import_run
from fsdpdoctor.importers.reader.memory_events import memory_events
from fsdpdoctor.quantities import US
from fsdpdoctor.schema import Evidence
from tests.importers.drawn_trace import DrawnTrace, rank_metadata
from tests.importers.real_traces import load


def event(at: float, allocated: object, kind: int = 1) -> dict[str, object]:
    """One change of an allocator, of 1 GB reserved."""
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
        "ts": at,
        "args": {
            "Addr": 139926520725504,
            "Bytes": 8,
            "Device Id": 0,
            "Device Type": kind,
            "Total Allocated": allocated,
            "Total Reserved": 10**9,
        },
    }


def test_samples_lie_in_their_step(tmp_path: Path) -> None:
    """Each change is a sample of the step in which the host made it; the CPU's
    allocator, other devices and changes outside the steps are left out.
    """
    trace = DrawnTrace(metadata={**rank_metadata(0, 1), "profile_memory": 1})
    for step in range(2):
        trace.host(f"ProfilerStep#{step}", 100 * step, 100 * step + 100)
        trace.device("gemm", 100 * step + 20, 100 * step + 90, launched=100 * step + 5)
    other = event(45, 9)
    other["args"] = {**other["args"], "Device Id": 1}  # type: ignore[dict-item]
    trace.events += [event(50, 7), event(40, 5), other, event(60, 3, kind=0)]
    trace.events += [event(150, 11), event(250, 13)]
    trace.write(tmp_path / "rank0.json")
    (data,) = import_run([tmp_path]).load()

    found = [
        (
            (step.memory.time_ns / US).tolist(),
            step.memory.allocated_bytes.tolist(),
            step.memory.peak_bytes.tolist(),
            step.memory.reserved_bytes.tolist(),
        )
        for step in data.steps
    ]
    assert found == [
        ([40.0, 50.0], [5, 7], [5, 7], [10**9, 10**9]),
        ([150.0], [11], [11], [10**9]),
    ]
    # Retries and fragments, which a judgement of the allocator needs, are not in it.
    assert Evidence.ALLOCATOR not in data.evidence


def test_damaged_events_are_left_out() -> None:
    """Numbers past int64, no numbers, a name inside other text, a cut."""
    texts = [
        json.dumps(event(at, value)) for at, value in ((1, 2**70), (2, "x"), (3, 4))
    ]
    texts.append('{"ph": "X", "name": "\\"[memory]\\"", "args": {}}')
    texts.append(json.dumps(event(5, 6))[:-20])

    found = memory_events(", ".join(texts).encode())

    assert (found.time_ns.tolist(), found.allocated_bytes.tolist()) == ([3 * US], [4])


def test_a_real_trace() -> None:
    """T4: 26,770 changes of the device's allocator, of 6,629,508,096 bytes at most."""
    (data,) = load("exposed_216k")

    assert sum(len(step.memory) for step in data.steps) == 26_770
    assert {int(step.memory.allocated_bytes.max()) for step in data.steps} == {
        6_629_508_096
    }
