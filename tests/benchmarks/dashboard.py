"""The timeline at a million spans, beside an empty Dash page and a plotly timeline.

    python -m tests.benchmarks.dashboard [--rounds 3] [--large 10000000] [--write]

One run, headless Chromium, every page in turn and round after round, medians at the
end, so that a busy machine is busy for all of them. Then: 200 tile requests at once
while another user's run is read, the HTML report of the run, and a larger run. Ends
with one line per target: the figure, and whether it was met.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from tests.benchmarks.dashboard_browser import (
    BARS,
    Figures,
    bars,
    dash_page,
    empty,
    file_round,
    median,
    plain_round,
    timeline_round,
)
from tests.benchmarks.dashboard_load import Burst, open_run, parallel_requests
from tests.dashboard.conftest import serve_runs
from tests.dashboard.synthetic import shape_of, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Playwright

SMALL = 10_000
OTHER = "another"
"""The run that somebody else opens."""
RESULTS = Path(__file__).parent / "dashboard-results.md"


@dataclass
class Found:
    """All that was measured."""

    pages: dict[str, Figures]
    report: Figures = field(default_factory=Figures)
    report_mb: float = float("nan")
    burst: Burst = field(default_factory=Burst)
    memory_mb: float = float("nan")
    large_mb: tuple[float, float] = (float("nan"), float("nan"))  # own, and mapped
    opened_s: dict[str, float] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is to be reached, and what was."""

    name: str
    limit: str
    figure: str
    met: bool

    @property
    def line(self) -> str:
        """As it is printed."""
        verdict = "met   " if self.met else "MISSED"
        return f"{verdict}  {self.name}: {self.figure} ({self.limit})"


