"""What-if: knobs that an address sets, and what a plan is said to give."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.quantities import MS
from fsdpdoctor.report import Report
from fsdpdoctor.simulate.plans.predict import Prediction
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.plan_knobs import control_values, knobs_of
from fsdpdoctor_dashboard.pages.whatif import outcome_words, page
from tests.dashboard.said import said
from tests.rig.changed import replace
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


def test_a_plan_is_worth_what_its_error_allows() -> None:
    """A gain, a loss, or no difference that the prediction can tell."""
    words = [outcome_words(plan(2, gain), 100 * MS) for gain in (20, -9, 2, -3)]

    slower = "100 ms to 109 ms +- 5.00 ms"
    none = "No difference beyond the prediction's own error"
    assert words == [
        "Faster by 20.0 ms per step (20.0 %): 100 ms to 80.0 ms +- 5.00 ms.",
        f"Slower by 9.00 ms per step (9.0 %), {slower}: not worth it.",
        f"{none}: 100 ms to 98.0 ms +- 5.00 ms.",
        f"{none}: 100 ms to 103 ms +- 5.00 ms.",
    ]


def test_an_address_sets_the_knobs(library: Library) -> None:
    """Each as the plan says; a damaged one is said, and changes nothing."""

    def controls(text: str) -> tuple[dict[str, Any], str]:
        run = library.wait("before")
        context = Context(base="/", theme="light", runs=(run,), query={"plan": text})
        made: Any = page(context)
        parts = [
            p for p in made._traverse() if getattr(p, "id", "").startswith("knob-")
        ]
        values = {p.id.removeprefix("knob-"): p.value for p in parts}
        return values, " ".join(one.words for one in said("whatif", made))

    usual = control_values(knobs_of(Plan()))
    asked, words = controls('{"merge":2,"wrap":"Block"}')
    assert asked == {**usual, "merge": "2", "rest": ['{"wrap":"Block"}']}
    assert "damaged" not in words
    kept, words = controls("{")
    assert kept == usual
    assert "the plan is damaged" in words
