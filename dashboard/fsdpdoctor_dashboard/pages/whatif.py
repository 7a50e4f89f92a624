"""What-if: knobs on the left; what they give, and the simulated timeline, beside."""

from __future__ import annotations

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.changes.plan import ACCUMULATION
from fsdpdoctor.quantities import count, ms, percent, signed_percent, size
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report import Report
from fsdpdoctor.schema import ITEMSIZE
from fsdpdoctor.simulate.plans.forecast import code_of
from fsdpdoctor.simulate.plans.predict import Prediction, Replay
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
from fsdpdoctor_dashboard.pages.whatif_model import memory_cost

KNOBS = (
    "forward_prefetch",
    "backward_prefetch",
    "reshard",
    "merge",
    "switches",
    "param_dtype",
    "reduce_dtype",
    "accumulation",
    "replicate",
    "world_size",
    "micro_batches",
    "bandwidth",
)
"""The controls' ids after `knob-`, in the order of `Knobs`' fields."""

AS_IT_WAS = -1
"""Where a slider stands that changes nothing."""

SWITCHES = {
    "split_root": "split embedding and head from the root",
    "separate_reduce_scatter_group": "reduce-scatters on a communicator of their own",
    "max_input_buffers": "two reduce-scatter input buffers",
    "unshard_async_op": "unshards that do not block (CPU)",
}


def page(context: Context) -> Component:
    """The frame: what the knobs give is filled in by callbacks."""
    about = f" of {visible(context.run.id)}" if len(context.runs) > 1 else ""
    results = [
        html.Div(
            [
                html.Button("Find the changes worth it", id="search"),
                html.Button("Save this plan", id="save-plan"),
                dcc.Download(id="plan-file"),
            ],
            className="toolbar",
        ),
        dcc.Loading(html.Div(id="front"), delay_show=300),
        dcc.Loading(html.Div(id="prediction"), delay_show=300),
        html.Div(id="simulated"),
    ]
    return html.Main(
        [
            html.H1(f"What if{about}"),
            html.Div(so_far(context.run), id="whatif-so-far"),
            html.Div(
                [
                    html.Div(_knobs(context.run.id), className="knobs"),
                    html.Div(results),
                ],
                className="whatif",
            ),
            dcc.Store(id="whatif-run", data=context.run.id),
            dcc.Store(id="whatif-revision", data=context.run.revision),
        ]
    )


def _knobs(run_id: str) -> list[Component]:
    """The controls; a browser's tab keeps how they stand, for each run."""
    made = _controls()
    for part in made:
        if getattr(part, "id", "").startswith("knob-"):
            setattr(part, "persistence", run_id)  # noqa: B010
            setattr(part, "persistence_type", "session")  # noqa: B010
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
        *_choice("merge", "Merge neighbours", {"2": "two", "3": "three", "4": "four"}),
        html.Label("Also"),
        dcc.Checklist(options=SWITCHES, id="knob-switches", value=[]),
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
    marks = {AS_IT_WAS: "as it was", 0: "0", 1: "1", 2: "2", 3: "3", 4: "4"}
    return [
        html.Label(words),
        dcc.Slider(
            id=f"knob-{name}",
            min=AS_IT_WAS,
            max=4,
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
    calibration = base.calibration
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
            Cell(text=_bytes_change(memory_cost(report, found))),
        ],
        [
            Cell(text="peak memory, simulated without activations"),
            Cell(text=byte_words(base.outcome.peak_bytes if known else None)),
            Cell(text=byte_words(found.peak_bytes)),
            Cell(text=_bytes_change(found.memory_cost_bytes)),
        ],
        [
            Cell(text="gathered parameters, at their peak"),
            Cell(text=size(base.outcome.gathered_peak_bytes)),
            Cell(text=size(found.gathered_peak_bytes)),
            Cell(
                text=_bytes_change(
                    found.gathered_peak_bytes - base.outcome.gathered_peak_bytes
                )
            ),
        ],
    ]
    parts: list[Component] = [
        html.H2(f"Predicted: {visible(str(found.plan))}"),
        data_table(
            "predicted",
            columns("", "measured", "predicted", "change", left=("",)),
            rows,
        ),
        *[html.P(f"Assumed: {visible(line)}.") for line in found.assumptions],
    ]
    if found.forbidden is not None:
        parts.append(
            html.P(f"Not advised: {visible(found.forbidden)}", className="alert")
        )
    if lines := code_of(base, found):
        parts += [
            html.Div(
                [
                    html.H2("Code"),
                    with_data(html.Button("Copy"), copy="plan-code"),
                ],
                className="toolbar",
            ),
            html.Pre(visible_code(lines), id="plan-code"),
        ]
    return parts


def lanes_words(base: Replay, found: Prediction) -> Component:
    """What the two lanes are, so that the picture and the table say one thing."""
    before = base.outcome.step_ns
    after = before - found.gain_ns
    return html.P(
        f"Both lanes are simulated: above rank {base.calibration.rank}'s step as it "
        f"was ({ms(before)}), below with the change "
        f"({ms(after)}).",
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


def _bytes_change(count: int | None) -> str:
    if count is None:
        return "not known"
    if not count:
        return "no change"
    return f"{'+' if count > 0 else '-'}{size(abs(count))}"


def front_tables(found: Sequence[Prediction], report: Report) -> list[Component]:
    """The searched plans by what they win: beyond their own error, within it, and
    those that only save memory, which are not worth it for the time.
    """
    kinds: dict[str, list[Prediction]] = {FASTER: [], NOISE: [], SMALLER: []}
    for one in sorted(found, key=lambda p: -p.gain_ns):
        faster = FASTER if one.gain_ns > one.error_ns else NOISE
        kinds[faster if one.gain_ns > 0 else SMALLER].append(one)
    parts: list[Component] = []
    for at, (title, plans) in enumerate(kinds.items()):
        if plans:
            parts += [html.H2(title), _front_table(f"front-table-{at}", plans, report)]
    return parts


FASTER = "Changes worth it"
NOISE = "Faster by less than the prediction's own error"
SMALLER = "Less memory, and not faster"


def _front_table(name: str, found: Sequence[Prediction], report: Report) -> Component:
    rows = [
        [
            Cell(text=str(p.plan)),
            Cell(text=ms(p.step_ns), value=p.step_ns),
            Cell(text=ms(p.error_ns), value=p.error_ns),
            Cell(text=ms(p.gain_ns), value=p.gain_ns),
            Cell(text=_bytes_change(cost), value=cost),
        ]
        for p, cost in ((p, memory_cost(report, p)) for p in found)
    ]
    times = ("predicted step", "+-", "gain per step")
    heads = columns(
        *("change", *times, "memory per rank"),
        left=("change",),
        units={**dict.fromkeys(times, "ns"), "memory per rank": "bytes"},
    )
    return data_table(name, heads, rows)
