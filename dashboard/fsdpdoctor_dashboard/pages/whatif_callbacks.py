"""The What-if page's callbacks."""

from __future__ import annotations

import dash
from dash import ClientsideFunction, Input, Output, State, html
from dash.development.base_component import Component

from fsdpdoctor.advice import memory_cost
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.simulate.plans.predict import Prediction, Replay, predict
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.pages import whatif as page
from fsdpdoctor_dashboard.pages.components import plot
from fsdpdoctor_dashboard.pages.pictures.morph import morph
from fsdpdoctor_dashboard.pages.plan_knobs import KNOBS, knobs_of_values, plan_text
from fsdpdoctor_dashboard.pages.whatif_front import front_tables, trials_part
from fsdpdoctor_dashboard.pages.whatif_model import (
    Replays,
    plan_file,
    simulated_run,
    told,
)
from fsdpdoctor_dashboard.timeline.component import Timeline

KNOB_INPUTS = [Input(f"knob-{name}", "value") for name in KNOBS]
KNOB_STATES = [State(f"knob-{name}", "value") for name in KNOBS]


def register(app: dash.Dash, library: Library, base: str) -> None:
    """Bind the page to the simulator."""
    replays = Replays()
    _in_the_browser(app)

    @app.callback(
        Output("prediction", "children"),
        Output("simulated", "children"),
        Output("whatif-plan", "data"),
        Input("whatif-run", "data"),
        Input("whatif-revision", "data"),
        *KNOB_INPUTS,
        State("theme", "data"),
    )
    def show_prediction(
        run_id: str, _: int, *values: object
    ) -> tuple[object, object, object]:
        *knobs, theme = values
        run = None
        try:
            run = library.wait(run_id)
            replay = replays.replay(run)
        except FsdpDoctorError as error:
            return _no_replay(run, str(error)), None, dash.no_update
        words = [page.replay_words(replay)]
        if not replay.usable:
            why = _no_replay(run, replay.why_withheld)
            return [*words, why], None, dash.no_update
        try:
            found = _predicted(replay, tuple(knobs))
        except FsdpDoctorError as error:
            said = run.named.words(str(error))
            alert = html.P(visible(said), className="alert")
            return alert, None, dash.no_update
        assert found is not None
        if not found.plan.changes:
            return [*words, html.P(page.NO_CHANGE)], None, ""
        words += page.prediction_words(replay, found, run.report)
        lanes = _lanes(library, run, base, str(theme or "light"), replay, found)
        below = [*page.taking_it(replay, found, run), *lanes]
        return words, below, plan_text(found.plan)

    @app.callback(
        Output("front", "children"),
        Input("whatif-run", "data"),
        Input("whatif-revision", "data"),
        State("front", "children"),
        State("theme", "data"),
    )
    def show_front(run_id: str, _: int, shown: object, theme: str | None) -> object:
        try:
            run = library.wait(run_id)
            if run.going and shown:
                return dash.no_update  # searched again once the run has ended
            return _front(run, replays, theme or "light")
        except FsdpDoctorError:
            return None  # the prediction says why

    @app.callback(
        Output("trials", "children"),
        Input("whatif-run", "data"),
        Input("tick", "n_intervals"),  # steps under trial are not recorded
        State("theme", "data"),
    )
    def show_trials(run_id: str, _: int, theme: str | None) -> object:
        try:
            run = library.wait(run_id)
        except FsdpDoctorError:
            return None  # the prediction says why
        return trials_part(run.entry.path, theme or "light", run.named)

    @app.callback(
        Output("plan-file", "data"),
        Input("save-plan", "n_clicks"),
        State("whatif-run", "data"),
        *KNOB_STATES,
        prevent_initial_call=True,
    )
    def save(_: int, run_id: str, *values: object) -> object:
        try:
            found = _predicted(replays.replay(library.wait(run_id)), values)
        except FsdpDoctorError:
            return dash.no_update  # the page says already what does not fit
        if found is None:
            return dash.no_update
        return {"content": plan_file(found), "filename": "plan.json"}


def _no_replay(run: OpenRun | None, why: str) -> Component:
    """Why nothing can be predicted; style.css takes the idle knobs away. Those of a run
    that goes on stay: its next steps may be enough, and what was set is kept.
    """
    goes_on = run is not None and run.live
    said = why if run is None else run.named.words(why)
    return html.P(visible(said), className="alert" if goes_on else "alert no-replay")


def _in_the_browser(app: dash.Dash) -> None:
    """A row sets the knobs, and the knobs the address, without a question."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("fsdpdoctorPlans", "knobs"),
        *[Output(f"knob-{name}", "value") for name in KNOBS],
        Output("knob-rest", "options"),
        Input("whatif-set", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("fsdpdoctorPlans", "address"),
        Output("whatif-address", "data"),
        Input("whatif-plan", "data"),
        prevent_initial_call=True,
    )


def _front(run: OpenRun, replays: Replays, theme: str) -> object:
    from fsdpdoctor_dashboard.pages.pictures.plan_front import front

    replay = replays.replay(run)
    if not replay.usable:
        return None  # the prediction says why
    found = replays.search(run)
    if not found:
        return html.P("No change was found that makes this run faster or smaller.")
    said = told(replay, run.report)
    drawn = {
        one.plan.words(run.named): (one, cost)
        for one in found
        if (cost := memory_cost(said, one)) is not None
    }
    measured = replay.calibration.measured_ns
    words = f"{page.step_meaning(replay)}; a click on a point or a row sets the knobs."
    return [
        html.H2("What the search found"),
        html.P(f"Steps are predicted from the {words}", className="faint"),
        html.Div(
            plot(front(drawn, measured, theme, run.named)), className="plan-front"
        ),
        *front_tables(found, said, run.named),
    ]


def _predicted(replay: Replay, values: tuple[object, ...]) -> Prediction | None:
    """None where the replay is too far off to predict from. Raises UsageError."""
    if not replay.usable:
        return None
    plan = knobs_of_values(values).plan(blocking=replay.calibration.step.blocking)
    return predict(replay, plan)


def _lanes(
    library: Library,
    run: OpenRun,
    base: str,
    theme: str,
    replay: Replay,
    found: Prediction,
) -> list[Component]:
    """The step as it was and the changed one, both simulated."""
    before, after = (
        simulated_run(library, run, step, what)
        for step, what in (
            (replay.calibration.step, "simulated: as it was"),
            (found.step, "simulated: changed"),
        )
    )
    steps_ns = (replay.outcome.step_ns, replay.outcome.step_ns - found.gain_ns)
    return [
        html.H2("The step, before and after"),
        page.lanes_words(replay, found),
        morph(before, after, steps_ns),
        _timelines(base, theme, before, after),
    ]


def _timelines(base: str, theme: str, before: OpenRun, after: OpenRun) -> Component:
    """The step as it was and the changed one, both simulated: what differs between
    the lanes is the change, and nothing else.
    """
    begin, other = (_first_start(run) for run in (before, after))
    length = max(int(r.measures.ranks[0].steps.duration_ns[0]) for r in (before, after))
    return html.Div(
        Timeline(
            id="simulated-timeline",
            runs=[
                {"id": before.id, "offset": 0},
                {"id": after.id, "offset": begin - other},
            ],
            base=base,
            theme=theme,
            urlState=False,
            start={"t0": begin, "t1": begin + length},
        ),
        style={"height": "520px", "marginTop": "14px"},
    )


def _first_start(run: OpenRun) -> int:
    return int(run.measures.ranks[0].steps.start_ns[0]) - run.store.origin_ns
