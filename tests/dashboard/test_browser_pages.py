"""In a real browser: the pages beside the timeline, and what leaves the browser."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")

from fsdpdoctor.renderers.html import render
from fsdpdoctor.run import in_memory, open_run, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor_dashboard.data.run_registry import Entry, Loading, meta_of, open_entry
from fsdpdoctor_dashboard.server.standalone_page import timeline_page
from tests.dashboard.conftest import HOSTILE, Served, serve_runs
from tests.dashboard.visits import FAULTS, PATIENCE_SECONDS, Visit
from tests.simulate.steps import step

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# Minutes long, and a browser on a busy machine misses what it is asked to wait for:
# run apart with `pytest -m slow tests/dashboard`.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "path", ["", "timeline", "units", "collectives", "ranks", "memory"]
)
def test_every_page_shows(visit: Visit, path: str, theme: str) -> None:
    """No console error, no request to elsewhere, in both themes."""
    visit.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    visit.open(f"{path}?run=before")
    if path in ("collectives", "ranks", "memory"):
        visit.until("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
    assert visit.page.evaluate("document.documentElement.dataset.theme") == theme
    visit.picture(f"{path or 'overview'}-{theme}")


def test_two_runs_stand_beside_each_other(visit: Visit, runs: dict[str, Path]) -> None:
    """One timeline holds both, with a step like most of the first's together, which
    fills the picture.
    """
    both = [
        open_entry(Entry(id=name, path=runs[name]), open_run, Loading())
        for name in ("before", "after")
    ]
    step = both[0].store.facts[0].typical_step
    found = [
        (int(s.start_ns[at]) - run.store.origin_ns, int(s.duration_ns[at]))
        for run in both
        for s in (run.measures.ranks[0].steps,)
        for at in s.step.tolist()
        if at == step
    ]
    (begin, long), (other, longer) = found
    visit.open("timeline?run=before&with=after")
    assert visit.timeline("t.tracks.length") == 8
    offsets = visit.timeline("t.sources.map(s => s.offset)")
    assert offsets == [0, begin - other]
    view = visit.timeline("[t.view.t0, t.view.t1]")
    room = 0.02 * max(long, longer)
    assert view == pytest.approx([begin - room, begin + max(long, longer) + room])
    card = visit.page.locator(".side details.card[data-run=after]").first
    card.locator("summary").click()
    visit.until("fsdpTimeline.lit && fsdpTimeline.lit.source.id === 'after'")
    visit.page.wait_for_timeout(400)  # it has glided there
    place = (card.get_attribute("data-places") or "").split(";")[0].split(",")
    middle = (int(place[1]) + int(place[2])) / 2 + offsets[1]
    assert visit.timeline("(t.view.t0 + t.view.t1) / 2") == pytest.approx(middle)
    visit.picture("compare-timeline")
    visit.open("?run=before&with=after")
    assert visit.page.locator("main section h2.run").all_inner_texts() == [
        "before",
        "after",
    ]
    visit.picture("compare-overview")


def test_tables_sort_filter_and_save(visit: Visit) -> None:
    """A head sorts by number, by mouse and by key; the field filters, the button
    saves: counted figures under heads with their unit, nothing where none is known.
    """
    visit.open("units?run=before")
    first = "table.data tbody tr:not([hidden]) td:first-child"
    visit.page.wait_for_selector(first)
    visit.page.get_by_role("columnheader", name="exposed in forward").click()
    assert visit.page.locator(first).first.inner_text() == "model.layers.7"
    visit.page.get_by_role("columnheader", name="exposed in forward").focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.locator(first).first.inner_text() != "model.layers.7"
    visit.page.locator(".toolbar input").fill("layers.2")
    assert visit.page.locator(first).all_inner_texts() == ["model.layers.2"]
    with visit.page.expect_download() as saved:
        visit.page.get_by_role("button", name="Save as CSV").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0].startswith('"unit","gathers in forward"')
    assert '"exposed in forward [ns]"' in lines[0]
    assert '"bytes gathered [bytes]"' in lines[0]
    assert "-" not in "".join(lines[1:])
    assert [line.split(",")[0] for line in lines[1:]] == ['"model.layers.2"']


def test_hostile_names_are_only_names(visit: Visit) -> None:
    """On every page they are text: no script runs, no element is made."""
    for path in ("", "timeline", "units", "collectives", "ranks", "memory"):
        visit.open(f"{path}?run=hostile")
        visit.page.wait_for_timeout(300)
        assert visit.page.evaluate("window.hacked") is None
        assert visit.page.locator("img").count() == 0
    visit.open("units?run=hostile")
    texts = visit.page.locator("table.data td:first-child").all_inner_texts()
    assert HOSTILE[0] in texts
    assert max(len(text) for text in texts) <= 200
    assert visit.page.evaluate(FAULTS) == []
    visit.picture("hostile-units")
    visit.open("timeline?run=hostile")
    visit.page.keyboard.press("n")
    visit.until("fsdpTimeline.selected && fsdpTimeline.selected.details")
    visit.picture("hostile-timeline")
    assert visit.page.evaluate("window.hacked") is None


def test_the_theme_is_kept(visit: Visit) -> None:
    """A click turns it over, the timeline included, and a reload keeps it."""
    visit.open("timeline?run=before")
    was = visit.timeline("t.theme")
    visit.page.get_by_role("button", name="Theme").click()
    visit.until(f"fsdpTimeline.theme !== '{was}'")
    visit.open("timeline?run=before")
    assert visit.timeline("t.theme") != was


def test_the_view_is_there_after_another_page(visit: Visit) -> None:
    """A stretch of the timeline survives Units and back, and a late answer of the
    timeline changes no other page's address.
    """
    visit.open("timeline?run=before")
    middle = visit.timeline("(t.view.t0 + t.view.t1) / 2")
    visit.page.evaluate(f"fsdpTimeline.setView({middle} - 2e6, {middle} + 2e6)")
    visit.until("location.search.includes('t0=')")
    shown = visit.timeline("[t.view.t0, t.view.t1]")
    visit.page.get_by_role("link", name="Units").click()
    visit.page.wait_for_selector("table.data")
    visit.page.wait_for_timeout(400)
    assert "t0=" not in visit.page.url
    visit.page.get_by_role("link", name="Timeline", exact=True).click()
    visit.until("window.fsdpTimeline && !fsdpTimeline.gone && fsdpTimeline.sharp")
    again = visit.timeline("[t.view.t0, t.view.t1]")
    assert again == pytest.approx(shown, abs=2)


def test_what_if_answers_to_its_knobs(browser: Browser, tmp_path: Path) -> None:
    """The search runs by itself; a knob, a row and an address ask for a plan alike: the
    prediction, the code, the command and both lanes are of it, and it can be saved.
    """
    header = RunHeader(run_id="modelled", source="simulated", world_size=4)
    save_run(in_memory(header, [record(step(layers=4))]), tmp_path / "modelled")
    with serve_runs(tmp_path / "modelled") as served:
        context = browser.new_context(viewport={"width": 1440, "height": 1200})
        found = Visit(context.new_page(), served)
        found.page.goto(served.url)
        found.page.goto(served.base + "whatif?run=modelled")
        found.until("document.querySelector('#front .js-plotly-plot')")
        assert found.page.locator("#predicted").count() == 0
        found.page.locator("#knob-merge").click()
        found.page.get_by_text("two", exact=True).click()
        title = "document.querySelector('#prediction h2')?.textContent"
        found.until(f"{title}?.includes('merge 2')")
        found.until("location.search.includes('merge')")
        assert "fully_shard" in found.page.locator("#plan-code").inner_text()
        assert "--merge 2" in found.page.locator("#plan-command").inner_text()
        found.until("window.fsdpTimeline && fsdpTimeline.tracks.length === 2")
        labels = "fsdpTimeline.sources.map(s => s.meta.label)"
        lanes = ["simulated: as it was", "simulated: changed"]
        assert found.page.evaluate(labels) == lanes
        found.picture("whatif-light")
        with found.page.expect_download() as saved:
            found.page.get_by_role("button", name="Save this plan").click()
        plan = json.loads(Path(saved.value.path()).read_text())
        assert plan["plan"]["merge"] == 2

        row = found.page.locator("#front button.choice").first
        name = row.inner_text()
        row.click()
        found.until(f"{title} === {json.dumps('Predicted: ' + name)}")
        found.until("document.querySelector('#front button.choice[aria-pressed=true]')")
        address = found.page.url
        found.page.goto(served.base)
        found.page.goto(address)
        found.until(f"{title} === {json.dumps('Predicted: ' + name)}")
        found.page.get_by_role("button", name="Reset", exact=True).click()
        found.until("!location.search.includes('plan=')")
        assert found.wrong == []
        context.close()


def test_holding_a_key_shows_the_change(browser: Browser, tmp_path: Path) -> None:
    """The step glides to the predicted one while H is down, and back; a reader who
    types H into a field only types it.
    """
    header = RunHeader(run_id="modelled", source="simulated", world_size=4)
    save_run(in_memory(header, [record(step(layers=4))]), tmp_path / "modelled")
    with serve_runs(tmp_path / "modelled") as served:
        context = browser.new_context(viewport={"width": 1440, "height": 1200})
        found = Visit(context.new_page(), served)
        found.page.goto(served.url)
        found.page.goto(served.base + 'whatif?run=modelled&plan={"merge":2}')
        now = "document.querySelector('.morph-now')?.textContent"
        found.until(f"{now}?.startsWith('as it was: ')")
        before = found.page.evaluate(now)
        found.page.keyboard.down("h")
        found.until(f"{now}?.startsWith('with the change: ')")
        found.page.keyboard.up("h")
        found.until(f"{now} === {json.dumps(before)}")
        found.page.locator("#knob-bandwidth").press("h")
        found.page.wait_for_timeout(500)
        assert found.page.evaluate(now) == before
        assert found.wrong == []
        context.close()


@pytest.mark.parametrize("name", ["before", "hostile"])
def test_the_export_opens_from_disk(
    browser: Browser, runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """One file, no request, the same area statistics, the same keys."""
    opened = open_entry(Entry(id=name, path=runs[name]), open_run, Loading())
    page_file = tmp_path / "report.html"
    addition = timeline_page(opened.store, meta_of(opened))
    page_file.write_text(render(opened.report, addition), encoding="utf-8")
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    found = Visit(context.new_page(), Served(base="file://", token=""))
    found.page.goto(page_file.as_uri())
    found.until("!!(window.fsdpTimeline && fsdpTimeline.sharp)")
    end = opened.store.end
    shown = found.page.evaluate(
        f"fsdpTimeline.sources[0].area(1000, {end // 2}, [0, 1]).then(a => a.series)"
    )
    found.page.keyboard.press("n")
    found.until("fsdpTimeline.selected && fsdpTimeline.selected.details")
    found.page.locator(".fd-timeline").scroll_into_view_if_needed()
    found.picture(f"export-{name}")

    assert shown == [list(a) for a in opened.store.area(1000, end // 2, [0, 1])]
    assert found.page.evaluate("window.hacked") is None
    assert found.asked == [page_file.as_uri()]
    assert found.wrong == []
    context.close()


def test_a_report_is_printed_whole(
    browser: Browser, runs: dict[str, Path], tmp_path: Path
) -> None:
    """On A4 nothing is wider than the paper, the timeline neither; after printing it
    is as it was.
    """
    opened = open_entry(Entry(id="before", path=runs["before"]), open_run, Loading())
    page_file = tmp_path / "report.html"
    addition = timeline_page(opened.store, meta_of(opened))
    page_file.write_text(render(opened.report, addition), encoding="utf-8")
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    found = Visit(context.new_page(), Served(base="file://", token=""))
    found.page.goto(page_file.as_uri())
    found.until("!!(window.fsdpTimeline && fsdpTimeline.sharp)")
    wide = found.page.evaluate("document.querySelector('#fd-timeline').clientWidth")
    found.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    found.page.emulate_media(media="print")
    found.page.set_viewport_size({"width": 703, "height": 1030})  # A4 inside margins
    right = found.page.evaluate(
        "Math.max(...[...document.querySelectorAll('body *')]"
        ".map(e => e.getBoundingClientRect().right))"
    )
    assert right <= 703
    found.page.emulate_media(media="screen")
    found.page.set_viewport_size({"width": 1440, "height": 900})
    found.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    again = found.page.evaluate("document.querySelector('#fd-timeline').clientWidth")
    assert again == wide
    assert found.wrong == []
    context.close()


def test_a_growing_run_is_followed_in_the_page(
    browser: Browser, runs: dict[str, Path], tmp_path: Path
) -> None:
    """New steps appear without a reload."""
    folder = tmp_path / "growing"
    folder.mkdir()
    for file in runs["before"].iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    streams = {f: f.read_bytes() for f in folder.glob("*.arrows")}
    headers = {f: f.read_text() for f in folder.glob("rank*.json")}
    for file, content in streams.items():
        file.write_bytes(content[: len(content) // 2])
    for file, text in headers.items():
        file.write_text(text.replace('"done"', '"running"'))
    with serve_runs(folder) as served:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        found = Visit(context.new_page(), served)
        found.page.goto(served.url)
        found.open("timeline?run=growing")
        before = found.timeline("t.end")
        for file, content in streams.items():
            file.write_bytes(content)
        for file, text in headers.items():
            file.write_text(text)
        began = time.monotonic()
        found.until(f"fsdpTimeline.end > {before} * 1.2")
        assert time.monotonic() - began < PATIENCE_SECONDS
        assert found.wrong == []
        context.close()


def test_a_renewed_page_keeps_what_was_set(
    browser: Browser, runs: dict[str, Path], tmp_path: Path
) -> None:
    """A growing run's order, filter and opened details, and What-if's knobs."""
    folder = tmp_path / "growing"
    folder.mkdir()
    for file in runs["before"].iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    streams = {f: f.read_bytes() for f in folder.glob("*.arrows")}
    for file in folder.glob("rank*.json"):
        file.write_text(file.read_text().replace('"done"', '"running"'))
    for file, content in streams.items():
        file.write_bytes(content[: len(content) * 2 // 3])
    with serve_runs(folder) as served:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        visits: list[Visit] = []
        for path in ("units", "", "whatif"):
            found = Visit(context.new_page(), served)
            found.page.goto(served.url if not visits else served.base)
            found.open(f"{path}?run=growing")
            visits.append(found)
        units, overview, whatif = visits
        first = "table.data tbody tr:not([hidden]) td:first-child"
        units.page.wait_for_selector(first)
        units.page.get_by_role("columnheader", name="forward compute").click()
        units.page.locator(".toolbar input").fill("layers")
        before = units.page.locator("table.data tbody").inner_text()
        overview.page.locator("main details summary").last.click()
        whatif.until("document.querySelector('#prediction').children.length > 0")
        whatif.page.locator("#knob-merge").click()
        whatif.page.get_by_text("two", exact=True).click()
        asked = "document.querySelector('#knob-merge').textContent.includes('two')"
        whatif.until(asked)
        for file, content in streams.items():
            file.write_bytes(content)
        for visit in visits:
            visit.page.bring_to_front()
        units.until(
            "document.querySelector('table.data tbody').innerText !== "
            f"{json.dumps(before)}"
        )
        units.page.wait_for_timeout(300)
        sorted_by = units.page.locator("th[aria-sort=descending]")
        assert sorted_by.all_inner_texts()[0].startswith("forward compute")
        assert units.page.locator(".toolbar input").input_value() == "layers"
        assert "<root>" not in units.page.locator(first).all_inner_texts()
        assert overview.page.locator("main details[open]").count() == 1
        assert whatif.page.evaluate(asked)
        assert [visit.wrong for visit in visits] == [[], [], []]
        context.close()
