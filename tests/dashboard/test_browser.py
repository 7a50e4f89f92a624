"""In a real browser: every page, every habit, and nothing from outside.

Pictures of all pages are kept in test-output/dashboard/.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
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
from tests.dashboard.visits import FAULTS, PATIENCE_SECONDS, Visit, visiting
from tests.simulate.steps import step

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Minutes long, and a browser on a busy machine misses what it is asked to wait for:
# run apart with `pytest -m slow tests/dashboard`.
pytestmark = pytest.mark.slow


@pytest.fixture
def visit(browser: Browser, served: Served) -> Iterator[Visit]:
    """An admitted browser; at the end nothing may have gone wrong."""
    with visiting(browser, served) as found:
        yield found


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
    """One timeline holds both, with their first judged step together."""
    both = [
        open_entry(Entry(id=name, path=runs[name]), open_run, Loading())
        for name in ("before", "after")
    ]
    starts = [
        int(run.measures.ranks[0].steps.start_ns[3]) - run.store.origin_ns
        for run in both
    ]
    visit.open("timeline?run=before&with=after")
    assert visit.timeline("t.tracks.length") == 8
    offsets = visit.timeline("t.sources.map(s => s.offset)")
    assert offsets == [0, starts[0] - starts[1]]
    visit.picture("compare-timeline")
    visit.open("?run=before&with=after")
    assert visit.page.locator("main section h2.run").all_inner_texts() == [
        "before",
        "after",
    ]
    visit.picture("compare-overview")


def test_the_keyboard_goes_everywhere(visit: Visit) -> None:
    """W S A D, F, N P, full stop and comma, C, Q, ? and Escape."""
    visit.open("timeline?run=before")
    keyboard = visit.page.keyboard
    whole = visit.timeline("t.view.t1 - t.view.t0")
    keyboard.down("w")
    visit.until(f"fsdpTimeline.view.t1 - fsdpTimeline.view.t0 < {whole} * 0.5")
    keyboard.up("w")
    before = visit.timeline("t.view.t0")
    keyboard.down("d")
    visit.until(f"fsdpTimeline.view.t0 > {before}")
    keyboard.up("d")
    keyboard.press("0")
    visit.until(f"Math.abs(fsdpTimeline.view.t1 - fsdpTimeline.view.t0 - {whole}) < 1")

    keyboard.press("n")
    visit.until("fsdpTimeline.selected && fsdpTimeline.selected.details")
    first = visit.timeline("t.selected.slice.start")
    keyboard.press("n")
    visit.until(f"fsdpTimeline.selected.slice.start > {first}")
    keyboard.press("p")
    visit.until(f"fsdpTimeline.selected.slice.start === {first}")
    keyboard.press(".")
    visit.until(f"fsdpTimeline.selected.slice.start > {first}")
    keyboard.press(",")
    visit.until(f"fsdpTimeline.selected.slice.start === {first}")
    keyboard.press("f")
    visit.until(f"fsdpTimeline.view.t1 - fsdpTimeline.view.t0 < {whole} * 0.2")
    keyboard.press("r")
    # Its answer opens the details, whenever it comes.
    title = "document.querySelector('.fd-details strong')"
    visit.until(f"{title} && {title}.textContent.startsWith('Area')")

    keyboard.press("c")
    assert visit.timeline("t.condensed") is True
    keyboard.press("q")
    assert visit.page.locator(".fd-details").is_hidden()
    keyboard.press("?")
    assert visit.page.locator(".fd-help").is_visible()
    visit.picture("keys")
    keyboard.press("Escape")
    keyboard.press("Escape")
    assert visit.timeline("[t.selected, t.area]") == [None, None]


def test_every_key_is_in_the_list_of_keys(visit: Visit) -> None:
    """What `?` shows is all that the keyboard does."""
    visit.open("timeline?run=before")
    visit.page.keyboard.press("?")
    listed = " ".join(visit.page.locator(".fd-help kbd").all_inner_texts())
    words = {word.rstrip(",") or word for word in listed.split()}
    bound = visit.timeline("Object.keys(t.keys.acts())")
    names = {"Escape": "Esc", "=": "+", "m": "M"}
    plain = {key.removeprefix("Shift+").removeprefix("Arrow") for key in bound}

    missing = {names.get(key, key.upper() if len(key) == 1 else key) for key in plain}
    assert missing - words == set()


def test_marks_are_set_found_again_and_removed(visit: Visit) -> None:
    """M marks what is selected, the address keeps it, ] goes to it, M unmarks."""
    visit.open("timeline?run=before")
    keyboard = visit.page.keyboard
    keyboard.press("n")
    visit.until("fsdpTimeline.selected && fsdpTimeline.selected.details")
    visit.page.wait_for_timeout(300)  # the view has glided there
    keyboard.press("m")
    marked = visit.timeline(
        "[t.bookmarks.list, [{t0: t.selected.slice.start, t1: t.selected.slice.end}]]"
    )
    assert marked[0] == marked[1]
    visit.until("location.search.includes('marks=')")
    visit.picture("mark")
    address = visit.page.url
    visit.page.goto(visit.served.base)
    visit.page.goto(address)
    visit.until("window.fsdpTimeline && fsdpTimeline.selected && fsdpTimeline.sharp")
    assert visit.timeline("t.bookmarks.list") == marked[0]

    visit.timeline("t.setView(t.end * 0.8, t.end * 0.9)")
    keyboard.press("[")
    mark = marked[0][0]
    middle = (mark["t0"] + mark["t1"]) / 2
    assert visit.timeline("(t.view.t0 + t.view.t1) / 2") == pytest.approx(middle)
    keyboard.press("m")
    assert visit.timeline("t.bookmarks.list") == []
    keyboard.press("m")
    keyboard.press("Shift+m")
    assert visit.timeline("t.bookmarks.list") == []


def test_every_row_can_be_reached_by_key(visit: Visit) -> None:
    """Shift and the arrows go from row to row and from rank to rank."""
    visit.open("timeline?run=before")
    keyboard = visit.page.keyboard
    keyboard.press(".")
    visit.until("fsdpTimeline.selected && fsdpTimeline.selected.details")
    seen = []
    place = (
        "[t.selected.track.rank, t.sources[0].meta.series[t.selected.slice.series].row]"
    )
    for _ in range(12):
        before = visit.timeline(place)
        seen.append(tuple(before))
        keyboard.press("Shift+ArrowDown")
        visit.until(
            "(() => { const t = fsdpTimeline; return t.selected && t.selected.details"
            f" && JSON.stringify({place}) !== '{json.dumps(before)}'.replace(' ', '');"
            " })()"
        )

    rows = visit.timeline("t.order.flatMap(k => k.boxes.map(b => [k.rank, b.row]))")
    order = [tuple(row) for row in rows]
    places = [order.index(place) for place in seen]
    assert places == sorted(places)
    assert {rank for rank, _ in seen} == {0, 1}


def test_a_trace_for_perfetto_can_be_saved(visit: Visit) -> None:
    """One file with every rank, our lanes and what was exposed."""
    visit.open("timeline?run=before")
    with visit.page.expect_download() as saved:
        visit.page.get_by_role("button", name="Perfetto").click()
    assert saved.value.suggested_filename == "before.perfetto.json.gz"
    trace = json.loads(gzip.decompress(Path(saved.value.path()).read_bytes()))
    names = {
        event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }
    assert sorted(names) == [f"rank {rank} on node0" for rank in range(4)]


def test_the_mouse_has_its_habits(visit: Visit) -> None:
    """Ctrl and wheel zoom, wheel scrolls, Shift and drag moves, drag selects."""
    visit.open("timeline?run=before")
    mouse, keyboard = visit.page.mouse, visit.page.keyboard
    whole = visit.timeline("t.view.t1 - t.view.t0")
    mouse.move(900, 300)
    keyboard.down("Control")
    mouse.wheel(0, -400)
    keyboard.up("Control")
    visit.until(f"fsdpTimeline.view.t1 - fsdpTimeline.view.t0 < {whole}")
    keyboard.down("Shift")
    view = visit.timeline("t.view")
    mouse.down()
    mouse.move(1000, 300, steps=4)
    mouse.up()
    keyboard.up("Shift")
    assert visit.timeline("t.view.t0") < view["t0"]
    assert visit.timeline("t.area") is None
    mouse.down()
    mouse.move(1200, 320, steps=4)
    mouse.up()
    visit.until("document.querySelector('.fd-details tr[data-busy]')")
    assert visit.timeline("t.area.t1 > t.area.t0")
    visit.picture("area")


def test_an_area_shows_the_numbers_of_the_analysis(
    visit: Visit, runs: dict[str, Path]
) -> None:
    """What the panel says of a whole step is what the step's Timeline says."""
    opened = open_entry(Entry(id="before", path=runs["before"]), open_run, Loading())
    steps = opened.measures.ranks[0].steps
    t0 = int(steps.start_ns[3]) - opened.store.origin_ns
    t1 = int(steps.end_ns[3]) - opened.store.origin_ns
    expected = {
        name: sum(
            int(stalls.duration_ns[(stalls.step == 3) & (stalls.kind == kind)].sum())
            for stalls in (rank.stalls for rank in opened.measures.ranks)
        )
        for name, kind in (("exposed all-gather", 21), ("exposed reduce-scatter", 22))
    }
    visit.open("timeline?run=before")
    visit.page.evaluate(
        f"fsdpTimeline.area = {{t0: {t0}, t1: {t1}}}; fsdpTimeline.panel.showArea()"
    )
    visit.until("document.querySelector('.fd-details tr[data-busy]')")
    shown = visit.page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.fd-details tr[data-busy]')]"
        ".map(r => [r.dataset.series, Number(r.dataset.busy)]))"
    )

    assert {name: shown[name] for name in expected} == expected


