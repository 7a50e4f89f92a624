"""In a real browser: opened lanes, and the operators and kernels under them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")

from fsdpdoctor_dashboard.data.series import Row
from tests.dashboard.conftest import Served, serve_runs
from tests.dashboard.data.test_opened_lanes import NCCL, RECORDED, drawn
from tests.dashboard.test_browser_axe import AXE, serious
from tests.dashboard.visits import Visit, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

KERNELS = f"fsdpTimeline.track(0).open.get({int(Row.COMPUTE)})"
COMPUTE = "t.screenY(t.track(0).boxes.find((b) => b.label === 'compute').y) + 5"
TITLE = "(document.querySelector('.fd-details strong') || {}).textContent"
FOUND = "document.querySelector('.fd-found').textContent"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A trace of two ranks, and a recorded run."""
    folder = tmp_path_factory.mktemp("traced") / "traced"
    folder.mkdir()
    for rank in (0, 1):
        drawn(rank).write(folder / f"rank{rank}.json")
    with serve_runs(folder, RECORDED) as server:
        yield server


@pytest.fixture
def trace(browser: Browser, traced: Served) -> Iterator[Visit]:
    """The trace's timeline."""
    with visiting(browser, traced) as visit:
        visit.open("timeline?run=traced")
        visit.timeline("t.fit()")
        yield visit


def centre(visit: Visit, key: str, name: str) -> tuple[float, float]:
    """Where an event of an opened row is on the screen."""
    box = visit.page.locator(".fd-stage").bounding_box()
    assert box is not None
    x, y = visit.until(
        f"""(() => {{
          const t = fsdpTimeline, track = t.track(0);
          const box = track.boxes.find((b) => b.line && b.line.key === "{key}");
          if (!box) return null;
          const at = box.line.name.findIndex((n) => box.lane.names[n] === "{name}");
          if (at < 0 || box.line.count[at] > 1) return null;
          const middle = (box.line.start[at] + box.line.end[at]) / 2 + track.offset;
          return [t.x(middle), t.screenY(box.y) + box.height / 2];
        }})()"""
    )
    return box["x"] + x, box["y"] + y


def test_a_lane_is_opened_and_closed_by_mouse(trace: Visit) -> None:
    """Its name in the gutter is the opener; under it stands a row for each stream."""
    box = trace.page.locator(".fd-stage").bounding_box()
    assert box is not None
    y = trace.timeline(COMPUTE)
    before = trace.timeline("t.track(0).height")
    trace.page.mouse.click(box["x"] + 140, box["y"] + y)
    trace.until(f"({KERNELS} || {{lines: []}}).lines.length")
    assert trace.timeline("t.track(0).height") > before - 1
    labels = trace.timeline(
        "t.track(0).boxes.filter((b) => b.line).map((b) => b.label)"
    )
    assert "stream 7" in labels
    trace.until("fsdpTimeline.status.textContent.includes('of operators and kernels')")
    trace.picture("opened-lane")

    trace.page.mouse.click(box["x"] + 140, box["y"] + trace.timeline(COMPUTE))
    trace.until(f"!{KERNELS}")
    assert trace.timeline("t.track(0).boxes.some((b) => b.lane)") is False


