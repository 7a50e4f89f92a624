"""What-if: plans under the words that their prediction allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.finding import Advice
from fsdpdoctor.quantities import MS
from fsdpdoctor.report import Report
from fsdpdoctor.simulate.plans.predict import Prediction
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.pages.whatif import FASTER, NOISE, SMALLER, front_tables
from fsdpdoctor_dashboard.pages.whatif_model import memory_cost
from tests.dashboard.pages.test_findings import row
from tests.simulate.steps import step


@pytest.fixture
def report(library: Library) -> Report:
    """Without advice."""
    return replace(library.wait("before").report, findings=())


def plan(merge: int, gain_ms: int, memory: int = 0) -> Prediction:
    """A change of 100 ms steps, each predicted to within 5 ms."""
    return Prediction(
        plan=Plan(merge=merge),
        step=step(layers=2),
        step_ns=(100 - gain_ms) * MS,
        error_ns=5 * MS,
        gain_ns=gain_ms * MS,
        exposed_ns={},
        peak_bytes=None,
        memory_cost_bytes=memory,
        gathered_peak_bytes=0,
        assumptions=(),
        forbidden=None,
    )


def test_a_plan_that_loses_is_not_worth_it(report: Report) -> None:
    """Each has its own words, the largest gain first."""
    found = [plan(2, 8), plan(3, 20), plan(4, 2), plan(5, -9, memory=-1)]
    titles = [part.children for part in front_tables(found, report)[::2]]
    tables = [str(part) for part in front_tables(found, report)[1::2]]

    assert titles == [FASTER, NOISE, SMALLER]
    assert tables[0].index("merge 3") < tables[0].index("merge 2")
    assert "merge 4" in tables[1]
    assert "merge 5" in tables[2]


def test_what_is_not_there_has_no_head(report: Report) -> None:
    """Only plans that win: one table."""
    won = replace(plan(2, 50), error_ns=0)
    assert len(front_tables([won], report)) == 2


def test_memory_is_what_advice_to_do_the_same_says(report: Report) -> None:
    """The larger of the two, and not known where advice does not know it."""
    found = plan(2, 8, memory=100)

    def advised(cost: int | None) -> Report:
        advice = Advice(text="merge", change={"merge": 2}, memory_cost_bytes=cost)
        return replace(report, findings=(row("FD202", 3, advice=(advice,)),))

    assert memory_cost(report, found) == 100
    assert memory_cost(advised(900), found) == 900
    assert memory_cost(advised(-9), found) == 100
    assert memory_cost(advised(None), found) is None
