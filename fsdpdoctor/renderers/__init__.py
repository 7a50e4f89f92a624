"""Renderers: a Report becomes text. RENDERERS names them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fsdpdoctor.renderers import html, json, markdown, sarif, text
from fsdpdoctor.report.value import Report

RENDERERS: Mapping[str, Callable[[Report], str]] = {
    "text": text.render,
    "json": json.render,
    "markdown": markdown.render,
    "html": html.render,
    "sarif": sarif.render,
}
"""Format name to its renderer."""
