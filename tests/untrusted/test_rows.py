"""Rows that decode and lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    CallSites,
    Counters,
    Kind,
    Spans,
    StepRecord,
    StepTimes,
)
from fsdpdoctor.schema.step_record import SCALARS
from fsdpdoctor.untrusted.rows import (
    Lists,
    check_scalars,
    checked_table,
    with_known_names,
)

LISTS = Lists(units=2, groups=1)
SCALAR = dict.fromkeys(SCALARS, 0)


def span(**said: Any) -> Spans:
    """One span of 5 ns, as it is said otherwise."""
    return Spans.build(1, **{"kind": Kind.FORWARD, "start_ns": 5, "end_ns": 10} | said)


@pytest.mark.parametrize(
    "table",
    [
        span(unit=1, group=0, phase=2),
        span(end_ns=NO_TIME),
        StepTimes.build(1, step=3, start_ns=-5, end_ns=-4),
        Spans.build(0),
    ],
)
def test_true_rows_are_left_as_they_are(table: Any) -> None:
    """The very same table; a time may be negative, and an end not known."""
    assert checked_table(table, LISTS) is table


def test_ids_of_what_the_header_lacks_are_not_known() -> None:
    """A rank that was killed may have a unit that its header had not yet."""
    table = Spans.build(3, unit=[0, 2, -7], by_unit=[2, 1, 0], group=[1, 0, -1])

    found = checked_table(table, LISTS)

    assert found.unit.tolist() == [0, UNKNOWN, UNKNOWN]
    assert found.by_unit.tolist() == [UNKNOWN, 1, 0]
    assert found.group.tolist() == [UNKNOWN, 0, UNKNOWN]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (span(kind=99), "kind of a row is 99, which is no kind"),
        (span(kind=13), "kind of a row is 13, which is no kind"),
        (span(lane=-1), "lane of a row"),
        (span(phase=4), "phase of a row"),
        (CallSites.build(1, within=9), "within of a row"),
        (span(end_ns=4), "a row ends before it starts"),
        (span(end_ns=1 << 62), "end_ns of a row is 4611686018427387904"),
        (span(start_ns=NO_TIME + 1), "start_ns of a row is -9223372036854775807"),
        (
            Counters.build(2, time_ns=[NO_TIME, NO_TIME + 1]),
            "time_ns of a row is out of range",
        ),
        (span(bytes=1 << 62), "bytes of a row is 4611686018427387904"),
        (span(micro_batch=1 << 30), "micro_batch of a row is 1073741824"),
    ],
)
def test_a_lie_is_told_in_a_line(table: Any, words: str) -> None:
    """Which column, and what it says."""
    with pytest.raises(ValueError, match=words):
        checked_table(table, LISTS)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"step": 1 << 50}, "step of a step is 1125899906842624"),
        ({"micro_batches": -2}, "micro_batches of a step is -2"),
        ({"start_ns": -(1 << 62)}, "start_ns of a step is -4611686018427387904"),
        ({"end_ns": -1}, r"a step ends before it starts \(end_ns < start_ns\)"),
        ({"host_start_ns": 1}, "a step ends before it starts"),
    ],
)
def test_a_step_that_cannot_be(said: dict[str, int], words: str) -> None:
    """Its numbers, and its two ends."""
    check_scalars(SCALAR)

    with pytest.raises(ValueError, match=words):
        check_scalars(SCALAR | said)


def test_names_that_the_stream_lacks_are_not_known() -> None:
    """Ids count on over the stream: they are looked at when all of it is read."""
    record = StepRecord(
        step=0,
        start_ns=0,
        end_ns=1,
        host_start_ns=0,
        host_end_ns=1,
        micro_batches=1,
        spans=Spans.build(2, name=[1, 2]),
        counters=Counters.build(1, name=1),
    )

    found = with_known_names(record, 2)

    assert found.spans.name.tolist() == [1, UNKNOWN]
    assert found.counters is record.counters
    assert with_known_names(found, 2) is found
    assert np.array_equal(found.spans.start_ns, record.spans.start_ns)
