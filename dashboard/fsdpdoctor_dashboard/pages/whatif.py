"""What-if: knobs on the left; what they give, and the simulated timeline, beside."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.advice import memory_cost
from fsdpdoctor.changes.plan import ACCUMULATION, Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor.quantities import count, ms, percent, signed_percent, size
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.reading.unit_names import names_in
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report import Report
from fsdpdoctor.schema import ITEMSIZE
from fsdpdoctor.simulate.plans.forecast import code_of
from fsdpdoctor.simulate.plans.predict import Prediction, Replay
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    Context,
    byte_words,
    columns,
    data_table,
    ns_words,
    so_far,
    with_data,
    with_terms,
)
from fsdpdoctor_dashboard.pages.plan_knobs import (
    AS_IT_WAS,
    MERGES,
    MOST_AHEAD,
    SWITCHES,
    control_values,
    knobs_of,
    plan_of_text,
    plan_text,
    rest_options,
)
from fsdpdoctor_dashboard.pages.try_command import try_command
from fsdpdoctor_dashboard.pages.whatif_model import told


def page(context: Context) -> Component:
    """The frame: what the knobs give is filled in by callbacks."""
    about = f" of {visible(context.run.id)}" if len(context.runs) > 1 else ""
    asked = context.query.get("plan", "")
    plan, wrong = Plan(), ""
    try:
        plan = plan_of_text(asked)
    except UsageError as error:
        wrong = str(error)
    results = [
        html.Div(
            [
                html.Button("Reset", id="reset-plan", title="no change"),
                html.Button("Save this plan", id="save-plan"),
                dcc.Download(id="plan-file"),
            ],
            className="toolbar",
        ),
        dcc.Loading(html.Div(id="prediction"), delay_show=300),
        html.Div(id="simulated"),
        html.Div(id="trials"),
        dcc.Loading(html.Div(id="front"), delay_show=300),
    ]
    alert = [html.P(visible(wrong), className="alert")] if wrong else []
    return html.Main(
        [
            html.H1(f"What if{about}"),
            *alert,
            html.Div(so_far(context.run), id="whatif-so-far"),
            html.Div(
                [
                    html.Div(_knobs(context.run, plan), className="knobs"),
                    html.Div(results),
                ],
                className="whatif",
            ),
            dcc.Store(id="whatif-run", data=context.run.id),
            dcc.Store(id="whatif-revision", data=context.run.revision),
            dcc.Store(id="whatif-set"),
            dcc.Store(id="whatif-plan"),
            dcc.Store(id="whatif-address"),
        ]
    )


def _knobs(run: OpenRun, plan: Plan) -> list[Component]:
    """The controls at a plan; a browser's tab keeps how they stand, for each run, and
    for each plan that an address named.
    """
    made = _controls()
    knobs = knobs_of(plan)
    values = control_values(knobs)
    for part in made:
        name = getattr(part, "id", "").removeprefix("knob-")
        if name not in values:
            continue
        setattr(part, "value", values[name])  # noqa: B010
        setattr(part, "persistence", f"{run.id} {plan_text(plan)}".strip())  # noqa: B010
        setattr(part, "persistence_type", "session")  # noqa: B010
        if name == "rest":
            setattr(part, "options", rest_options(knobs, run.named))  # noqa: B010
    return made


def _controls() -> list[Component]:
    dtypes = {name: name for name in ITEMSIZE}
    return [
        *_slider("forward_prefetch", "Forward prefetch, units ahead"),
        *_slider("backward_prefetch", "Backward prefetch, units ahead"),
        *_choice(
            "reshard",
            "Reshard after forward",
            {"true": "every unit", "false": "no unit: keep them"},
        ),
        *_choice("merge", "Merge neighbours", MERGES),
        html.Label("Also"),
        dcc.Checklist(options=SWITCHES, id="knob-switches", value=[]),
        html.Label("The plan's other changes"),  # seen where there are some
        dcc.Checklist(options=[], id="knob-rest", value=[]),
        *_choice("param_dtype", "Gathered dtype", dtypes),
        *_choice("reduce_dtype", "Reduced dtype", dtypes),
        *_choice(
            "accumulation",
            "Reduce gradients",
            dict(zip(ACCUMULATION, _ACCUMULATION_WORDS, strict=True)),
        ),
        *_number("replicate", "HSDP replicas"),
        *_number("world_size", "World size"),
        *_number("micro_batches", "Micro-batches"),
        html.Label(
            [
                "Links",
                html.Span(" such as intra=nvlink4,inter=ib400", className="hint"),
            ]
        ),
        dcc.Input(id="knob-bandwidth", type="text", debounce=True),
    ]


_ACCUMULATION_WORDS = (
    "after every micro-batch",
    "after the last one",
    "after the last one, and keep weights",
)


def _slider(name: str, words: str) -> list[Component]:
    marks = {AS_IT_WAS: "as it was", **{n: str(n) for n in range(MOST_AHEAD + 1)}}
    return [
        html.Label(words),
        dcc.Slider(
            id=f"knob-{name}",
            min=AS_IT_WAS,
            max=MOST_AHEAD,
            step=1,
            value=AS_IT_WAS,
            marks=marks,
            allow_direct_input=False,
        ),
    ]


def _choice(name: str, words: str, options: dict[str, str]) -> list[Component]:
    return [
        html.Label(words),
        dcc.Dropdown(
            options=options,
            id=f"knob-{name}",
            placeholder="as it was",
            searchable=False,
        ),
    ]


def _number(name: str, words: str) -> list[Component]:
    return [
        html.Label(words),
        dcc.Input(
            id=f"knob-{name}",
            type="number",
            min=1,
            step=1,
            placeholder="as it was",
            debounce=True,
        ),
    ]


def step_meaning(base: Replay) -> str:
    """Which step times on this page are of: other pages' are of all ranks and steps."""
    calibration = base.calibration
    steps = count(calibration.steps, "middle step")
    return f"mean of {steps} of rank {calibration.rank}"


