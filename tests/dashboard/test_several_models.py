"""Pages of a run with two models say which a unit is of, and no number of a tree."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("torch", reason="records a run")

import torch
from plotly.utils import PlotlyJSONEncoder

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.finding import Advice
from fsdpdoctor.renderers.html import render
from fsdpdoctor.renderers.reading.anonymous import anonymous, stand_for
from fsdpdoctor.renderers.reading.finding_order import NOTHING
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import Kind
from fsdpdoctor_dashboard.data.finding_marks import marks_like
from fsdpdoctor_dashboard.data.rank_tracks import Stretch
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.pages.comparison import differences
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.plan_knobs import plan_text, setting
from fsdpdoctor_dashboard.pages.whatif_model import simulated_run
from fsdpdoctor_dashboard.server.standalone_page import page_of, store_of
from tests.dashboard.client import Client
from tests.dashboard.said import Said, said, words_of
from tests.detectors.test_kinds_of_steps import (
    Actor,
    Critic,
    batch,
    in_turn,
    net,
    sgd,
    trained,
)
from tests.recorder.rehearsed import recorded
from tests.rig.changed import replace
from tests.simulate.steps import step

PAGES = ("overview", "timeline", "units", "collectives", "ranks", "memory", "whatif")
OURS = "[tree="
"""How a record tells units of one name apart."""


def kept() -> None:
    """The same, with a critic that keeps its parameters and gathers them ahead."""
    actor, critic = net(Actor), net(Critic, reshard_after_forward=False)
    critic[0].set_modules_to_forward_prefetch([critic[1], critic[2]])
    of_actor, of_critic = sgd(actor), sgd(critic)
    for _ in range(7):
        trained(of_critic, critic(actor(batch()).detach()).mean())
        trained(of_actor, critic(actor(batch())).mean())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Two runs of an actor and a critic whose modules have the same names."""
    root = tmp_path_factory.mktemp("two")
    scripts: tuple[Callable[[], None], ...] = (in_turn, kept)
    for script in scripts:
        with recorded(root / script.__name__):
            torch.manual_seed(0)
            script()
    library = Library([root], open_run)
    for script in scripts:
        library.wait(script.__name__)
    return library


@pytest.fixture
def run(both: Library) -> OpenRun:
    """The first of them."""
    return both.wait("in_turn")


def sent(page: str, *runs: OpenRun) -> tuple[str, list[Said]]:
    """All that a browser gets of a page, and what of it is words."""
    module = import_module(f"fsdpdoctor_dashboard.pages.{page}")
    made = module.page(Context(base="/", theme="light", runs=runs))
    return json.dumps(made, cls=PlotlyJSONEncoder), said(page, made)


@pytest.mark.parametrize("page", PAGES)
def test_no_page_has_the_number_of_a_tree(page: str, both: Library) -> None:
    """Neither in words nor in pictures, of one run and of two beside each other."""
    runs = both.wait("in_turn"), both.wait("kept")

    assert OURS not in sent(page, runs[0])[0]
    assert OURS not in sent(page, *runs)[0]


def test_where_models_stand_together_units_say_which(run: OpenRun) -> None:
    """In the table of all units, in that of peaks, beside windows and in the lanes."""
    every = [f"{at} of {model}" for model in ("Actor", "Critic") for at in range(3)]

    units = [one for one in sent("units", run)[1] if one.table]
    assert list(dict.fromkeys(one.row for one in units)) == every
    text, words = sent("memory", run)
    assert list(dict.fromkeys(one.row for one in words if one.table)) == every
    assert all(json.dumps(name) in text for name in every)
    assert [name for name in run.units if name in every] == every


def test_the_main_cause_of_a_unit_is_that_of_its_bar(run: OpenRun) -> None:
    """Of one rank that left a record: a late rank and the wire cannot be told apart."""
    words = sent("units", run)[1]
    causes = {one.words for one in words if one.table and one.column == "main cause"}

    assert causes == {"straggler or wire 100\u00a0%"}
    assert any("exposed, straggler or wire" in one.words for one in words)


def test_bars_and_maps_are_of_each_model(run: OpenRun) -> None:
    """Under its name and its role; there units have their own names."""
    module = import_module("fsdpdoctor_dashboard.pages.pictures.unit_bars")
    bars = [*module.unit_bars(run.report, module.longest_ns(run.report.units))]
    *_, shown = import_module("fsdpdoctor_dashboard.pages.pictures.unit_map").unit_map(
        run
    )
    heads = [one.words for one in said("units", *bars)]
    maps = [one.words for one in said("units", shown)]

    assert [words for words in heads if "trained" in words] == [
        "Actor, trained",
        "Critic, trained",
    ]
    assert heads.count("0") == maps.count("0") == 2
    assert sum(words.startswith("Critic, trained: ") for words in maps) == 1


def test_what_differs_between_two_runs_says_of_which_model(both: Library) -> None:
    """Units are matched by their own names, so that the critic's are one row."""
    runs = both.wait("in_turn"), both.wait("kept")
    _, words = sent("overview", *runs)
    rows = {one.row: one for one in words if one.table == "differences"}
    table = [one for one in words if one.table == "differences"]
    units = {one.row: one.words for one in table if one.column == "units"}
    ahead = [one.words for one in table if one.row == "setting: forward prefetch"]

    assert units["setting: reshard after forward"] == "[0-2] of Critic"
    assert rows.keys() >= {"setting: forward prefetch"}
    assert ahead[1] == "0 of Critic"
    assert ahead[3] == "1 of Critic, 2 of Critic"


