"""A step's message is, to the byte, the one that nanoarrow writes."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from nanoarrow.ipc import StreamWriter

from fsdpdoctor.schema import (
    CallSites,
    Counters,
    MemorySamples,
    Spans,
    StackSamples,
    StepRecord,
    StepTimes,
)
from fsdpdoctor.schema.step_batch import batch_of, head_of
from fsdpdoctor.schema.step_message import Messages, messages_like
from tests.rig.changed import replace

PLAIN = StepRecord(
    step=3,
    start_ns=1_700_000_000_000_000_001,
    end_ns=1_700_000_000_250_000_000,
    host_start_ns=-5,
    host_end_ns=7,
    micro_batches=2,
)
RANDOM = np.random.default_rng(11)


def spans(length: int) -> Spans:
    """Spans, every column of which is filled."""
    return Spans.build(
        length,
        **{
            name: RANDOM.integers(-100, 100, length)  # fits the smallest column
            for name in Spans.columns()
        },
    )


STEPS: dict[str, tuple[StepRecord, list[str]]] = {
    "nothing": (PLAIN, []),
    "names": (PLAIN, ["a", "blocks.17", "", "träge", "\udcff"]),
    "one-row": (replace(PLAIN, spans=spans(1)), ["x"]),
    "many-rows": (replace(PLAIN, spans=spans(1001), complete=False), ["x" * 9]),
    "all-tables": (
        replace(
            PLAIN,
            spans=spans(7),
            memory=MemorySamples.build(3, unit=[0, 1, 2]),
            counters=Counters.build(5, value=2**62),
            unrecorded=StepTimes.build(2, step=[1, 2], start_ns=3, end_ns=[4, 5]),
            call_sites=CallSites.build(3, op=[1, 2, 3]),
            stack_samples=StackSamples.build(1, time_ns=9),
        ),
        ["a", "b"],
    ),
}


def written(*steps: tuple[StepRecord, list[str]]) -> list[bytes]:
    """What nanoarrow writes of each, the first with the stream's beginning."""
    content = io.BytesIO()
    stream = StreamWriter.from_writable(content)
    found = []
    for record, names in steps:
        content.seek(0)
        content.truncate()
        stream.write_array(batch_of(record, names))
        found.append(content.getvalue())
    return found


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("second", STEPS)
def test_a_message_is_nanoarrows(first: str, second: str) -> None:
    """After the pattern of any first step, any other."""
    stream, expected = written(STEPS[first], STEPS[second])

    messages = messages_like(stream, *STEPS[first])

    assert messages is not None
    assert messages.of(*STEPS[second]) == expected
    assert messages.of(*STEPS[first]) == stream[head_of(stream) :]


def test_another_pattern_is_not_followed() -> None:
    """Where the first message is of another step than is said, nobody knows why."""
    stream, _ = written(STEPS["one-row"], STEPS["nothing"])

    assert messages_like(stream, *STEPS["names"]) is None


@pytest.mark.parametrize("length", [0, 3, 40, 400])
def test_a_pattern_that_is_cut_off_is_none(length: int) -> None:
    """As is one that is something else."""
    (stream,) = written(STEPS["nothing"])
    head = head_of(stream)

    assert messages_like(stream[: head + length], *STEPS["nothing"]) is None
    with pytest.raises((ValueError, IndexError, struct.error)):
        Messages(bytes(64))