def test_a_view_can_be_sent(visit: Visit) -> None:
    """Zoom, selection, pins and mode are in the address, and come back from it."""
    visit.open("timeline?run=before")
    visit.page.keyboard.press("n")
    visit.until("fsdpTimeline.selected && fsdpTimeline.selected.details")
    visit.page.keyboard.press("k")
    visit.until("location.search.includes('sel=') && location.search.includes('pin=')")
    visit.page.wait_for_timeout(400)
    address = visit.page.url
    state = visit.timeline(
        "[Math.round(t.view.t0), Math.round(t.view.t1), t.selected.slice.span]"
    )
    visit.page.goto(visit.served.base)
    visit.page.goto(address)
    visit.until("window.fsdpTimeline && fsdpTimeline.selected && fsdpTimeline.sharp")

    again = visit.timeline(
        "[Math.round(t.view.t0), Math.round(t.view.t1), t.selected.slice.span]"
    )
    assert again == state
    assert visit.timeline("t.tracks.filter(x => x.pinned).length") == 1


def test_search_goes_to_the_unit(visit: Visit) -> None:
    """Enter goes to the next span of the unit, and a whole name wins."""
    visit.open("timeline?run=before")
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("layers.3")
    visit.page.keyboard.press("Enter")
    visit.until("fsdpTimeline.selected && fsdpTimeline.selected.details")
    assert visit.timeline("t.selected.details.title").endswith("model.layers.3")
    first = visit.timeline("t.selected.slice.start")
    visit.page.keyboard.press("Enter")
    visit.until(f"fsdpTimeline.selected.slice.start > {first}")


