"""Explain: what a finding means, as `fsdpdoctor explain` says it, and all terms."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.detectors import ALL
from fsdpdoctor.renderers.reading.glossary import TERMS
from fsdpdoctor_dashboard.pages.components import Context, with_terms


def page(context: Context) -> Component:
    """The page of the code that the address names; without one, all codes and terms."""
    code = context.query.get("code", "")
    detector = next((each for each in ALL if each.code == code), None)
    if detector is None:
        return html.Main([html.H1("What findings and words mean"), *_all(context)])
    paragraphs = re.split(r"\n\s*\n", detector.page.strip())
    return html.Main(
        [
            html.H1(f"{detector.code} {detector.name}"),
            *[html.P(_marked(" ".join(p.split()))) for p in paragraphs],
            html.P(dcc.Link("All findings and words", href=context.link("explain"))),
        ],
        className="reading",
    )


def _marked(words: str) -> list[Component | str]:
    """Text with *emphasis* and `code`."""
    parts: list[Component | str] = []
    for at, piece in enumerate(re.split(r"(\*[^*]+\*|`[^`]+`)", words)):
        if at % 2 == 0:
            parts += with_terms(piece)
        elif piece.startswith("*"):
            parts.append(html.B(piece.strip("*")))
        else:
            parts.append(html.Code(piece.strip("`")))
    return parts


def _all(context: Context) -> Iterator[Component]:
    yield html.H2("Findings")
    yield html.Ul(
        [
            html.Li(
                [
                    dcc.Link(each.code, href=context.link("explain", code=each.code)),
                    f" {each.name}",
                ]
            )
            for each in ALL
        ],
        className="codes",
    )
    yield html.H2("Words")
    rows: list[Component] = []
    for term in TERMS:
        rows += [html.Dt(term.name), html.Dd(term.meaning)]
    yield html.Dl(rows, className="terms")
