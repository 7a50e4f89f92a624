"""The file for Perfetto: exact times, tracks a viewer keeps, arrows, exposed time."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.analysis.timeline import timeline_of
from fsdpdoctor.cli import main
from fsdpdoctor.exporters.perfetto import FIRST_LANE_TRACK, RankView, rank_events
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData, in_memory, save_run
from fsdpdoctor.schema import NO_TIME, Kind, Lane, ModelSpec, RunHeader, Spans
from fsdpdoctor.testing import draw, unit
from tests.importers.generated import EPOCH_NS, generated_rank
from tests.rig.changed import replace

HEADER = RunHeader(run_id="a", source="recorded", world_size=2)


def fsdpdoctor(*args: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, [str(arg) for arg in args])


def events(data: RankData, base_ns: int = EPOCH_NS) -> list[dict[str, Any]]:
    """What is written of a rank with its own stalls, since its first second."""
    (rank,) = measure(in_memory(HEADER, [data])).ranks
    return list(rank_events(RankView(data=data, stalls=rank.stalls), base_ns))


def ns(us: float) -> int:
    """A time in the file, as it was before."""
    return round(us * 1000)


def misnested(found: list[dict[str, Any]]) -> int:
    """Slices that overlap another of their track and are not nested in it."""
    tracks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            start = ns(event["ts"])
            tracks[event["tid"]].append((start, start + ns(event["dur"])))
    bad = 0
    for slices in tracks.values():
        stack: list[int] = []
        for start, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            bad += bool(stack) and end > stack[-1]
            stack.append(end)
    return bad


def later(data: RankData, by_ns: int) -> RankData:
    """The same rank on a clock that is ahead."""
    steps = []
    for step in data.steps:
        columns = {name: getattr(step.spans, name) for name in Spans.columns()}
        for name in ("start_ns", "end_ns", "issued_ns"):
            moved = columns[name] + by_ns
            columns[name] = np.where(columns[name] == NO_TIME, NO_TIME, moved)
        times = {
            name: getattr(step, name) + by_ns
            for name in ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
        }
        steps.append(replace(step, spans=Spans(**columns), **times))
    return replace(data, steps=tuple(steps))


def test_every_span_is_a_slice_to_the_nanosecond() -> None:
    """Also where the clock is Unix time, too large for a float of microseconds."""
    data = generated_rank(layers=2, steps=1)
    spans = data.steps[0].spans
    found = [
        (ns(event["ts"]) + EPOCH_NS, ns(event["ts"] + event["dur"]) + EPOCH_NS)
        for event in events(data)
        if event["ph"] == "X" and event["tid"] >= FIRST_LANE_TRACK
    ]

    expected = zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True)
    assert sorted(found) == sorted(expected)


def test_r40_overlapping_spans_get_further_tracks() -> None:
    """Two kernels that overlap, and windows of several units, stay whole; what is
    nested stays together.
    """
    spans = Spans.build(
        kind=[Kind.KERNEL, Kind.KERNEL, Kind.KERNEL, *[Kind.UNSHARDED] * 3],
        lane=[Lane.COMPUTE] * 3 + [Lane.UNSHARDED] * 3,
        start_ns=[0, 5, 20, 0, 1, 2],
        end_ns=[10, 15, 30, 9, 10, 11],
    )
    drawn = draw("forward 0")
    step = replace(drawn.steps[0], spans=spans)
    found = events(RankData(header=drawn.header, steps=(step,)), base_ns=0)
    names = {
        event["tid"]: event["args"]["name"]
        for event in found
        if event["name"] == "thread_name"
    }
    by_track = [
        (names[event["tid"]], ns(event["ts"]))
        for event in found
        if event["ph"] == "X" and event["tid"] >= FIRST_LANE_TRACK
    ]

    assert sorted(by_track) == [
        ("compute", 0),
        ("compute", 20),
        ("compute (2)", 5),
        ("unsharded", 0),
        ("unsharded (2)", 1),
        ("unsharded (3)", 2),
    ]
    assert misnested(found) == 0
    assert misnested(events(generated_rank(layers=3))) == 0


def test_units_of_several_models_say_which() -> None:
    """Who looks at slices cannot ask which tree it was."""
    units = (unit("0", model=0), unit("0 [tree=1]", tree=1, model=1))
    spec = ModelSpec(wrapper="fsdp2", models=("Actor", "Critic"))
    found = events(draw("forward  01", units=units, model=spec))

    names = {event["name"] for event in found if event["ph"] == "X"}
    assert {"forward 0 of Actor", "forward 0 of Critic"} <= names
    assert "[tree=" not in json.dumps(found)


def test_exposed_time_has_its_own_track(tmp_path: Path) -> None:
    """Its slices are the report's stalls, with causes that add up to them."""
    ranks = [generated_rank(rank=rank, world_size=2, layers=2) for rank in (0, 1)]
    save_run(in_memory(HEADER, ranks), tmp_path / "run")
    said = fsdpdoctor("export", tmp_path / "run", "--to", "perfetto")
    path = tmp_path / "run" / "perfetto" / "perfetto.json.gz"
    written = json.loads(gzip.decompress(path.read_bytes()))
    exposed = [
        event
        for event in written["traceEvents"]
        if event["ph"] == "X" and event["name"].startswith("exposed: ")
    ]

    assert said.stderr == f"wrote {path}: open it in https://ui.perfetto.dev\n"
    assert {event["pid"] for event in exposed} == {0, 1}
    stalls = [timeline_of(data, step).stalls for data in ranks for step in data.steps]
    assert [ns(event["dur"]) for event in exposed] == [
        int(length) for one in stalls for length in one.duration_ns
    ]
    for event in exposed:
        causes = [v for name, v in event["args"].items() if name.endswith("_ns")]
        assert sum(causes) == ns(event["dur"])