def replay_words(base: Replay) -> Component:
    """How far the replay of the run as it was is off: it stands above everything."""
    calibration = base.calibration
    words = (
        f"The replay gives {ms(base.outcome.step_ns)} against "
        f"{ms(calibration.measured_ns)} measured, the {step_meaning(base)}: off by "
        f"{signed_percent(base.error)}."
    )
    return html.P(with_terms(words), className="faint")


def prediction_words(
    base: Replay, found: Prediction, report: Report
) -> list[Component]:
    """What a plan gives, beside what was measured."""
    calibration, named = base.calibration, names_in(report)
    before = calibration.exposed_ns
    known = calibration.step.resident_bytes > 0
    rows = [
        [
            Cell(text=f"step, {step_meaning(base)}"),
            Cell(text=ms(calibration.measured_ns)),
            Cell(text=f"{ms(found.step_ns)} +- {ms(found.error_ns)}"),
            Cell(text=_change(-found.gain_ns, calibration.measured_ns)),
        ],
        *[
            [
                Cell(text=f"exposed {kind.replace('_', '-')}"),
                Cell(text=ns_words(before.get(kind))),
                Cell(text=ms(ns)),
                Cell(text=_change(ns - before.get(kind, 0), before.get(kind, 0))),
            ]
            for kind, ns in found.exposed_ns.items()
            if ns or before.get(kind)
        ],
        [
            Cell(text="memory per rank"),
            Cell(text=""),
            Cell(text=""),
            Cell(text=bytes_change(memory_cost(told(base, report), found))),
        ],
        *[
            [
                Cell(text="peak memory, simulated without activations"),
                Cell(text=byte_words(base.outcome.peak_bytes)),
                Cell(text=byte_words(found.peak_bytes)),
                Cell(text=bytes_change(found.memory_cost_bytes)),
            ]
            for _ in range(known)
        ],
        [
            Cell(text="gathered parameters, at their peak"),
            Cell(text=size(base.outcome.gathered_peak_bytes)),
            Cell(text=size(found.gathered_peak_bytes)),
            Cell(
                text=bytes_change(
                    found.gathered_peak_bytes - base.outcome.gathered_peak_bytes
                )
            ),
        ],
    ]
    parts: list[Component] = [
        html.H2(f"Predicted: {visible(found.plan.words(named))}"),
        html.P(outcome_words(found, calibration.measured_ns), className="lead"),
        data_table(
            "predicted",
            columns("", "measured", "predicted", "change", left=("",)),
            rows,
        ),
        *[
            html.P(f"Assumed: {visible(named.words(line))}.")
            for line in found.assumptions
        ],
    ]
    if found.forbidden is not None:
        parts.append(
            html.P(
                f"Not advised: {visible(named.words(found.forbidden))}",
                className="alert",
            )
        )
    return parts


