"""The What-if page's callbacks."""

from __future__ import annotations

import dash
from dash import Input, Output, State, html
from dash.development.base_component import Component

from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.simulate.plans.predict import Prediction, Replay, predict
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.pages import whatif as page
from fsdpdoctor_dashboard.pages.components import plot
from fsdpdoctor_dashboard.pages.whatif_model import (
    Knobs,
    Replays,
    memory_cost,
    plan_file,
    simulated_run,
)
from fsdpdoctor_dashboard.timeline.component import Timeline

KNOB_INPUTS = [Input(f"knob-{name}", "value") for name in page.KNOBS]
KNOB_STATES = [State(f"knob-{name}", "value") for name in page.KNOBS]


def knobs_of(values: tuple[object, ...]) -> Knobs:
    """The controls' values as `Knobs`; what is left alone is None."""
    given = dict(zip(page.KNOBS, values, strict=True))
    switches = given.pop("switches")
    words = ("reshard", "param_dtype", "reduce_dtype", "accumulation", "bandwidth")
    texts = {name: str(given[name]) if given[name] else None for name in words}
    numbers = {
        name: None
        if value in (None, "", page.AS_IT_WAS)
        else int(str(value).split(".")[0])
        for name, value in given.items()
        if name not in words
    }
    return Knobs(
        switches=tuple(map(str, switches)) if isinstance(switches, list) else (),
        reshard=texts["reshard"],
        param_dtype=texts["param_dtype"],
        reduce_dtype=texts["reduce_dtype"],
        accumulation=texts["accumulation"],
        bandwidth=texts["bandwidth"],
        **numbers,
    )


def register(app: dash.Dash, library: Library, base: str) -> None:
    """Bind the page to the simulator."""
    replays = Replays()

    @app.callback(
        Output("prediction", "children"),
        Output("simulated", "children"),
        Input("whatif-run", "data"),
        Input("whatif-revision", "data"),
        *KNOB_INPUTS,
        State("theme", "data"),
    )
    def show_prediction(run_id: str, _: int, *values: object) -> tuple[object, object]:
        *knobs, theme = values
        try:
            run = library.wait(run_id)
            replay = replays.replay(run)
            found = _predicted(replay, tuple(knobs))
        except FsdpDoctorError as error:
            return html.P(visible(str(error)), className="alert"), None
        words = [page.replay_words(replay)]
        if found is None:
            words.append(html.P(replay.why_withheld, className="alert"))
            return words, None
        words += page.prediction_words(replay, found, run.report)
        before, after = (
            simulated_run(library, run, step, what)
            for step, what in (
                (replay.calibration.step, "as it was"),
                (found.step, "changed"),
            )
        )
        timeline = _timelines(base, str(theme or "light"), before, after)
        return words, [page.lanes_words(replay, found), timeline]

    @app.callback(
        Output("front", "children"),
        Input("search", "n_clicks"),
        State("whatif-run", "data"),
        State("theme", "data"),
        prevent_initial_call=True,
    )
    def show_front(_: int, run_id: str, theme: str | None) -> object:
        from fsdpdoctor_dashboard.pages.pictures.figures import front

        try:
            run = library.wait(run_id)
            replay = replays.replay(run)
            if not replay.usable:
                return html.P(replay.why_withheld, className="alert")
            found = replays.search(run)
        except FsdpDoctorError as error:
            return html.P(visible(str(error)), className="alert")
        if not found:
            return html.P("No change was found that makes this run faster or smaller.")
        measured = replay.calibration.measured_ns
        drawn = {
            str(one.plan): (one, cost)
            for one in found
            if (cost := memory_cost(run.report, one)) is not None
        }
        chart = plot(front(drawn, measured, theme or "light"))
        return [chart, *page.front_tables(found, run.report)]

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


def _predicted(replay: Replay, values: tuple[object, ...]) -> Prediction | None:
    """None where the replay is too far off to predict from. Raises UsageError."""
    if not replay.usable:
        return None
    plan = knobs_of(values).plan(blocking=replay.calibration.step.blocking)
    return predict(replay, plan)


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
