"""What a page is told of the lanes that it opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.open_paths import open_paths
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.data.series import Row
from tests.dashboard.client import Client
from tests.dashboard.data.test_opened_lanes import RECORDED, drawn


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, runs: dict[str, Path]) -> Client:
    """A browser that was let in, and a trace beside a recorded run."""
    folder = tmp_path_factory.mktemp("traced") / "traced"
    folder.mkdir()
    for rank in (0, 1):
        drawn(rank).write(folder / f"rank{rank}.json")
    library = Library([folder, RECORDED], lambda path: open_paths([path]))
    library.wait("traced")
    library.wait(RECORDED.name)
    found = Client(library)
    found.get("/?token=secret")
    return found


def ask(client: Client, name: str, **values: object) -> Any:
    """An answer, once the trace is read."""
    query = urlencode({"run": "traced", **values})
    while True:
        status, content = client.get(f"/api/{name}?{query}")
        answer = json.loads(content)
        if "reading" not in answer:
            return answer if status == 200 else (status, answer["error"])


WINDOW = {"t0": 0, "t1": 2_000_000, "pixel": 1}


def test_a_lane_is_told_row_by_row(client: Client) -> None:
    """With the names of what is in it, each once."""
    found = ask(client, "lane", rank=0, row=int(Row.COMPUTE), **WINDOW)
    (row,) = [row for row in found["rows"] if row["key"] == "d0.7.0"]
    names = [found["names"][str(name)] for name in row["name"]]
    assert names == ["gemm", "tiny0", "tiny1", "tiny2"] * 2
    assert row["label"] == "stream 7"
    assert found["more"] == 0


def test_one_leads_to_the_next_and_to_its_launch(client: Client) -> None:
    """By its number, as the lane gave it."""
    lane = ask(client, "lane", rank=0, row=int(Row.COMPUTE), **WINDOW)
    (row,) = [row for row in lane["rows"] if row["key"] == "d0.7.0"]
    gemm = row["event"][0]

    found = ask(client, "event", rank=0, event=gemm)
    assert (found["title"], found["launch"][0]["title"]) == ("gemm", "cudaLaunchKernel")
    beside = ask(client, "event-beside", rank=0, event=gemm, forward=1)
    assert beside["event"]["title"] == "tiny0"
    assert ask(client, "event-beside", rank=0, event=gemm, forward=0)["event"] is None


def test_a_search_is_walked_by_number(client: Client) -> None:
    """From the first at a moment on, to the last and not past it."""
    search = {"ranks": "0,1", "text": "Gemm", "time": 0}
    walked = [ask(client, "find-event", **search, at=0)]
    while walked[-1]["event"] is not None:
        walked.append(ask(client, "find-event", **search, at=walked[-1]["at"] + 1))

    assert [found["at"] for found in walked] == [1, 2, 3, 4, 0]
    assert {found["total"] for found in walked} == {4}
    events = [found["event"] for found in walked[:-1]]
    assert [event["rank"] for event in events] == [0, 1, 0, 1]
    assert [event["start"] for event in events] == sorted(e["start"] for e in events)
    last = ask(client, "find-event", **{**search, "time": 1 << 60}, at=0, forward=0)
    assert last["at"] == 4
    assert ask(client, "find-event", **{**search, "text": ""}, at=0)["total"] == 0


def test_a_run_without_a_trace_says_why(client: Client) -> None:
    """To each question."""
    for name in ("lane", "event", "event-beside", "find-event"):
        values = {"rank": 0, "ranks": "0", "row": 1, "event": 0, "text": "a", **WINDOW}
        found = ask(client, name, **{**values, "run": RECORDED.name})
        assert "recorded without torch.profiler" in found["why"]


def test_what_no_page_would_ask_is_refused(client: Client) -> None:
    """Ranks, rows and events that there are not."""
    assert ask(client, "lane", rank=9, row=1, **WINDOW) == (
        400,
        "the run has no such rank",
    )
    assert ask(client, "lane", rank=0, row=int(Row.STEP), **WINDOW) == (
        400,
        "this row cannot be opened",
    )
    for event in (-1, 1000):
        assert ask(client, "event", rank=0, event=event) == (
            400,
            "the rank has no such event",
        )