def outcome_words(found: Prediction, measured_ns: int) -> str:
    """What a plan gives, in one sentence, as sure as the prediction is."""
    gain, error = found.gain_ns, found.error_ns
    between = f"{ms(measured_ns)} to {ms(found.step_ns)} +- {ms(error)}"
    share = percent(abs(gain) / measured_ns)
    if abs(gain) <= error:
        return f"No difference beyond the prediction's own error: {between}."
    if gain < 0:
        return f"Slower by {ms(-gain)} per step ({share}), {between}: not worth it."
    return f"Faster by {ms(gain)} per step ({share}): {between}."


NO_CHANGE = (
    "Nothing is changed yet: choose one of the changes below, or turn a knob. "
    "The address of this page then holds the plan."
)


def taking_it(base: Replay, found: Prediction, run: OpenRun) -> list[Component]:
    """The plan as code, and as a command that tries it."""
    parts: list[Component] = []
    if lines := code_of(base, found):
        parts += _pasted("Code", visible_code(lines), "plan-code")
    command = run.report.run.command
    if line := try_command(run.entry.path, found.plan.changes, command):
        parts += _pasted("Try it on the script", visible_code(line), "plan-command")
    return parts


def _pasted(title: str, lines: str, name: str) -> list[Component]:
    copy = with_data(html.Button("Copy", title=f"copy: {title}"), copy=name)
    return [
        html.Div([html.H2(title), copy], className="toolbar"),
        html.Pre(lines, id=name),
    ]


def lanes_words(base: Replay, found: Prediction) -> Component:
    """What the two lanes are, so that the picture and the table say one thing."""
    before = base.outcome.step_ns
    after = before - found.gain_ns
    return html.P(
        f"Both lanes are simulated: above rank {base.calibration.rank}'s step as it "
        f"was ({ms(before)}), below the same step with the change ({ms(after)}). The "
        f"measured one, {step_meaning(base)}, is {ms(base.calibration.measured_ns)}: "
        "what the replay misses of it is added to both figures of the table.",
        className="faint",
    )


def visible_code(lines: str) -> str:
    """Code as it is, hidden characters written as escapes."""
    return "\n".join(visible(line) for line in lines.splitlines())


SEEN_SHARE = 0.0005
"""A smaller part of the whole would be printed as 0.0 %."""


def _change(ns: int, whole: int) -> str:
    if abs(ns) <= SEEN_SHARE * abs(whole):
        return "no change"
    share = f" ({percent(abs(ns) / whole)} of it)" if whole else ""
    return f"{'+' if ns > 0 else '-'}{ms(abs(ns))}{share}"


def bytes_change(count: int | None) -> str:
    """How much more or less memory, in words."""
    if count is None:
        return "not known"
    if not count:
        return "no change"
    return f"{'+' if count > 0 else '-'}{size(abs(count))}"
