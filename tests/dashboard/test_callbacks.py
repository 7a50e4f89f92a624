"""What the server answers when an address or a control changes, without a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from plotly.utils import PlotlyJSONEncoder

from fsdpdoctor.cli.processes.rank_in_place import write_ranking
from fsdpdoctor.network import Link
from fsdpdoctor.run import Run, in_memory, open_run, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.pages.collectives import page
from fsdpdoctor_dashboard.pages.components import Context
from tests.dashboard.client import Client
from tests.dashboard.pages.pictures.test_trial_points import RANKED
from tests.dashboard.synthetic import Shape, write_run
from tests.simulate.steps import step

HERE = {"url_search": "?run=small", "state": None}
"""An address without its page."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small runs, and one whose replay is exact: simulated."""
    root = tmp_path_factory.mktemp("runs")
    shape = Shape(ranks=2, layers=2, steps=4, kernels=2)
    header = RunHeader(
        run_id="exact", source="simulated", world_size=8, available=("unshard",)
    )
    save_run(in_memory(header, [record(step(4, blocking=True))]), root / "exact")
    return [
        write_run(root / "small", shape),
        write_run(root / "other", shape),
        root / "exact",
    ]


@pytest.fixture(scope="module")
def library(folders: list[Path]) -> Library:
    """They, read."""
    library = Library(folders, open_run)
    for entry in library.entries:
        library.wait(entry.id)
    return library


@pytest.fixture
def client(library: Library) -> Client:
    """A client that is let in."""
    client = Client(library)
    assert client.get("/?token=secret")[0] == 303
    return client


def words(component: Any) -> list[str]:
    """All texts in what was answered, in order."""
    if isinstance(component, str):
        return [component]
    if isinstance(component, list):
        return [word for part in component for word in words(part)]
    if isinstance(component, dict):
        return words(component.get("props", {}).get("children"))
    return []


def links(component: Any) -> Iterator[str]:
    """Where it leads to."""
    if isinstance(component, list):
        for part in component:
            yield from links(part)
    if isinstance(component, dict):
        props = component.get("props", {})
        if "href" in props:
            yield props["href"]
        yield from links(props.get("children"))


def page_of(client: Client, **values: object) -> Any:
    """The page's answer: its content, what it shows, whether nothing is to come."""
    return client.ask("page.children", **values)["response"]


def test_the_header_names_pages_and_runs(client: Client) -> None:
    """Links keep the runs; one that is shown already is not offered beside itself."""
    both = "?run=small&with=other"
    answer = client.ask("nav.children", url_pathname="/units", url_search=both)
    nav, runs = (answer["response"][name]["children"] for name in ("nav", "runs"))

    assert list(links(nav))[:3] == [
        "/runs?run=small&with=other",
        "/?run=small&with=other",
        "/timeline?run=small&with=other",
    ]
    assert [n["props"]["children"] for n in nav if n["props"]["className"]] == ["Units"]
    assert words(runs) == ["small and other", "small", "other", "exact", "compare"]
    assert list(links(runs))[-1] == "/units?run=small&with=exact"


def test_a_page_without_a_run_is_of_the_first_one(client: Client) -> None:
    """Of the command's order."""
    answer = client.ask("nav.children", url_pathname="/units", url_search="")
    assert words(answer["response"]["runs"]["children"])[0] == "small"


def test_a_page_is_made_once(client: Client) -> None:
    """Asked for again with the same state it is left as it is; a new theme makes only
    pages with figures anew.
    """
    made = page_of(client, url_pathname="/units", theme="light", **HERE)
    shown = made["shown"]["data"]
    assert shown == ["units", "small", "", "{}", "1 False"]
    assert made["tick"] == {"disabled": True}
    assert words(made["page"]["children"])[0] == "Units"

    again = page_of(client, url_pathname="/units", theme="dark", shown=shown, **HERE)
    assert again == {"tick": {"disabled": True}}
    ranks = page_of(client, url_pathname="/ranks", theme="dark", shown=shown, **HERE)
    assert ranks["shown"]["data"] == ["ranks", "small", "dark", "{}", "1 False"]


def test_what_an_address_chooses_is_part_of_what_is_shown(client: Client) -> None:
    """A rank and a step, from a finding's link."""
    search = "?run=small&rank=1&step=2&other=3"
    made = page_of(client, url_pathname="/timeline", url_search=search)
    assert made["shown"]["data"][3] == "{'rank': '1', 'step': '2'}"


def test_a_run_that_has_grown_renews_only_the_timelines_side(client: Client) -> None:
    """The timeline itself follows by its own questions."""
    made = page_of(client, url_pathname="/timeline", **HERE)
    before = [*made["shown"]["data"][:-1], "0 True"]
    answer = client.ask("page.children", url_pathname="/timeline", shown=before, **HERE)

    assert "page" not in answer["response"]
    assert answer["response"]["shown"]["data"] == made["shown"]["data"]
    assert list(answer["sideUpdate"]) == ["timeline-side"]


def test_what_is_not_there_is_said(client: Client) -> None:
    """No such page; no such run, which changes no state."""
    none = page_of(client, url_pathname="/none", **HERE)
    assert words(none["page"]["children"]) == ["There is no such page."]
    lost = page_of(client, url_pathname="/", url_search="?run=lost")
    assert words(lost["page"]["children"]) == ["there is no run with this id: lost"]
    assert lost["tick"] == {"disabled": True}
    assert client.ask("state.data", url_pathname="/", url_search="?run=lost") == {
        "multi": True,
        "response": {"state": {"data": ""}},
    }