def test_hovering_says_what_is_there(visit: Visit) -> None:
    """A slice's own numbers where it can be told apart, else counts and shares."""
    visit.open("timeline?run=before")
    box = visit.page.locator(".fd-stage").bounding_box()
    assert box is not None
    place = visit.timeline(
        "(() => { const k = t.order[0], b = k.boxes.find(b => b.row === 1);"
        " return t.screenY(b.y) + b.height / 2; })()"
    )
    visit.page.mouse.move(box["x"] + 500, box["y"] + place)
    visit.until("!fsdpTimeline.tip.hidden")
    assert "rank 0" in visit.page.locator(".fd-tip").inner_text()
    height = visit.timeline("t.height")
    visit.page.mouse.move(box["x"] + 520, box["y"] + height - 20)
    visit.until(
        "!fsdpTimeline.tip.hidden && fsdpTimeline.tip.textContent.includes('unsharded')"
    )


def test_sixty_four_ranks_fit_a_screen(visit: Visit) -> None:
    """Condensed, each rank is a line, and all lines are on the screen."""
    visit.open("timeline?run=wide")
    assert visit.timeline("t.condensed") is True
    assert visit.timeline("t.content <= t.bottom - t.top") is True
    visit.picture("ranks-64")
    visit.page.emulate_media(color_scheme="dark")


