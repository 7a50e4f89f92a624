"""Steps count for the settings under which they ran whole."""

from __future__ import annotations

import time

import pytest

from fsdpdoctor.recorder.autotune import step_lengths
from fsdpdoctor.recorder.autotune.decisions import Decision, What
from fsdpdoctor.recorder.autotune.step_lengths import (
    Block,
    Length,
    StepLengths,
    blocks_of,
)


def decision(*blocks: tuple[int, bool]) -> Decision:
    """Blocks from pass 10 on."""
    return Decision(number=1, at_pass=10, what=What.TRY, blocks=blocks)


def steps(*lengths: float, passes: int = 1, first: int = 10) -> list[Length]:
    """Steps of so many passes, from one on."""
    return [
        Length(first + passes * at, first + passes * (at + 1), ns)
        for at, ns in enumerate(lengths)
    ]


def test_the_first_step_after_a_change_settles() -> None:
    """Two blocks of the same settings in a row need no second one."""
    told = decision((2, False), (2, True), (2, True), (2, False))

    found = blocks_of(told, steps(1, 2, 3, 4, 5, 6, 7, 8), settling=1)

    assert found == [
        Block(False, [1, 2]),
        Block(True, [4]),
        Block(True, [5, 6]),
        Block(False, [8]),
    ]


def test_a_step_across_a_change_counts_for_neither() -> None:
    """Of two passes where blocks were made for one."""
    told = decision((3, False), (3, True))

    found = blocks_of(told, steps(1, 2, 3, passes=2), settling=0)

    assert found == [Block(False, [1]), Block(True, [3])]


def test_a_decision_says_where_it_is_in_force() -> None:
    """In its tried blocks, and never after."""
    told = decision((2, False), (1, True), (1, False))

    assert [told.tries(at) for at in range(9, 16)] == [
        *(False, False, False),
        True,
        *(False, False, False),
    ]
    assert told.end_pass == 14
    assert Decision.of_text(told.to_text()) == told
    with pytest.raises(ValueError, match="it is no decision"):
        Decision.of_text("{}")


def test_steps_are_as_long_as_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """From first pass to first pass; the next one lies so many steps ahead."""
    times = iter([100, 300, 700])
    monkeypatch.setattr(step_lengths, "perf_counter_ns", lambda: next(times))
    lengths = StepLengths(on_device=False)
    for at in (0, 2, 4):
        lengths.begins(at)

    assert list(lengths.known) == [Length(0, 2, 200), Length(2, 4, 400)]
    assert (lengths.usual_ns(), lengths.passes) == (300, 2)
    assert lengths.ahead(3) == 10
    assert (lengths.until(4), lengths.until(5)) == (True, False)
    assert time.perf_counter_ns() > 0