def test_the_timeline_asks_for_no_number_of_a_tree(both: Library, run: OpenRun) -> None:
    """Nor is one in what it is told of a mark, or of what is whole at a moment."""
    client = Client(both)
    client.get("/?token=secret")
    asked = [f"api/live?run={run.id}&rank=0&time={run.store.end // 2}"]
    asked += [
        f"api/span?run={run.id}&rank=0&series={part.series}&span={int(at)}"
        for part in run.store.series(0)
        if SERIES[part.series].row != Row.STEP
        for at in part.span[-9:]
    ]
    answers = [client.get(f"/{one}") for one in (f"api/meta?run={run.id}", *asked)]

    assert {status for status, _ in answers} == {200}
    assert not any(OURS.encode() in body for _, body in answers)
    assert any(b" of Critic" in body for _, body in answers[1:])


def test_marks_of_a_unit_are_looked_up_by_its_own_name(run: OpenRun) -> None:
    """The critic's first unit, not the actor's of the same name."""
    store = run.store
    unit = store.names[0].in_record.index("0 [tree=1]")
    stalls = store.exposed[0]
    mine = [
        Stretch(0, start - store.origin_ns, end - store.origin_ns)
        for start, end, of, kind in zip(
            stalls.column("start_ns").tolist(),
            stalls.column("end_ns").tolist(),
            stalls.column("unit").tolist(),
            stalls.column("kind").tolist(),
            strict=True,
        )
        if of == unit and kind == Kind.ALL_GATHER
    ]
    lit = marks_like(store, mine, units=["0 [tree=1]"])

    assert store.names[0].units[unit] == "0 of Critic"
    assert lit == sorted(mine) != []


def test_a_finding_of_one_model_says_which_where_it_is_folded(run: OpenRun) -> None:
    """On its card beside the timeline, and in the line of those with nothing to
    change, where it stands once.
    """
    (row,) = (row for row in run.report.findings if row.code == "FD303")
    nothing = replace(row, advice=(Advice(text=f"{NOTHING}: so it is."),), part_of=None)
    folded = replace(run, report=replace(run.report, findings=(nothing, nothing)))
    cards = sent("timeline", folded)[1]
    line = next(
        one.words for one in sent("overview", folded)[1] if NOTHING in one.words
    )

    heads = [one.words for one in cards if one.words.startswith("FD303")]
    assert len(heads) == 2
    assert "Actor: 2; backward; rank 0" in heads[0]
    assert line == f"{NOTHING} about FD303 stale-unshard of Actor"


def test_a_finding_that_went_is_of_a_model(run: OpenRun) -> None:
    """Two runs have one of each model."""
    (row,) = (row for row in run.report.findings if row.code == "FD303")
    without = replace(run, report=replace(run.report, findings=()))
    only = replace(run, report=replace(run.report, findings=(row,)))
    gone, new = (
        words_of([*differences(*runs)]) for runs in ((only, without), (without, only))
    )

    assert "Gone: FD303 stale-unshard of Actor (" in gone
    assert "New: FD303 stale-unshard of Actor (" in new


def test_a_run_is_of_all_its_models(run: OpenRun) -> None:
    """Their parameters are counted together."""
    lines = [one.words for one in sent("overview", run)[1]]
    (facts,) = (line for line in lines if line.startswith("recorded: "))

    assert facts.startswith("recorded: Actor and Critic, 432 parameters, FSDP2, ")


def test_a_plan_names_its_units(run: OpenRun) -> None:
    """In the boxes of the page; the address holds their own names."""
    plan = Plan(reshard_after_forward={"0": False, "0 [tree=1]": False})
    context = Context(
        base="/", theme="light", runs=(run,), query={"plan": plan_text(plan)}
    )
    made = import_module("fsdpdoctor_dashboard.pages.whatif").page(context)
    said = "reshard after forward: 0 of Actor False, 0 of Critic False"

    assert json.dumps({"label": said})[1:-1] in json.dumps(made, cls=PlotlyJSONEncoder)
    assert json.loads(setting(plan, run.named))["rest"][0]["label"] == said
    assert json.loads(json.loads(setting(plan, run.named))["plan"]) == plan.changes


def test_a_simulated_step_has_the_runs_names(both: Library, run: OpenRun) -> None:
    """The simulator knows no models."""
    plain = step(2)
    root, one, other = plain.units
    units = root, replace(one, fqn="0 [tree=1]"), replace(other, fqn="0")
    made = replace(plain, units=units)
    opened = simulated_run(both, run, made, "simulated")

    assert opened.units[1:] == ("0 of Critic", "0 of Actor")
    assert opened.store.names[0].in_record[1:] == ("0 [tree=1]", "0")


@pytest.mark.parametrize("hide", [False, True])
def test_what_is_given_away_has_none_either(run: OpenRun, hide: bool) -> None:
    """The report with its timeline, and the shared one without names."""
    stand = stand_for(run.report) if hide else None
    report = run.report if stand is None else anonymous(run.report, stand)
    store = store_of(run.run, run.measures, stand)
    page = page_of(run.measures, store, run.report, limit=None)
    text = render(report, page)

    assert OURS not in text
    assert ("Critic" in text) is not hide
    assert '"lit":{}' not in page.body
