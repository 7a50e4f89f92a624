"""The verdict: what costs most, beside it what to do, and one bar of what it gives.

It says what the report's verdict says and judges nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.changes.plan import plan_of
from fsdpdoctor.finding import Advice
from fsdpdoctor.quantities import ms, of_step, size
from fsdpdoctor.renderers.formatting import visible, visible_lines
from fsdpdoctor.renderers.reading.finding_order import NOTHING, reading
from fsdpdoctor.renderers.reading.outlook import outlook, outlook_words
from fsdpdoctor.renderers.report_view import Content, exposed_line
from fsdpdoctor.report import Report
from fsdpdoctor.report.value import BestChange, FindingRow, MostToGain
from fsdpdoctor_dashboard.data.rank_tracks import shown_places
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    Context,
    place_link,
    with_codes,
    with_data,
    with_terms,
    with_tip,
)
from fsdpdoctor_dashboard.pages.plan_knobs import plan_text
from fsdpdoctor_dashboard.pages.try_command import try_command


def verdict_box(context: Context, run: OpenRun, content: Content) -> Component:
    """The sentence and the bar; beside them what to do, where there is something."""
    report = run.report
    left = [
        *_headline(content.headline),
        *_bar(report),
        html.P(with_terms(_sentence(exposed_line(report))), className="lead"),
    ]
    verdict = report.verdict
    todo = []
    if verdict.most_to_gain is not None:
        todo.append(_most_to_gain(context, run, verdict.most_to_gain))
    if verdict.best_change is not None:
        todo.append(_best_change(context, run, verdict.best_change))
    if not todo and (first := first_to_try(report)) is not None:
        todo.append(_first_to_try(context, run, *first))
    if not todo:
        return html.Div(left, className="verdict alone")
    return html.Div(
        [html.Div(left), html.Div(todo, className="todo")], className="verdict"
    )


BESIDE = "; beside that, "
"""Between what ended a run, or is wrong with it, and what costs most."""


def _headline(words: str) -> list[Component]:
    """What is gravest in large letters, and what costs most below it."""
    first, between, then = words.partition(BESIDE)
    if not between:
        return [html.H1(words)]
    beside = f"Beside that, {then}"
    return [html.H1(f"{first}."), html.P(beside, className="beside")]


def _sentence(line: str) -> str:
    line = visible(line)
    return f"{line[:1].upper()}{line[1:]}."


def _share(ns: int, report: Report) -> str:
    mean = report.step_time_ns.mean
    return f" ({of_step(ns / mean)})" if mean else ""


def first_to_try(report: Report) -> tuple[FindingRow, Advice] | None:
    """What the verdict is of, or else the first finding, and what to do about it: where
    neither a gain nor a cost says what comes first.
    """
    acting = [report.findings[at] for at in reading(report.findings).acting]
    acting.sort(key=lambda row: row.code != report.verdict.code)
    for row in acting:
        for advice in row.advice:
            if not advice.text.startswith(NOTHING):
                return row, advice
    return None


def _first_to_try(
    context: Context, run: OpenRun, row: FindingRow, advice: Advice
) -> Component:
    copier, code = _code(f"first-{run.id}", advice.code)
    said = [f"{row.code} {row.name}"]
    if advice.memory_cost_bytes is not None:
        said.append(_memory(advice.memory_cost_bytes))
    return html.Section(
        [
            html.H2("First to try"),
            html.P(with_codes(context, visible(advice.text))),
            html.P(with_codes(context, "; ".join(said)), className="faint"),
            html.Div([*copier, *_show(context, run, row)], className="toolbar"),
            *code,
        ]
    )


def _code(name: str, code: str | None) -> tuple[list[Component], list[Component]]:
    """A button that copies it, and the code itself."""
    if not code:
        return [], []
    lines = visible_lines(code.strip("\n"))
    copier = _copier("Copy code", f"{name}-code", len(lines.splitlines()))
    # Long code scrolls: a key has to be able to, as well.
    return [copier], [html.Pre(lines, id=f"{name}-code", tabIndex=0)]


def _most_to_gain(context: Context, run: OpenRun, first: MostToGain) -> Component:
    row = next((f for f in run.report.findings if f.code == first.code), None)
    gain = f"up to {ms(first.up_to_ns)} per step{_share(first.up_to_ns, run.report)}"
    return html.Section(
        [
            html.H2(f"Most to gain: {gain}"),
            html.P(visible(first.text)),
            html.P(
                with_codes(context, f"{first.code}; what it costs, not simulated"),
                className="faint",
            ),
            html.Div([*_show(context, run, row)], className="toolbar"),
        ]
    )


def _best_change(context: Context, run: OpenRun, best: BestChange) -> Component:
    """The change that the simulator backs most, ready to be taken."""
    low, high = best.gain_range_ns
    gain = f"{ms(best.predicted_gain_ns)} per step"
    effects = [f"predicted {ms(low)} to {ms(high)}", _memory(best.memory_cost_bytes)]
    name = f"best-{run.id}"
    buttons, hidden = _code(name, best.code)
    buttons += _show(context, run, _about(run.report, best))
    if best.apply:
        plan = plan_text(plan_of(best.apply))
        href = context.link("whatif", plan=plan)
        buttons.append(dcc.Link("Other changes", href=href, className="button"))
    command = try_command(run.entry.path, best.apply or {}, run.report.run.command)
    if command is not None:
        summary = html.Summary("Try it: command")
        words = html.Pre(visible_lines(command), id=f"{name}-try")
        copy = with_data(html.Button("Copy"), copy=f"{name}-try")
        hidden.append(
            html.Details([summary, html.Div([copy, words], className="code")])
        )
    return html.Section(
        [
            html.H2(
                f"Best change: -{gain}{_share(best.predicted_gain_ns, run.report)}"
            ),
            html.P(visible(best.text)),
            html.P("; ".join(effects), className="faint"),
            html.Div(buttons, className="toolbar"),
            *hidden,
        ]
    )


def _memory(cost: int | None) -> str:
    if cost is None:
        return "memory not known"
    if not cost:
        return "no more memory"
    return f"{'+' if cost > 0 else '-'}{size(abs(cost))} of memory per rank"


def _copier(words: str, code: str, lines: int) -> Component:
    title = f"{lines} {'line' if lines == 1 else 'lines'}"
    return with_data(html.Button(words, title=title), copy=code)


def _about(report: Report, best: BestChange) -> FindingRow | None:
    """The finding that the change is advice of."""
    return next(
        (f for f in report.findings if any(a.text == best.text for a in f.advice)), None
    )


def _show(
    context: Context, run: OpenRun, row: FindingRow | None
) -> Iterator[Component]:
    places = () if row is None else shown_places(run.measures, row)
    place = next(iter(places), None)
    href = place_link(context, run, place) if place is not None else None
    if href is not None:
        yield dcc.Link("Show it", href=href, className="button")


def _bar(report: Report) -> Iterator[Component]:
    """Now, after the change, and the floor: one bar, whose whole is the mean step."""
    ends = outlook(report)
    if ends is None:
        return
    now, after, floor = ends
    pieces = [("floor", floor), ("left", after - floor), ("gain", now - after)]
    yield with_tip(
        html.Div(
            [
                html.I(className=kind, style={"width": f"{100 * ns / now:.3f}%"})
                for kind, ns in pieces
                if ns > 0
            ],
            className="outlook",
        ),
        f"The mean step: {outlook_words(ends)}.",
    )
    yield html.P(_outlook_words(now, None if after == now else after, floor))


def _outlook_words(mean: int, after: int | None, floor: int) -> list[Component | str]:
    """The bar's ends in words, each with its colour."""
    said: list[Component | str] = [html.B(f"Now {ms(mean)}"), " (mean step), "]
    if after is not None:
        said += [_key("left", f"after the change {ms(after)}"), " ("]
        said += [_key("gain", f"{ms(mean - after)} less"), "), "]
    return [*said, _key("floor", f"cannot go below {ms(floor)}")]


def _key(kind: str, words: str) -> Component:
    """A piece's colour, and what it is: one never stands without the other."""
    return html.Span([html.I(className=f"key {kind}"), words], className="together")
