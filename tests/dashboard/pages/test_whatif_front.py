"""What the search found: plans under the words that their prediction allows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from dash import html

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.cli.processes.rank_in_place import write_ranking
from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder.autotune.ranking import Ranking
from fsdpdoctor.recorder.autotune.trials import TRIALS, save_trials
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.simulate.plans.predict import Prediction
from fsdpdoctor_dashboard.pages.whatif_front import (
    FASTER,
    NOISE,
    SMALLER,
    front_tables,
    trials_part,
)
from tests.dashboard.pages.pictures.test_trial_points import RANKED, TRIED
from tests.simulate.steps import step


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


def test_a_plan_that_loses_is_not_worth_it() -> None:
    """Each has its own words, the largest gain first."""
    found = [plan(2, 8), plan(3, 20), plan(4, 2), plan(5, -9, memory=-1)]
    titles = [part.children for part in front_tables(found, (), UnitNames())[::2]]
    tables = [str(part) for part in front_tables(found, (), UnitNames())[1::2]]

    assert titles == [FASTER, NOISE, SMALLER]
    assert tables[0].index("merge 3") < tables[0].index("merge 2")
    assert "merge 4" in tables[1]
    assert "merge 5" in tables[2]


def test_what_is_not_there_has_no_head() -> None:
    """Only plans that win: one table."""
    won = replace(plan(2, 50), error_ns=0)
    assert len(front_tables([won], (), UnitNames())) == 2


def test_a_row_is_a_button_that_sets_its_plan() -> None:
    """Reached by key, and named for the change."""
    table: Any = front_tables([plan(2, 20), plan(3, 10)], (), UnitNames())[1]
    buttons: list[Any] = [p for p in table._traverse() if isinstance(p, html.Button)]
    plans = [json.loads(getattr(b, "data-plan"))["plan"] for b in buttons]

    assert [button.children for button in buttons] == ["merge 2", "merge 3"]
    assert plans == ['{"merge":2}', '{"merge":3}']


def test_what_is_not_worth_it_is_quiet() -> None:
    """Its heading and its table are faint; those worth it are not."""
    parts: list[Any] = front_tables([plan(2, 20), plan(3, 2)], (), UnitNames())

    assert [part.className for part in parts] == ["", "", "quiet", "quiet"]


def test_what_is_assumed_stands_beside_the_plan() -> None:
    """A plan is worth it only as far as that holds."""
    assumed = replace(plan(2, 20), assumptions=("groups do not slow each other",))

    assert "Assumed: groups do not slow each other." in str(
        front_tables([assumed], (), UnitNames())
    )


def test_the_page_has_it_of_a_tuned_run_alone(tmp_path: Path) -> None:
    """Before the search has ended, and where nothing could be ranked, there is none."""
    assert trials_part(tmp_path, "light", UnitNames()) == []
    write_ranking(tmp_path, Ranking(measured_ns=1, withheld="the replay is off"))
    assert trials_part(tmp_path, "light", UnitNames()) == []

    write_ranking(tmp_path, RANKED)
    save_trials(tmp_path, TRIED)
    words = trials_part(tmp_path, "light", UnitNames())[1].children

    assert words == (
        "2 changes ranked, 2 of them measured in the running job. Kept: lists."
    )
    (tmp_path / TRIALS).write_text("{}}")
    assert trials_part(tmp_path, "light", UnitNames()) == []