def test_tables_sort_filter_and_save(visit: Visit) -> None:
    """A click on a head sorts by number, the field filters, the button saves."""
    visit.open("units?run=before")
    first = "table.data tbody tr:not([hidden]) td:first-child"
    visit.page.wait_for_selector(first)
    visit.page.get_by_role("columnheader", name="exposed in forward").click()
    assert visit.page.locator(first).first.inner_text() == "model.layers.7"
    visit.page.locator(".toolbar input").fill("layers.2")
    assert visit.page.locator(first).all_inner_texts() == ["model.layers.2"]
    with visit.page.expect_download() as saved:
        visit.page.get_by_role("button", name="Save as CSV").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0].startswith('"unit","gathers in forward"')
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


def test_the_picture_can_be_saved(visit: Visit) -> None:
    """The PNG button saves what is seen."""
    visit.open("timeline?run=before")
    with visit.page.expect_download() as saved:
        visit.page.get_by_role("button", name="PNG").click()
    assert Path(saved.value.path()).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_theme_is_kept(visit: Visit) -> None:
    """A click turns it over, the timeline included, and a reload keeps it."""
    visit.open("timeline?run=before")
    was = visit.timeline("t.theme")
    visit.page.get_by_role("button", name="Theme").click()
    visit.until(f"fsdpTimeline.theme !== '{was}'")
    visit.open("timeline?run=before")
    assert visit.timeline("t.theme") != was


def test_what_if_answers_to_its_knobs(browser: Browser, tmp_path: Path) -> None:
    """A slider changes the prediction, the code and the simulated timeline; the plan
    can be saved, and the search draws its front.
    """
    header = RunHeader(run_id="modelled", source="simulated", world_size=4)
    save_run(in_memory(header, [record(step(layers=4))]), tmp_path / "modelled")
    with serve_runs(tmp_path / "modelled") as served:
        context = browser.new_context(viewport={"width": 1440, "height": 1200})
        found = Visit(context.new_page(), served)
        found.page.goto(served.url)
        found.page.goto(served.base + "whatif?run=modelled")
        found.until("document.querySelector('#prediction h2')")
        before = found.page.locator("#predicted").inner_text()
        found.until("window.fsdpTimeline && fsdpTimeline.tracks.length === 2")
        found.page.locator("#knob-merge").click()
        found.page.get_by_text("two", exact=True).click()
        found.until(
            "document.querySelector('#prediction h2').textContent.includes('merge 2')"
        )
        assert found.page.locator("#predicted").inner_text() != before
        assert "fully_shard" in found.page.locator("#plan-code").inner_text()
        found.picture("whatif-light")
        with found.page.expect_download() as saved:
            found.page.get_by_role("button", name="Save this plan").click()
        plan = json.loads(Path(saved.value.path()).read_text())
        assert plan["plan"]["merge"] == 2
        found.page.get_by_role("button", name="Find the changes worth it").click()
        found.until("document.querySelector('#front p, #front .js-plotly-plot')")
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


def test_a_key_says_that_nobody_answers(
    browser: Browser, runs: dict[str, Path]
) -> None:
    """Once the server has ended, what cannot be asked is said and is no error."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with serve_runs(runs["before"]) as served:
        found = Visit(page, served)
        page.goto(served.url)
        found.open("timeline?run=before")
    for key in ("n", ".", "Shift+ArrowDown"):
        found.page.evaluate("fsdpTimeline.say('')")
        page.keyboard.press(key)
        found.until("fsdpTimeline.status.textContent === 'Failed to fetch'")
    page.keyboard.press("/")
    page.keyboard.type("layers.3")
    found.page.evaluate("fsdpTimeline.say('')")
    page.keyboard.press("Enter")
    found.until("fsdpTimeline.status.textContent === 'Failed to fetch'")
    assert errors == []
    context.close()
