"""Pictures of every page, in every light and for other eyes, and what is wrong on them.

A run recorded here, a healthy one beside it, and the public trace of eight ranks; all
pictures are kept in test-output/dashboard/.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")
pytest.importorskip("torch", reason="records a run")
pytest.importorskip("transformers", reason="records a run of a small Llama")

from tests.dashboard.conftest import Served, serve_runs
from tests.dashboard.visits import FAULTS, Visit, visiting
from tests.importers.real_traces import FOLDER
from tests.rig.ranks import TRAIN, run_python

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.ranks]

PAGES = ("", "timeline", "units", "collectives", "ranks", "memory", "whatif")
EYES = ("deuteranopia", "protanopia", "tritanopia", "achromatopsia")
RUNS = ("recorded", "healthy")
TRACE = "dlrm_8ranks"
RECORDED, PUBLIC, BOTH = "run=recorded", f"run={TRACE}", "run=recorded&with=healthy"


def record(folder: Path, *more: str) -> None:
    """A small Llama, trained with four gloo ranks."""
    size = ("--steps", "10", "--layers", "6", "--hidden", "128", "--sequence", "64")
    run_python(
        *("-m", "fsdpdoctor", "run", "--nproc-per-node", "4", "--no-report"),
        *("--out", str(folder), str(TRAIN), *size, *more),
    ).ok()


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two recorded runs, and the trace where it is beside the project."""
    root = tmp_path_factory.mktemp("pictured")
    record(root / "recorded", "--fault", "slow-rank", "--sleep-ms", "20")
    record(root / "healthy", "--fault", "prefetch")
    trace = FOLDER / TRACE
    with serve_runs(
        *(root / run for run in RUNS), *([trace] if trace.exists() else [])
    ) as served:
        yield served


@pytest.fixture
def visit(browser: Browser, pictured: Served) -> Iterator[Visit]:
    """An admitted browser; at the end nothing may have gone wrong."""
    with visiting(browser, pictured) as found:
        yield found


def show(visit: Visit, page: str, query: str) -> None:
    """Open a page and wait until all of it is there."""
    visit.open(f"{page}?{query}")
    visit.until(
        "[...document.querySelectorAll('.dash-graph')]"
        ".every(graph => graph.querySelector('.main-svg'))"
    )
    if page == "whatif":
        visit.until("document.querySelector('#prediction p, #prediction h2')")
        visit.until(
            "!document.querySelector('#simulated .fd-host')"
            " || !!(window.fsdpTimeline && fsdpTimeline.sharp)"
        )
    visit.page.wait_for_timeout(250)


@pytest.mark.parametrize(
    ("query", "theme", "width"),
    [
        *itertools.product((RECORDED, PUBLIC, BOTH), ("light", "dark"), (1440,)),
        *itertools.product((RECORDED, BOTH), ("light",), (1024,)),
    ],
)
def test_nothing_overlaps_or_is_cut(
    visit: Visit, query: str, theme: str, width: int
) -> None:
    """Each page in both themes and two widths, on a recorded run, a trace, and two
    runs: no text over another, none cut, nothing wider than its place.
    """
    if query == PUBLIC and not (FOLDER / TRACE).exists():
        pytest.skip(f"{FOLDER / TRACE} is not here")
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    about = query.replace("run=", "").replace("&with=", "-")
    faults: list[tuple[str, str]] = []
    for page in PAGES:
        show(visit, page, query)
        name = f"pages/{about}-{page or 'overview'}-{theme}"
        visit.picture(name if width == 1440 else f"{name}-{width}", whole=True)
        assert visit.page.evaluate("document.documentElement.dataset.theme") == theme
        faults += [(page, fault) for fault in visit.page.evaluate(FAULTS)]

    assert faults == []


@pytest.mark.parametrize("eye", EYES)
def test_pictures_for_other_eyes(visit: Visit, eye: str) -> None:
    """Kept to be looked at: test_words measures that the colours stay apart."""
    devtools = visit.page.context.new_cdp_session(visit.page)
    devtools.send("Emulation.setEmulatedVisionDeficiency", {"type": eye})
    show(visit, "", RECORDED)
    visit.picture(f"eyes/overview-{eye}")
    show(visit, "timeline", RECORDED)
    visit.picture(f"eyes/timeline-{eye}")
    visit.page.keyboard.press("n")
    visit.until("fsdpTimeline.selected && fsdpTimeline.selected.details")
    visit.page.wait_for_timeout(300)
    assert visit.timeline("t.bands.length") > 0
    visit.picture(f"eyes/exposed-{eye}")