def test_how_far_a_run_is_changes_the_state_once(client: Client) -> None:
    """Asked for again, nothing is new."""
    asked = {"url_pathname": "/", "url_search": "?run=small"}
    answer = client.ask("state.data", **asked)
    assert answer["response"]["state"]["data"] == "small@1"
    assert client.ask("state.data", state="small@1", **asked)["response"] == {}


def test_a_run_that_is_being_read_is_waited_for(folders: list[Path]) -> None:
    """A bar and the clock's tick; then why it could not be read."""
    may_open = threading.Event()

    def slow(path: Path) -> Run:
        may_open.wait(60)
        raise OSError("the disk is gone")

    library = Library(folders[:1], slow)
    client = Client(library)
    client.get("/?token=secret")
    waiting = page_of(client, url_pathname="/", **HERE)
    asked = {"url_pathname": "/", "url_search": "?run=small"}
    state = client.ask("state.data", **asked)["response"]["state"]["data"]
    may_open.set()
    loading = library.get("small")
    assert not isinstance(loading, OpenRun)
    assert loading.thread is not None
    loading.thread.join()
    failed = client.ask("state.data", **asked)["response"]["state"]["data"]

    assert waiting["page"]["children"]["props"]["className"] == "loading"
    assert waiting["tick"] == {"disabled": False}
    assert state == words(waiting["page"]["children"])[0]
    assert failed == "the disk is gone"


def whatif(client: Client, run: str, **knobs: object) -> Any:
    """The What-if page's answer to its controls."""
    values = {f"knob_{name}": value for name, value in knobs.items()}
    answer = client.ask("prediction.children", whatif_run=run, **values)
    return answer["response"]


def component(within: Any, name: str) -> Any:
    """The properties of the component with an id."""
    if isinstance(within, list):
        found = (component(part, name) for part in within)
        return next((props for props in found if props), None)
    if not isinstance(within, dict):
        return None
    props = within.get("props", {})
    return props if props.get("id") == name else component(props.get("children"), name)


def test_a_prediction_and_its_timeline(client: Client, library: Library) -> None:
    """The step as it was above the changed one, over the longer of the two."""
    found = whatif(client, "exact", reshard="false", forward_prefetch=-1)
    timeline = component(found["simulated"]["children"], "simulated-timeline")
    steps = [
        library.wait(run["id"]).measures.ranks[0].steps.duration_ns[0]
        for run in timeline["runs"]
    ]

    assert len(steps) == 2
    assert timeline["start"]["t1"] - timeline["start"]["t0"] == max(steps)
    assert words(found["prediction"]["children"])
    again = whatif(client, "exact", reshard="false")
    assert again["simulated"] == found["simulated"]


def test_what_cannot_be_done_is_said_under_the_controls(client: Client) -> None:
    """By the sentence of the command line, and without a timeline."""
    found = whatif(client, "exact", bandwidth="fast")
    assert found["simulated"]["children"] is None
    assert "fast" in " ".join(words(found["prediction"]["children"]))


def test_the_plan_that_is_shown_can_be_saved(client: Client) -> None:
    """As `run --apply` reads it; a plan that cannot be made is no file."""
    asked = {"whatif_run": "exact", "knob_reshard": "false"}
    answer = client.ask("plan-file.data", **asked)
    file = answer["response"]["plan-file"]["data"]

    assert file["filename"] == "plan.json"
    saved = json.loads(file["content"])
    assert saved["plan"] == {"reshard_after_forward": {"*": False}}
    none = client.ask("plan-file.data", whatif_run="exact", knob_bandwidth="x")
    assert none["response"] == {}


def test_changes_worth_it_are_searched_for(client: Client) -> None:
    """Without a question: a figure and a table of them."""
    answer = client.ask("front.children", whatif_run="exact")
    said = words(answer["response"]["front"]["children"])
    assert said[0] == "What the search found"
    assert "Changes worth it" in said


def test_what_a_tuning_has_measured_is_asked_for(
    client: Client, folders: list[Path]
) -> None:
    """Nothing of a run that was not tuned."""
    answer = client.ask("trials.children", whatif_run="exact")
    assert words(answer["response"]["trials"]["children"]) == []

    (folder,) = [one for one in folders if one.name == "exact"]
    write_ranking(folder, RANKED)
    answer = client.ask("trials.children", whatif_run="exact")
    said = words(answer["response"]["trials"]["children"])
    assert said[0] == "Tuned while it trains"
    assert said[1].startswith("2 changes ranked, 0 of them measured")


def test_the_address_gets_the_plan_that_is_shown(client: Client) -> None:
    """None for no change, and none where the knobs ask for what cannot be."""
    found = whatif(client, "exact", reshard="false")
    plan = '{"reshard_after_forward":{"*":false}}'

    assert found["whatif-plan"]["data"] == plan
    nothing = whatif(client, "exact")
    assert nothing["whatif-plan"]["data"] == ""
    assert nothing["simulated"]["children"] is None
    assert "whatif-plan" not in whatif(client, "exact", bandwidth="fast")


def test_collectives_are_held_against_the_network(library: Library) -> None:
    """The fastest of them as a share of the link that the command names."""
    link = Link(name="ib400", bytes_per_second=50e9, latency_ns=0)
    run = library.wait("small")
    context = Context(base="/", theme="light", runs=(run,), network=link)
    fastest = max(r.wire_busbw_gbps or 0 for r in run.report.collectives)
    text = words(json.loads(json.dumps(page(context), cls=PlotlyJSONEncoder)))
    said = next(word for word in text if word.startswith("The highest seen is"))

    assert said == (
        f"The highest seen is {fastest:.3g} GB/s: {fastest * 2:.1f} % of what ib400 "
        "can reach (50 GB/s)."
    )