def test_ranks_stand_on_one_clock(tmp_path: Path) -> None:
    """A rank whose clock is 7 s ahead ends its collectives when the others do."""
    ranks = [generated_rank(rank=rank, world_size=2) for rank in (0, 1)]
    ranks[1] = later(ranks[1], 7_000 * MS)
    save_run(in_memory(HEADER, ranks), tmp_path / "run")
    fsdpdoctor("export", tmp_path / "run", "--to", "perfetto", "--out", tmp_path / "p")
    written = json.loads(
        gzip.decompress((tmp_path / "p/perfetto.json.gz").read_bytes())
    )
    ends: dict[int, list[int]] = {0: [], 1: []}
    for event in written["traceEvents"]:
        if event["name"].startswith("all-gather "):
            ends[event["pid"]].append(ns(event["ts"] + event["dur"]))

    assert ends[0] == ends[1]
    assert len(ends[0]) == 18


def test_arrows_lead_from_the_call_to_the_wait() -> None:
    """Each gather's arrow begins in its unshard call, passes the gather and ends in
    what waited for it; it never points back in time.
    """
    found = events(generated_rank(layers=2, steps=1))
    slices = [event for event in found if event["ph"] == "X"]
    arrows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in found:
        if event["ph"] in "stf":
            arrows[event["id"]].append(event)

    def around(event: dict[str, Any]) -> str:
        """The innermost slice that a viewer binds an arrow's end to."""
        fitting = [
            one
            for one in slices
            if one["tid"] == event["tid"]
            and ns(one["ts"]) <= ns(event["ts"]) < ns(one["ts"] + one["dur"])
        ]
        name: str = min(fitting, key=lambda one: one["dur"])["name"]
        return name

    gathers = [a for a in arrows.values() if around(a[0]).startswith("unshard")]
    assert len(gathers) == 5
    for arrow in gathers:
        unit = around(arrow[0]).removeprefix("unshard ")
        assert [(event["ph"], around(event)) for event in arrow] == [
            ("s", f"unshard {unit}"),
            ("t", f"all-gather {unit}"),
            ("f", f"copy-out {unit}"),
        ]
    for arrow in arrows.values():
        times = [event["ts"] for event in arrow]
        assert times == sorted(times)


def test_it_is_not_read_back(tmp_path: Path) -> None:
    """It has no profiler's form, and says which run to analyze."""
    save_run(in_memory(HEADER, [generated_rank(world_size=2)]), tmp_path / "run")
    fsdpdoctor("export", tmp_path / "run", "--to", "perfetto", "--out", tmp_path / "p")

    assert fsdpdoctor("analyze", tmp_path / "p").stderr == (
        f"Error: {tmp_path / 'p' / 'perfetto.json.gz'} was exported for Perfetto, from "
        "a recorded run: analyze that run itself\n"
    )
