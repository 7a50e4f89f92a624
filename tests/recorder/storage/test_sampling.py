"""Which steps are recorded."""

from __future__ import annotations

import pytest

from fsdpdoctor.errors import UsageError
from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder.storage.sampling import Adaptive, sampling_of


def recorded(steps: str | None, every: int | None, count: int = 12) -> list[int]:
    """The steps that are recorded of so many."""
    sampling = sampling_of(steps, every)
    return [step for step in range(count) if sampling.records(step)]


def test_records_the_steps_that_were_asked_for() -> None:
    """A range, a stride, both; B is not included."""
    assert recorded("3:6", None) == [3, 4, 5]
    assert recorded(":2", None) == [0, 1]
    assert recorded("10:", None) == [10, 11]
    assert recorded(None, 5) == [0, 5, 10]
    assert recorded("1:10", 4) == [1, 5, 9]


@pytest.mark.parametrize(
    ("steps", "every"), [("5", None), ("a:b", None), ("6:5", None), (None, 0)]
)
def test_refuses_what_makes_no_sense(steps: str | None, every: int | None) -> None:
    """Each with a sentence."""
    with pytest.raises(UsageError, match=r"expected|must be"):
        sampling_of(steps, every)


def simulate(cost_ns: int, steps: int) -> list[int]:
    """The steps that are recorded when recording one costs so much of 100 ms."""
    sampling = Adaptive()
    found = []
    for step in range(steps):
        if sampling.records(step):
            found.append(step)
            sampling.learn(100 * MS, cost_ns)
    return found


def test_a_short_run_keeps_at_least_ten_steps() -> None:
    """Whatever recording costs: the start is dense."""
    assert len(simulate(20 * MS, 20)) >= 10
    assert simulate(0, 20) == [*range(12), 12, 16]


def test_stays_below_its_share_of_the_run() -> None:
    """Ten percent of a recorded step is under one percent of a long run."""
    for cost_ns in (MS, 10 * MS, 50 * MS):
        found = simulate(cost_ns, 20_000)
        assert len(found) * cost_ns < 0.01 * 20_000 * 100 * MS


@pytest.mark.parametrize("cost_ns", [0, MS, 3 * MS, 10 * MS])
def test_has_paid_for_its_dense_start_after_some_hundred_steps(cost_ns: int) -> None:
    """Twelve steps in a row are half a percent of 256 where each costs a tenth."""
    found = simulate(cost_ns, 256)

    assert found[:12] == [*range(12)]
    assert len(found) * cost_ns <= 0.01 * 256 * 100 * MS


def test_ranks_of_different_cost_share_steps() -> None:
    """Whoever records more records also what the others do."""
    assert set(simulate(30 * MS, 5_000)) <= set(simulate(MS, 5_000))
