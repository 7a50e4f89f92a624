"""Renderers: a Report becomes text. RENDERERS names them all."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from fsdpdoctor.report.value import Report


def _of(format_: str) -> Callable[[Report], str]:
    """Its module is imported as it first renders: a command needs one of them."""

    def render(report: Report) -> str:
        module = importlib.import_module(f"{__name__}.{format_}")
        text: str = module.render(report)
        return text

    return render


RENDERERS: Mapping[str, Callable[[Report], str]] = {
    format_: _of(format_) for format_ in ("text", "json", "markdown", "html", "sarif")
}
"""Format name to its renderer."""
