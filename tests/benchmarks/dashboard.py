"""The timeline at a million spans, beside an empty Dash page and a plotly timeline.

    python -m tests.benchmarks.dashboard [--spans 1000000] [--large 10000000]

One run, headless Chromium, every page in turn and round after round, medians at the
end, so that a busy machine is busy for all of them. Reads: first paint of a new
browser and of a second visit, first frame and sharp picture of a zoom, bytes per
view, the browser's processor time per zoom, the server's memory.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.dashboard.conftest import CHROMIUM, FLAGS, Served, serve_runs
from tests.dashboard.synthetic import shape_of, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright, Response

SMALL = 10_000
BARS = 1_000
"""Spans of the plotly timeline: at ten thousand it takes ten seconds a frame."""
ZOOMS = 8
TICKS = os.sysconf("SC_CLK_TCK")

SEEN = """
const look = () => {
  if (document.querySelector(%r)) window.seenAt = window.seenAt || performance.now();
};
new MutationObserver(look).observe(document, {childList: true, subtree: true});
"""

ZOOM = """async (zooms) => {
  const t = window.fsdpTimeline, frames = [], sharp = [];
  const paint = t.paint.bind(t);
  let painted = 0;
  t.paint = () => { paint(); painted = performance.now(); };
  const until = async (ready) => {
    while (!ready()) await new Promise((r) => { setTimeout(r, 2); });
  };
  for (let i = 0; i < zooms; i++) {
    const { t0, t1 } = t.view, centre = t0 + (t1 - t0) * 0.43;
    const began = performance.now();
    t.setView(centre - (centre - t0) * 0.5, centre + (t1 - centre) * 0.5);
    await until(() => painted >= began);
    frames.push(painted - began);
    await until(() => t.sharp);
    sharp.push(painted - began);
    await new Promise((r) => { setTimeout(r, 120); });
  }
  t.paint = paint;
  return [frames, sharp];
}"""


@dataclass
class Figures:
    """What was measured of one page, round after round."""

    cold_ms: list[float] = field(default_factory=list)
    warm_ms: list[float] = field(default_factory=list)
    frame_ms: list[float] = field(default_factory=list)
    sharp_ms: list[float] = field(default_factory=list)
    zoom_cpu_ms: list[float] = field(default_factory=list)
    view_bytes: list[float] = field(default_factory=list)
    sent_bytes: list[float] = field(default_factory=list)


def browser_cpu_s(root: int) -> float:
    """Processor seconds of a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        times[pid] = (int(fields[11]) + int(fields[12])) / TICKS
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        total += times.get(pid, 0.0)
        waiting += parents.get(pid, [])
    return total


def until(page: Page, expression: str, seconds: float = 600) -> Any:
    """Ask from outside until it is true: the policy forbids eval in the page."""
    for _ in range(int(seconds / 0.02)):
        if value := page.evaluate(expression):
            return value
        page.wait_for_timeout(20)
    raise TimeoutError(expression)


@contextmanager
def new_browser(driver: Playwright) -> Iterator[Browser]:
    """A browser that has seen nothing."""
    started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
    yield started
    started.close()


def timeline_round(
    driver: Playwright, served: Served, run: str, found: Figures
) -> None:
    """Cold, warm, and a row of zooms."""
    painted = "performance.getEntriesByName('fsdp-timeline-painted')[0]?.startTime"
    with new_browser(driver) as browser:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(f"{served.base}assets/style.css?token={served.token}")
        for times in (found.cold_ms, found.warm_ms):
            page.goto(f"{served.base}timeline?run={run}")
            times.append(until(page, painted))
            until(page, "fsdpTimeline.sharp && !document.querySelector('#early')")
            page.wait_for_timeout(500)
        sizes: list[int] = []

        def count(response: Response) -> None:
            if "api/tile" in response.url:
                sizes.append(response.request.sizes()["responseBodySize"])

        page.on("response", count)
        before = browser_cpu_s(os.getpid())
        frames, sharp = page.evaluate(ZOOM, ZOOMS)
        spent = browser_cpu_s(os.getpid()) - before
        page.wait_for_timeout(200)
        found.frame_ms += frames
        found.sharp_ms += sharp
        found.zoom_cpu_ms.append(spent * 1000 / ZOOMS)
        found.sent_bytes.append(sum(sizes) / ZOOMS)
        # What the view of a whole run needs, before compression.
        page.evaluate("fsdpTimeline.fit()")
        until(page, "fsdpTimeline.sharp")
        found.view_bytes.append(
            page.evaluate(
                "[...new Set([...fsdpTimeline.order].flatMap(t => (t.indices || [])"
                ".map(i => fsdpTimeline.loader.best(t.source, t.rank, t.small, t.level,"
                " i)?.tile)).filter(Boolean))].reduce((sum, tile) => sum +"
                " [...tile.blocks.values()].flat().reduce((s, b) => s + 8 +"
                " (b.shares ? b.count : 11 * b.count), 20), 0)"
            )
        )


