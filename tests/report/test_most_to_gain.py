"""What has most to gain, of findings that are made here."""

from __future__ import annotations

import pytest

from fsdpdoctor.finding import Advice
from fsdpdoctor.quantities import MS
from fsdpdoctor.report.most_to_gain import most_to_gain
from fsdpdoctor.report.value import BestChange, MostToGain
from tests.report.test_verdict import row

LOADER = row("FD402", 30 * MS, advice=(Advice(text="Load ahead."),))
STEP_NS = 100 * MS


def best(gain_ns: int) -> BestChange:
    """A change that the simulator backs."""
    return BestChange(
        text="",
        code=None,
        apply=None,
        predicted_gain_ns=gain_ns,
        gain_range_ns=(0, gain_ns),
        memory_cost_bytes=None,
    )


def test_what_no_simulation_backs_is_named_where_it_costs_more() -> None:
    """A loader of 30 ms before a change that wins 16; the change alone where it wins
    as much.
    """
    found = most_to_gain([LOADER], best(16 * MS), STEP_NS)

    assert found == MostToGain(code="FD402", text="Load ahead.", up_to_ns=30 * MS)
    assert most_to_gain([LOADER], None, STEP_NS) == found
    assert most_to_gain([LOADER], best(30 * MS), STEP_NS) is None


def test_the_costliest_is_named() -> None:
    """Whatever the order of the findings."""
    rank = row("FD401", 40 * MS, advice=(Advice(text="Balance."),))
    found = most_to_gain([LOADER, rank], None, STEP_NS)
    assert found is not None
    assert found.code == "FD401"


@pytest.mark.parametrize(
    "finding",
    [
        row("FD402", 30 * MS, "info", advice=(Advice(text="Load ahead."),)),
        row("FD402", 30 * MS),
        row("FD402", None, advice=(Advice(text="Load ahead."),)),
        row("FD101", 30 * MS, advice=(Advice(text="A larger micro-batch."),)),
        row("FD402", 4 * MS, advice=(Advice(text="Load ahead."),)),
        row("FD301", 30 * MS, advice=(Advice(text="", predicted_gain_ns=2 * MS),)),
    ],
    ids=["information", "no advice", "no cost", "a symptom", "small", "simulated"],
)
def test_others_are_not_named(finding: object) -> None:
    """What promises nothing, is the exposure itself, or was simulated."""
    assert most_to_gain([finding], None, STEP_NS) is None  # type: ignore[list-item]


def test_without_a_judged_step_nothing_is() -> None:
    """There is no step of which it would be a part."""
    assert most_to_gain([LOADER], None, None) is None
