"""Rows come out as they were added, whatever their number and order."""

from __future__ import annotations

import sys
from threading import Thread

import numpy as np
import pytest

from fsdpdoctor.recorder.storage.step_buffer import MemoryBuffer, SpanBuffer
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Kind, Lane, Phase


def filled(count: int) -> SpanBuffer:
    """Spans that are told by their units, in passes 0, 1, 2 in turn."""
    buffer = SpanBuffer()
    for unit in range(count):
        buffer.add(
            Kind.FORWARD, Lane.COMPUTE, Phase.FORWARD, 3, unit % 3, unit, 10, 2**62
        )
    return buffer


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 129, 1000])
def test_as_many_come_out_as_went_in(count: int) -> None:
    """There is room for some at first, and more is made."""
    buffer = filled(count)

    assert len(buffer) == count
    columns = buffer.detach(count, {})
    assert columns["unit"].tolist() == list(range(count))
    assert set(columns["end_ns"].tolist()) <= {2**62}
    assert len(buffer) == 0


def test_every_column_is_in_its_place() -> None:
    """A span and a sample whose numbers all differ."""
    buffer = SpanBuffer()
    buffer.add(
        Kind.ALL_GATHER,
        Lane.ALL_GATHER,
        Phase.BACKWARD,
        flags=17,
        micro_batch=0,
        unit=18,
        start=19,
        end=20,
        op=21,
        by_unit=22,
        issued=23,
        size=24,
        group=25,
        seq=26,
        name=27,
        value=28,
    )
    found = {name: int(one) for name, (one,) in buffer.detach(1, {0: 4}).items()}
    assert found == {
        "kind": Kind.ALL_GATHER,
        "lane": Lane.ALL_GATHER,
        "phase": Phase.BACKWARD,
        "flags": 17,
        "micro_batch": 4,
        "unit": 18,
        "start_ns": 19,
        "end_ns": 20,
        "op": 21,
        "by_unit": 22,
        "issued_ns": 23,
        "bytes": 24,
        "group": 25,
        "seq": 26,
        "stream": UNKNOWN,
        "name": 27,
        "value": 28,
    }
    memory = MemoryBuffer()
    memory.add(1, 2, Phase.FORWARD, 3, 4, 5, 6, 7)
    sample = {name: int(one) for name, (one,) in memory.detach(1).items()}
    assert sample == {
        "time_ns": 1,
        "unit": 2,
        "phase": Phase.FORWARD,
        "allocated_bytes": 3,
        "reserved_bytes": 4,
        "peak_bytes": 5,
        "unsharded_bytes": 6,
        "rss_bytes": 7,
    }


def test_the_first_are_taken_and_the_rest_stays() -> None:
    """A step ends where others of the next have begun."""
    buffer = filled(200)

    buffer.drop(50)
    assert buffer.detach(100, {})["unit"].tolist() == list(range(50, 150))
    buffer.add(Kind.RESHARD, Lane.HOST, Phase.OTHER, 0, UNKNOWN, 7, NO_TIME, 1)
    assert buffer.kinds == {Kind.FORWARD, Kind.RESHARD}
    assert buffer.detach(51, {})["unit"].tolist() == [*range(150, 200), 7]


def test_what_was_taken_is_not_written_over() -> None:
    """The block is used again while the disk's thread still reads."""
    buffer = filled(10)
    taken = buffer.detach(10, {})
    for _ in range(10):
        buffer.add(Kind.RESHARD, Lane.HOST, Phase.OTHER, 0, 0, 99, 0, 0)

    assert taken["unit"].tolist() == list(range(10))


@pytest.mark.parametrize(
    ("of_pass", "expected"),
    [
        ({}, [UNKNOWN] * 6),
        ({0: 5, 1: 6, 2: 7}, [5, 6, 7, 5, 6, 7]),
        ({1: 0}, [UNKNOWN, 0, UNKNOWN, UNKNOWN, 0, UNKNOWN]),
        ({-40: 9, 2: 1, 900: 3}, [UNKNOWN, UNKNOWN, 1, UNKNOWN, UNKNOWN, 1]),
    ],
)
def test_passes_become_their_micro_batches(
    of_pass: dict[int, int], expected: list[int]
) -> None:
    """One that has none is not known, and is given nobody else's."""
    assert filled(6).detach(6, of_pass)["micro_batch"].tolist() == expected


def test_what_was_learnt_later_is_in_the_rows() -> None:
    """By op, and once."""
    buffer = SpanBuffer()
    for op in (1, 2):
        buffer.add(Kind.UNSHARD, Lane.HOST, Phase.OTHER, 4, 0, 0, 0, 1, op=op)
    buffer.learn_use(2, Phase.BACKWARD, 3)
    buffer.learn_flag(1, 8)

    columns = buffer.detach(2, {0: 0, 3: 1})
    assert columns["phase"].tolist() == [Phase.OTHER, Phase.BACKWARD]
    assert columns["micro_batch"].tolist() == [0, 1]
    assert columns["flags"].tolist() == [12, 4]
    assert columns["op"].dtype == np.int64


def test_threads_add_side_by_side() -> None:
    """A collective of a background thread is recorded beside the training's hooks."""
    buffer, each, threads = SpanBuffer(), 20_000, 4
    before = sys.getswitchinterval()

    def adds(number: int) -> None:
        for value in range(each):
            buffer.add(
                Kind.COLLECTIVE, Lane.COMPUTE, Phase.OTHER, 0, 0, number, value, 0
            )

    sys.setswitchinterval(1e-6)
    try:
        started = [Thread(target=adds, args=(number,)) for number in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    finally:
        sys.setswitchinterval(before)

    columns = buffer.detach(len(buffer), {})
    for number in range(threads):
        mine = columns["start_ns"][columns["unit"] == number]
        assert mine.tolist() == list(range(each))