def test_a_kernel_leads_to_its_launch_and_back(trace: Visit) -> None:
    """By key, with its arguments beside it; the launch's own lane is opened for it."""
    trace.page.keyboard.press("o")
    trace.timeline("t.setView(0, 100000)")
    x, y = centre(trace, "d0.7.0", "gemm")
    trace.page.mouse.move(x, y)
    trace.until("!document.querySelector('.fd-tip').hidden || null")
    assert trace.page.locator(".fd-tip").inner_text().startswith("gemm\n30.0 us")
    assert trace.page.locator(".fd-tip").inner_text().endswith("kernel, rank 0")
    trace.page.mouse.click(x, y)
    trace.until(f"{TITLE} === 'gemm'")
    words = trace.page.locator(".fd-details").inner_text()
    assert "kernel, rank 0, stream 7 of device 0" in words
    assert "Launched by\ncudaLaunchKernel" in words
    assert "Arguments\n" in words
    assert "correlation\t1" in words
    trace.picture("opened-kernel")

    trace.page.keyboard.press("l")
    trace.until(f"{TITLE} === 'cudaLaunchKernel'")
    words = trace.page.locator(".fd-details").inner_text()
    assert "Launched\ngemm" in words
    assert "Within\nProfilerStep#0" in words
    trace.picture("opened-launch")
    trace.page.locator(".fd-way", has_text="gemm").click()
    trace.until(f"{TITLE} === 'gemm'")
    trace.page.keyboard.press(".")
    trace.until(f"{TITLE} === 'tiny0'")
    trace.page.keyboard.press(",")
    trace.until(f"{TITLE} === 'gemm'")
    trace.page.keyboard.press("Escape")
    assert trace.timeline("t.events.selected") is None


def test_hits_of_a_search_are_walked_in_order(trace: Visit) -> None:
    """Of what is opened, n of m, to the last and back."""
    trace.page.keyboard.press("o")
    trace.until(f"{KERNELS} && {KERNELS}.lines.length")
    search = trace.page.locator(".fd-search")
    search.fill("tiny")
    starts = []
    for at in range(1, 7):
        search.press("Enter")
        trace.until(f"{FOUND} === '{at} of 6 events'")
        trace.until("fsdpTimeline.events.selected.details")
        starts.append(trace.timeline("t.events.selected.event.start"))
    assert starts == sorted(starts)
    assert len(set(starts)) == 6
    trace.picture("opened-search")
    search.press("Enter")
    trace.until(f"{FOUND} === '6 events, none after this'")
    search.press("Shift+Enter")
    trace.until(f"{FOUND} === '5 of 6 events'")
    search.fill("no such thing")
    search.press("Enter")
    trace.until(f"{FOUND} === 'none'")


def test_a_search_opens_the_lane_of_its_hit(trace: Visit) -> None:
    """Where nothing is open, and no unit is called so."""
    search = trace.page.locator(".fd-search")
    search.fill("ncclDevKernel")
    search.press("Enter")
    trace.until(f"{FOUND} === '1 of 2 events'")
    trace.until("fsdpTimeline.events.selected.details")
    assert trace.page.locator(".fd-details strong").inner_text() == NCCL
    assert trace.timeline("[...t.track(0).open.keys()]") == [int(Row.ALL_GATHER)]


def test_opened_lanes_are_in_the_address(trace: Visit) -> None:
    """And opened again with it."""
    trace.page.keyboard.press("o")
    trace.until(f"{KERNELS} && {KERNELS}.lines.length")
    trace.until("location.search.includes('open=')")
    address = trace.page.url
    trace.page.goto(trace.served.base)
    trace.page.goto(address)
    trace.until(f"window.fsdpTimeline && {KERNELS} && {KERNELS}.lines.length")


def test_a_recorded_run_says_why_it_has_no_operators(
    browser: Browser, traced: Served
) -> None:
    """Where its rows would be."""
    with visiting(browser, traced) as visit:
        visit.open(f"timeline?run={RECORDED.name}")
        visit.page.keyboard.press("o")
        words = "fsdpTimeline.status.textContent"
        visit.until(f"{words}.includes('without torch.profiler')")
        (box,) = visit.timeline("t.track(0).boxes.filter((b) => b.lane)")
        assert box["lane"]["words"].startswith("recorded without torch.profiler")
        visit.picture("opened-nothing")


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_is_found_in_an_opened_lane(trace: Visit, theme: str) -> None:
    """With a kernel selected, its arguments and the way to its launch."""
    trace.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    trace.open("timeline?run=traced")
    trace.page.keyboard.press("o")
    trace.timeline("t.setView(0, 100000)")
    trace.page.mouse.click(*centre(trace, "d0.7.0", "gemm"))
    trace.until(f"{TITLE} === 'gemm'")
    assert serious(trace) == []
    trace.picture(f"opened-{theme}")
