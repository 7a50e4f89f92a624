"""In a real browser: every page, every habit, and nothing from outside.

Pictures of all pages are kept in test-output/dashboard/.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")

from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import Entry, Loading, open_entry
from tests.dashboard.conftest import serve_runs
from tests.dashboard.visits import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# Minutes long, and a browser on a busy machine misses what it is asked to wait for:
# run apart with `pytest -m slow tests/dashboard`.
pytestmark = pytest.mark.slow


def test_the_keyboard_goes_everywhere(visit: Visit) -> None:
    """W S A D, F, N P, full stop and comma, C, Q, ? and Escape."""
    visit.open("timeline?run=before")
    keyboard = visit.page.keyboard
    visit.timeline("t.fit()")
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


def test_steps_follow_each_other(visit: Visit) -> None:
    """Each fills the picture, and says its number and length; the last has no next."""
    visit.open("timeline?run=before")
    visit.timeline("t.fit()")
    later = visit.page.get_by_role("button", name="step \u203a")
    before = visit.page.get_by_role("button", name="\u2039 step")
    said = "document.querySelector('.fd-status').textContent"
    later.click()
    visit.until(f"{said}.startsWith('step ')")
    first = visit.page.evaluate(said)
    shown = visit.timeline("[t.view.t0, t.view.t1]")
    assert shown[1] - shown[0] < visit.timeline("t.end") / 5
    later.click()
    visit.until(f"{said} !== {json.dumps(first)}")
    assert visit.timeline("t.view.t0") > shown[0]
    before.click()
    visit.until(f"{said} === {json.dumps(first)}")
    assert visit.timeline("[t.view.t0, t.view.t1]") == shown
    for _ in range(6):
        later.click()
        visit.page.wait_for_timeout(200)
    visit.until(f"{said} === 'there is no later step'")


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


def test_search_shows_what_it_found(visit: Visit) -> None:
    """From the whole run it goes to a span on the device, large enough to be seen, says
    which of how many it is, and marks the others until it is left.
    """
    visit.open("timeline?run=before")
    visit.timeline("t.fit()")
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("layers.3")
    visit.page.keyboard.press("Enter")
    visit.until("fsdpTimeline.selected && fsdpTimeline.selected.details")
    host = visit.timeline("t.sources[0].meta.series[t.selected.slice.series].row")
    assert host != 7
    visit.until(
        "(s => (s.end - s.start) / (fsdpTimeline.view.t1 - fsdpTimeline.view.t0)"
        " * fsdpTimeline.plot >= 24)(fsdpTimeline.selected.slice)"
    )
    said = visit.page.locator(".fd-found")
    assert said.inner_text().startswith("1 of ")
    visit.page.keyboard.press("Enter")
    visit.until("!document.querySelector('.fd-found').textContent.startsWith('1 of')")
    assert visit.timeline("t.searched.units.size") == 1
    visit.page.keyboard.press("Escape")
    assert visit.timeline("t.searched") is None


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


def test_the_cursors_time_is_that_of_the_view(visit: Visit) -> None:
    """Also where the view moved under a mouse that did not."""
    visit.open("timeline?run=before")
    box = visit.page.locator(".fd-stage").bounding_box()
    assert box is not None
    visit.page.mouse.move(box["x"] + 700, box["y"] + 120)
    visit.until("fsdpTimeline.hover")
    visit.page.evaluate(
        "(() => { const pen = fsdpTimeline.over, draw = pen.fillText.bind(pen);"
        " window.drawn = []; pen.fillText = (text, ...at) => {"
        " window.drawn.push(text); draw(text, ...at); }; })()"
    )
    for stretch in ("t.end / 2, t.end / 2 + 2e6", "t.end / 3, t.end / 3 + 9e6"):
        visit.timeline(f"(window.drawn.length = 0, t.setView({stretch}), 0)")
        visit.until("window.drawn.length > 0")
        visit.page.wait_for_timeout(600)
        said = visit.page.evaluate("window.drawn.at(-1)")
        assert said == visit.timeline(
            "fsdpFormat.moment(t.time(t.hover.x), (t.view.t1 - t.view.t0) / t.plot)"
        )


def test_sixty_four_ranks_fit_a_screen(visit: Visit) -> None:
    """Condensed, each rank is a line, and all lines are on the screen."""
    visit.open("timeline?run=wide")
    assert visit.timeline("t.condensed") is True
    assert visit.timeline("t.content <= t.bottom - t.top") is True
    visit.picture("ranks-64")
    visit.page.emulate_media(color_scheme="dark")


def test_the_picture_can_be_saved(visit: Visit) -> None:
    """The PNG button saves what is seen."""
    visit.open("timeline?run=before")
    with visit.page.expect_download() as saved:
        visit.page.get_by_role("button", name="PNG").click()
    assert Path(saved.value.path()).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


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
        found.until("fsdpTimeline.status.textContent.startsWith('nobody answers')")
    page.keyboard.press("/")
    page.keyboard.type("layers.3")
    found.page.evaluate("fsdpTimeline.say('')")
    page.keyboard.press("Enter")
    found.until("fsdpTimeline.status.textContent.startsWith('nobody answers')")
    assert errors == []
    context.close()