def main() -> None:
    """Measure, and print the tables and the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=10_000_000, help="0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--write", action="store_true", help=f"keep the figures in {RESULTS.name}"
    )
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    began = time.perf_counter()
    names = ("empty", "plotly", str(SMALL), str(given.spans))
    found = Found(pages={name: Figures() for name in names})
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        os.environ[FOLDER_VARIABLE] = str(Path(folder) / "cache")
        _measure(driver, Path(folder), given.spans, given.rounds, found)
        if given.large:
            _measure_large(driver, Path(folder), given.large, found)
    text = "\n".join(_report(found, given.spans, given.large))
    print(text)
    took = f"took {time.perf_counter() - began:.0f} s"
    print(took)
    if given.write:
        _keep(text, took)


def _say(text: str, found: Found) -> None:
    load = os.getloadavg()[0]
    found.loads.append(load)
    print(f"{time.strftime('%H:%M:%S')} load {load:.1f}: {text}", file=sys.stderr)


def _measure(
    driver: Playwright, folder: Path, spans: int, rounds: int, found: Found
) -> None:
    run, other = f"run-{spans}", folder / OTHER
    paths = [write_run(folder / f"run-{n}", shape_of(n)) for n in (SMALL, spans)]
    write_run(other, shape_of(spans))
    with (
        serve_runs(*paths, other) as served,
        dash_page(empty) as empty_url,
        dash_page(bars) as bars_url,
    ):
        for path in paths:
            found.opened_s[path.name] = open_run(served, path.name)
        for number in range(rounds):
            _say(f"round {number + 1} of {rounds}", found)
            plain_round(driver, empty_url, "#ready", found.pages["empty"])
            plain_round(driver, bars_url, ".bars .point", found.pages["plotly"])
            for size in (SMALL, spans):
                page = found.pages[str(size)]
                timeline_round(driver, served, f"run-{size}", page)
        found.memory_mb = served.resident_mb
        _say("many users at once", found)
        found.burst = parallel_requests(served, run, OTHER)
    _say("the report", found)
    html = folder / "report.html"
    _write_report(folder / run, html)
    found.report_mb = html.stat().st_size / 1e6
    for _ in range(rounds):
        file_round(driver, html, found.report)


def _write_report(run: Path, page: Path) -> None:
    command = ["fsdpdoctor", "report", "--format", "html", "--timeline", "full"]
    subprocess.run(
        [sys.executable, "-m", *command, "--out", str(page), str(run)], check=True
    )


def _measure_large(driver: Playwright, folder: Path, spans: int, found: Found) -> None:
    _say(f"writing {spans:,} spans", found)
    path = write_run(folder / f"run-{spans}", shape_of(spans))
    found.pages[str(spans)] = Figures()
    with serve_runs(path) as served:
        _say("opening them", found)
        found.opened_s[path.name] = open_run(served, path.name)
        for _ in range(2):
            timeline_round(driver, served, path.name, found.pages[str(spans)])
        found.large_mb = (served.own_mb, served.resident_mb)


def _report(found: Found, spans: int, large: int) -> Iterator[str]:
    loads = found.loads
    yield (
        f"{os.cpu_count()} processors, load {min(loads):.1f} to {max(loads):.1f}, "
        "headless Chromium without a GPU (software rendering)"
    )
    heads = ("page", "cold ms", "warm ms", "frame ms", "sharp ms", "CPU ms/zoom")
    yield "".join(f"{head:>14}" for head in (*heads, "view kB", "sent kB/zoom"))
    for name, f in [*found.pages.items(), ("report", found.report)]:
        cells = [
            *map(median, (f.cold_ms, f.warm_ms, f.frame_ms, f.sharp_ms, f.zoom_cpu_ms)),
            median(f.view_bytes) / 1000,
            median(f.sent_bytes) / 1000,
        ]
        yield f"{name:>14}" + "".join(f"{cell:14.1f}" for cell in cells)
    for name, seconds in found.opened_s.items():
        yield f"{name} was read and measured in {seconds:.1f} s"
    page, bar = found.pages[str(spans)], found.pages["plotly"]
    yield (
        f"against a plotly timeline of {BARS:,} bars: cold "
        f"{median(page.cold_ms) / median(bar.cold_ms):.2f}x, "
        f"warm {median(page.warm_ms) / median(bar.warm_ms):.2f}x"
    )
    yield (
        f"{len(found.burst.ms):,} requests, 200 at once: p50 "
        f"{found.burst.percentile(0.5):.0f} ms, largest {max(found.burst.ms):.0f} ms; "
        f"the other run was open after {found.burst.load_s:.1f} s"
    )
    if large:
        own, whole = found.large_mb
        yield f"server with {large:,} spans: {own:.0f} MB; mapped, too: {whole:.0f} MB"
    yield ""
    yield from (target.line for target in _targets(found, spans, large))


def _targets(found: Found, spans: int, large: int) -> Iterator[Target]:
    page, blank = found.pages[str(spans)], found.pages["empty"]
    for name, mine, its, limit_ms in (
        ("first paint, cold", page.cold_ms, blank.cold_ms, 800),
        ("first paint, warm", page.warm_ms, blank.warm_ms, 400),
    ):
        ratio = median(mine) / median(its)
        yield Target(
            name=name,
            limit=f"at most {limit_ms} ms, or 0.9x an empty Dash page",
            figure=f"{median(mine):.0f} ms, {ratio:.2f}x",
            met=median(mine) <= limit_ms or ratio <= 0.9,
        )
    yield from _zoom_targets(page, "")
    yield _below("bytes per view", median(page.view_bytes) / 1000, 300, "kB")
    small = median(found.pages[str(SMALL)].zoom_cpu_ms)
    yield _below(
        f"browser's processor time per zoom against {SMALL:,} spans",
        median(page.zoom_cpu_ms) / small,
        3,
        "x",
    )
    yield _below("server memory", found.memory_mb, 300, "MB")
    burst = found.burst
    yield _below(
        "200 tile requests at once while a run is read, p95",
        burst.percentile(0.95),
        250,
        "ms",
    )
    yield Target(
        name="their errors",
        limit="none",
        figure=str(len(burst.failed)),
        met=not burst.failed and len(burst.ms) > 0,
    )
    yield _below("HTML report, size", found.report_mb, 5, "MB")
    opens = median(found.report.cold_ms)
    yield _below("HTML report, opens from disk", opens / 1000, 3, "s")
    yield Target(
        name="HTML report, requests to the network",
        limit="none",
        figure=str(len(found.report.outside)),
        met=not found.report.outside,
    )
    if large:
        yield from _zoom_targets(found.pages[str(large)], f" at {large:,} spans")


def _zoom_targets(page: Figures, where: str) -> Iterator[Target]:
    yield _below(f"zoom, first frame, p50{where}", median(page.frame_ms), 20, "ms")
    yield _below(f"zoom, sharp{where}", median(page.sharp_ms), 100, "ms")


def _below(name: str, figure: float, limit: float, unit: str) -> Target:
    return Target(
        name=name,
        limit=f"below {limit:g} {unit}",
        figure=f"{figure:.3g} {unit}",
        met=figure < limit,
    )


def _keep(text: str, took: str) -> None:
    RESULTS.write_text(
        "# The dashboard, measured\n\n"
        "`python -m tests.benchmarks.dashboard --write` made this page: two shared "
        "cores, no GPU, so Chromium\ndraws in software. Medians; times until the "
        "canvas is painted. What the columns mean is said in\n"
        "`dashboard_browser.py`.\n\n"
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {took}\n\n"
        f"```text\n{text}\n```\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
