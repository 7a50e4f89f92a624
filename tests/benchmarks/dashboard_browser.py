"""What a headless browser measures of a page: first paint, zooms, processor time.

Chromium draws in software here (no GPU): a frame's pixels cost processor time, too.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.dashboard.conftest import CHROMIUM, FLAGS, Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Playwright, Response

BARS = 1_000
"""Spans of the plotly timeline: at ten thousand it takes ten seconds a frame."""
ZOOMS = 8
WIDE, HIGH = 1440, 900  # of the window
TICKS = os.sysconf("SC_CLK_TCK")

PAINTED = "performance.getEntriesByName('fsdp-timeline-painted')[0]?.startTime"

SEEN = """
const look = () => {
  if (document.querySelector(%r)) window.seenAt = window.seenAt || performance.now();
};
new MutationObserver(look).observe(document, {childList: true, subtree: true});
"""

# Each zoom halves the view. First frame: the first painted after the view was set, from
# the tiles that there are. Sharp: the first in which none is missing. Both until the
# canvas is painted; nothing is asked meanwhile, for asking takes processor time.
ZOOM = """async (zooms) => {
  const t = window.fsdpTimeline, frames = [], sharp = [];
  const paint = t.paint.bind(t);
  let began = 0, first = 0, done = null;
  t.paint = () => {
    paint();
    const now = performance.now();
    if (!began) return;
    first = first || now - began;
    if (t.sharp) { done([first, now - began]); began = 0; }
  };
  for (let i = 0; i < zooms; i++) {
    const { t0, t1 } = t.view, centre = t0 + (t1 - t0) * 0.43;
    first = 0;
    const zoomed = new Promise((resolve) => { done = resolve; });
    began = performance.now();
    t.setView(centre - (centre - t0) * 0.5, centre + (t1 - centre) * 0.5);
    const [frame, whole] = await zoomed;
    frames.push(frame);
    sharp.push(whole);
    await new Promise((r) => { setTimeout(r, 250); });
  }
  t.paint = paint;
  return [frames, sharp];
}"""

# Bytes of the tiles that the shown view is made of.
VIEW_BYTES = """() => {
  const t = window.fsdpTimeline;
  const seen = t.order.flatMap((track) => (track.indices || []).map((index) =>
    t.loader.best(track.source, track.rank, track.small, track.level, index)));
  const blocks = seen.filter(Boolean).flatMap((found) => found.blocks);
  return blocks.reduce((sum, b) => sum + 8 + (b.shares ? b.count : 11 * b.count), 0);
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
    outside: list[str] = field(default_factory=list)  # requests to anywhere else


def median(values: list[float]) -> float:
    """Of some values; NaN of none."""
    return statistics.median(values) if values else float("nan")


def browser_cpu_s() -> float:
    """Processor seconds of the browsers that this process has started."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        if b"chromium" in command:
            times[pid] = (int(fields[11]) + int(fields[12])) / TICKS
    return sum(spent for pid, spent in times.items() if _is_ours(pid, parents))


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False


def until(page: Page, expression: str, seconds: float = 600) -> Any:
    """Ask from outside until it is true: the policy forbids eval in the page."""
    for _ in range(int(seconds / 0.02)):
        if value := page.evaluate(expression):
            return value
        page.wait_for_timeout(20)
    raise TimeoutError(expression)


@contextmanager
def new_browser(driver: Playwright) -> Iterator[BrowserContext]:
    """A browser that has seen nothing."""
    started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
    yield started.new_context(viewport={"width": WIDE, "height": HIGH})
    started.close()


def timeline_round(
    driver: Playwright, served: Served, run: str, found: Figures
) -> None:
    """Cold, warm, and a row of zooms."""
    with new_browser(driver) as browser:
        page = browser.new_page()
        page.goto(f"{served.base}assets/style.css?token={served.token}")
        for times in (found.cold_ms, found.warm_ms):
            page.goto(f"{served.base}timeline?run={run}")
            times.append(until(page, PAINTED))
            until(page, "fsdpTimeline.sharp && !document.querySelector('#first-paint')")
            page.wait_for_timeout(500)
        sizes: list[int] = []

        def count(response: Response) -> None:
            if "/api/tile" in response.url or "/api/memory" in response.url:
                sizes.append(response.request.sizes()["responseBodySize"])

        # Zooming in from the whole run, which the page may show without its start.
        page.evaluate("fsdpTimeline.fit()")
        page.wait_for_timeout(300)
        until(page, "fsdpTimeline.sharp")
        found.view_bytes.append(page.evaluate(VIEW_BYTES))
        page.on("response", count)
        zooms(page, found)
        page.wait_for_timeout(200)
        found.sent_bytes.append(sum(sizes) / ZOOMS)


def zooms(page: Page, found: Figures) -> None:
    """A row of zooms from the view that is shown."""
    before = browser_cpu_s()
    frames, sharp = page.evaluate(ZOOM, ZOOMS)
    spent = browser_cpu_s() - before
    found.frame_ms += frames
    found.sharp_ms += sharp
    found.zoom_cpu_ms.append(spent * 1000 / ZOOMS)


def plain_round(driver: Playwright, url: str, selector: str, found: Figures) -> None:
    """Cold and warm first paint of a page of Dash's own."""
    with new_browser(driver) as browser:
        browser.add_init_script(SEEN % selector)
        page = browser.new_page()
        for times in (found.cold_ms, found.warm_ms):
            page.goto(url)
            times.append(until(page, "window.seenAt"))
            page.wait_for_timeout(300)


def file_round(driver: Playwright, path: Path, found: Figures) -> None:
    """A report opened from disk: until it is painted, then zooms, and what it asks."""
    with new_browser(driver) as browser:
        page = browser.new_page()
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:", "blob:"))
                else found.outside.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        found.cold_ms.append(until(page, PAINTED))
        until(page, "fsdpTimeline.sharp")
        zooms(page, found)


@contextmanager
def dash_page(layout: Callable[[], Any]) -> Iterator[str]:
    """A bare Dash page on a server of its own."""
    import dash
    from cheroot import wsgi

    app = dash.Dash("benchmark")
    app.layout = layout()
    server = wsgi.Server(("127.0.0.1", 0), app.server)
    server.prepare()
    threading.Thread(target=server.serve, daemon=True).start()
    yield f"http://127.0.0.1:{server.bind_addr[1]}/"
    server.stop()


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
