"""The timeline in one file: what it says of a mark is what the server says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.renderers.html import render
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.finding_marks import finding_marks
from fsdpdoctor_dashboard.data.rank_tracks import shown_places
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun, meta_of
from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.pages.components import on_timeline
from fsdpdoctor_dashboard.server.page_part import MARK_LIMIT, fewer_ranks
from fsdpdoctor_dashboard.server.standalone_page import timeline_of, timeline_page
from tests.dashboard.node import needs_node, required, run_js
from tests.rig.changed import replace

ASKED = 60
"""Marks of each series."""
UNCUT = (Row.HOST, Row.COPIES)
"""Rows whose marks are whole spans in these runs."""


def said_in_the_page(run: OpenRun, asks: list[list[int]]) -> list[Any]:
    """What LocalSource answers, in Node."""
    body = timeline_page(run.store, meta_of(run), limit=None).body
    page = re.search(
        r'<script type="application/json" id="fd-data">(.*?)</script>', body
    )
    assert page is not None
    script = f"""
    const s = {required("data/local_source.js")}, {{ page, asks }} = given, found = [];
    (async () => {{
      const columns = await s.unpackColumns(page.columns, page.layout);
      const source = new s.LocalSource(page.meta, columns, page.memory);
      for (const ask of asks) found.push(await source.details(...ask));
      console.log(JSON.stringify(found));
    }})();
    """
    answers = run_js(script, {"page": json.loads(page[1]), "asks": asks})
    assert isinstance(answers, list)
    return answers


@needs_node
def test_a_page_without_a_server_says_the_same_of_a_mark(
    runs: dict[str, Path],
) -> None:
    """Title, causes and bytes of every kind of mark; its flow holds nothing else."""
    run = Library([runs["before"]], open_run).wait("before")
    parts = [s for s in run.store.series(1) if SERIES[s.series].row < Row.STEP]
    asks = [[1, s.series, at] for s in parts for at in range(len(s.start))[:ASKED]]
    spans = [int(s.span[at]) for s in parts for at in range(len(s.start))[:ASKED]]
    local = said_in_the_page(run, asks)
    flows = 0
    for (rank, series, _), span, found in zip(asks, spans, local, strict=True):
        expected = run.details.of(rank, series, span)
        size = [fact for fact in expected["facts"] if fact[0] == "bytes"]
        assert [found["title"], found.get("causes")] == [
            expected["title"],
            expected.get("causes"),
        ]
        assert [fact for fact in found["facts"] if fact[0] == "bytes"] == size
        places = {(p["row"], p["start"], p["end"]) for p in expected["flow"]}
        mine = {(p["row"], p["start"], p["end"]) for p in found["flow"]}
        whole = {place for place in mine if place[0] in UNCUT}
        assert whole <= places
        flows += bool(whole)

    assert flows > ASKED


def test_a_page_is_drawn_without_judging(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs a picture only, and is what the server's run gives."""
    run = Library([runs["before"]], open_run).wait("before")
    meta = meta_of(run) | {"id": run.run.header.run_id, "label": run.run.header.run_id}
    expected = timeline_page(
        run.store, meta | {"fingerprint": f"{run.run.header.run_id}-1"}
    )
    monkeypatch.setattr("fsdpdoctor.report.diagnosis.judge_all", None)

    bare = replace(run.report, findings=())
    assert timeline_of(run.run, run.measures, bare, limit=MARK_LIMIT) == expected


def test_findings_lead_to_their_places(runs: dict[str, Path]) -> None:
    """Each to its own, else to a step like most, where the page's steps hold it, as the
    server's pages do; and lights all that it is about.
    """
    run = Library([runs["before"]], open_run).wait("before")
    page = timeline_of(run.run, run.measures, run.report, limit=None)
    expected = {}
    for at, row in enumerate(run.report.findings):
        (place, *_) = shown_places(run.measures, row)
        found = on_timeline(run, place)
        assert found is not None
        expected[at] = f"{place.rank},{found[0]},{found[1]}"
    cut = timeline_of(run.run, run.measures, run.report, limit=1)

    assert page.jumps == expected != {}
    assert set(cut.jumps) < set(expected)
    data = re.search(r'id="fd-data">(.*?)</script>', page.body)
    assert data is not None
    lit = json.loads(data[1])["lit"]
    assert lit.keys() == set(expected.values())
    marks = finding_marks(run.measures, run.store, run.report.findings[0])
    assert lit[expected[0]] == [list(mark) for mark in marks] != []
    assert f'data-jump="{expected[0]}"' in render(run.report, page)
    assert "data-jump" not in render(run.report)


def test_a_page_of_many_ranks_holds_some_and_says_so(runs: dict[str, Path]) -> None:
    """Those that findings lead to; its list of ranks, its marks and its places are
    theirs alone.
    """
    run = Library([runs["before"]], open_run).wait("before")
    rank = shown_places(run.measures, run.report.findings[0])[0].rank
    steps = fewer_ranks(run.store, 1, [rank])
    limit = sum(len(s.start) for s in steps.series(rank))
    page = timeline_of(run.run, run.measures, run.report, limit=limit)
    found = re.search(r'id="fd-data">(.*?)</script>', page.body)
    assert found is not None
    data = json.loads(found[1])

    assert [one["rank"] for one in data["meta"]["ranks"]] == [rank]
    assert {part["rank"] for part in data["layout"]} == {rank}
    assert data["memory"].keys() == {str(rank)}
    assert {jump.split(",")[0] for jump in page.jumps.values()} == {str(rank)}
    assert {mark[0] for marks in data["lit"].values() for mark in marks} == {rank}
    assert page.note.startswith("1 of 4 ranks, those that findings lead to among them:")