def plain_round(driver: Playwright, url: str, selector: str, found: Figures) -> None:
    """Cold and warm first paint of a page of Dash's own."""
    with new_browser(driver) as browser:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_init_script(SEEN % selector)
        page = context.new_page()
        for times in (found.cold_ms, found.warm_ms):
            page.goto(url)
            times.append(until(page, "window.seenAt"))
            page.wait_for_timeout(300)


@contextmanager
def dash_page(layout: Callable[[], Any]) -> Iterator[str]:
    """A bare Dash page on a server of its own."""
    import dash
    import waitress

    app = dash.Dash("benchmark")
    app.layout = layout()
    server = waitress.create_server(app.server, host="127.0.0.1", port=0)
    threading.Thread(target=server.run, daemon=True).start()
    yield f"http://127.0.0.1:{server.effective_port}/"


def empty() -> Any:
    """Nothing but a word."""
    from dash import html

    return html.Div("ready", id="ready")


def bars() -> Any:
    """A timeline of plotly bars."""
    import plotly.graph_objects as go
    from dash import dcc

    rows = [f"rank {at % 8}" for at in range(BARS)]
    figure = go.Figure(
        go.Bar(
            base=[at // 8 * 2 for at in range(BARS)],
            x=[1] * BARS,
            y=rows,
            orientation="h",
        )
    )
    return dcc.Graph(figure=figure)


def median(values: list[float]) -> float:
    """Of some values; NaN of none."""
    return statistics.median(values) if values else float("nan")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=0, help="a larger run, as well")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    sizes = [SMALL, given.spans, *([given.large] if given.large else [])]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for size in sizes:
            paths.append(write_run(Path(folder) / f"run-{size}", shape_of(size)))
        found = {name: Figures() for name in ("empty", "plotly", *map(str, sizes))}
        with (
            serve_runs(*paths) as served,
            dash_page(empty) as empty_url,
            dash_page(bars) as bars_url,
            sync_playwright() as driver,
        ):
            _open_all(driver, served, sizes)
            for number in range(given.rounds):
                print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
                plain_round(driver, empty_url, "#ready", found["empty"])
                plain_round(driver, bars_url, ".bars .point", found["plotly"])
                for size in sizes:
                    timeline_round(driver, served, f"run-{size}", found[str(size)])
            memory = served.resident_mb
        show(found, memory)


def _open_all(driver: Playwright, served: Served, sizes: list[int]) -> None:
    """Reading and measuring a run is the analysis's time, not the page's."""
    with new_browser(driver) as browser:
        page = browser.new_page()
        page.goto(served.url)
        for size in sizes:
            began = time.perf_counter()
            page.goto(f"{served.base}timeline?run=run-{size}")
            until(page, "!!(window.fsdpTimeline && fsdpTimeline.sharp)", 3600)
            took = time.perf_counter() - began
            print(f"{size:,} spans opened in {took:.1f} s", file=sys.stderr)


def show(found: dict[str, Figures], memory_mb: float) -> None:
    """One row per page, then the ratios."""
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    heads = ("page", "cold ms", "warm ms", "frame ms", "sharp ms", "CPU ms/zoom")
    print("".join(f"{head:>14}" for head in (*heads, "view kB", "sent kB/zoom")))
    for name, f in found.items():
        cells = [
            *map(median, (f.cold_ms, f.warm_ms, f.frame_ms, f.sharp_ms, f.zoom_cpu_ms)),
            median(f.view_bytes) / 1000,
            median(f.sent_bytes) / 1000,
        ]
        print(f"{name:>14}" + "".join(f"{cell:14.1f}" for cell in cells))
    base, bar = found["empty"], found["plotly"]
    small = median(found[str(SMALL)].zoom_cpu_ms)
    for name, f in found.items():
        if name in ("empty", "plotly"):
            continue
        print(
            f"{name} spans: cold {median(f.cold_ms) / median(base.cold_ms):.2f}x and "
            f"warm {median(f.warm_ms) / median(base.warm_ms):.2f}x an empty Dash page, "
            f"{median(f.cold_ms) / median(bar.cold_ms):.2f}x and "
            f"{median(f.warm_ms) / median(bar.warm_ms):.2f}x a plotly timeline of "
            f"{BARS:,}; processor time per zoom "
            f"{median(f.zoom_cpu_ms) / small:.2f}x that of {SMALL:,} spans"
        )
    print(f"server memory with all of them open: {memory_mb:.0f} MB")


if __name__ == "__main__":
    main()
