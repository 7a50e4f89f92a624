"""What an address asks for: a page about runs, and what it is known by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from fsdpdoctor_dashboard.data.run_registry import OpenRun

PAGES: dict[str, tuple[str, str]] = {
    "runs": ("Runs", "runs"),
    "": ("Overview", "overview"),
    "timeline": ("Timeline", "timeline"),
    "units": ("Units", "units"),
    "collectives": ("Collectives", "collectives"),
    "ranks": ("Ranks", "ranks"),
    "memory": ("Memory", "memory"),
    "whatif": ("What-if", "whatif"),
    "explain": ("Glossary", "explain"),
}
"""Path to title and module. A module is imported when its page is first asked for, so
that plotly is never on the way to the first one."""

RUNS = "runs"
"""The page of no single run: it is there where there are several."""

CHOICES = ("rank", "step", "code", "plan")
"""What an address may say beside its runs."""

PLOTS = ("collectives", "ranks", "memory", "whatif")
"""Pages with plotly figures: only these are made anew when the theme changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """What an address asks for."""

    page: str
    runs: tuple[str, ...]
    choices: dict[str, str]  # what else the address says

    @property
    def query(self) -> str:
        """The runs, as an address names them."""
        names = ("run", "with")
        return urlencode(dict(zip(names, self.runs, strict=False)))


def key_of(asked: PageRequest, runs: Sequence[OpenRun], theme: str) -> list[str]:
    """What a page shows; pages of equal keys are equal."""
    return [
        asked.page,
        *(run.id for run in runs),
        theme if asked.page in PLOTS else "",
        repr(asked.choices),
        " ".join(f"{run.revision} {run.going}" for run in runs),
    ]
