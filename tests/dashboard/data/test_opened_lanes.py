"""What is under an opened lane, of a step that is drawn event by event."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from fsdpdoctor.open_paths import open_paths
from fsdpdoctor.quantities import US
from fsdpdoctor.schema import Lane
from fsdpdoctor_dashboard.data import opened_lanes, trace_events
from fsdpdoctor_dashboard.data.opened_lanes import (
    event_details,
    hit_at,
    hits,
    lane_lines,
    next_event,
    window,
)
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.data.series import Row
from fsdpdoctor_dashboard.data.trace_events import (
    NoEventsError,
    RankEvents,
    TraceEvents,
)
from tests.importers.drawn_trace import (
    AUTOGRAD,
    COMPUTE,
    GATHER,
    MAIN,
    DrawnTrace,
    collective,
    rank_metadata,
)
from tests.importers.real_traces import real

RECORDED = Path(__file__).parents[3] / "traces" / "healthy-checkpointing"
BASE_NS = 1_700_000_000_000_000_000
NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def drawn(rank: int, late_us: float = 0) -> DrawnTrace:
    """Two steps with an operator, its launches and their kernels, and a gather. The
    clock of a rank may be `late_us` ahead.
    """
    trace = DrawnTrace(
        metadata={**rank_metadata(rank, 2), "baseTimeNanoseconds": BASE_NS}
    )
    for step in range(2):
        at = 1000 * step + late_us
        trace.host(f"ProfilerStep#{step}", at, at + 900)
        trace.host("aten::mm", at + 10, at + 40, cat="cpu_op", args={"Ev Idx": step})
        trace.device("gemm", at + 50, at + 80, launched=at + 20)
        trace.host("aten::relu", at + 60, at + 70, cat="cpu_op", tid=AUTOGRAD)
        trace.device(
            NCCL,
            at + 100,
            at + 300,
            stream=GATHER,
            launched=at + 90,
            args=collective("_allgather_base", 8, 16, seq=step),
        )
        for small in range(3):
            trace.device(f"tiny{small}", at + 400 + small, at + 400.5 + small)
    return trace


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    """Two ranks, the second with a clock that is 40 us ahead."""
    folder = tmp_path_factory.mktemp("drawn") / "drawn"
    folder.mkdir()
    for rank, late_us in enumerate((0, 40)):
        drawn(rank, late_us).write(folder / f"rank{rank}.json")
    library = Library([folder], lambda path: open_paths([path]))
    return library.wait("drawn")


@pytest.fixture(scope="module")
def traces() -> TraceEvents:
    """Where events are kept."""
    return TraceEvents()


@pytest.fixture
def events(run: OpenRun, traces: TraceEvents) -> RankEvents:
    """Rank 0's."""
    return traces.wait(run, 0)


def us(run: OpenRun, time_us: float) -> int:
    """A time of rank 0's trace, as the timeline counts."""
    return BASE_NS + round(time_us * US) - run.store.origin_ns


def rows(found: dict[str, Any]) -> list[tuple[str, list[str], list[int]]]:
    """Each row's key, names and counts."""
    return [
        (row["key"], [found["names"][str(n)] for n in row["name"]], row["count"])
        for row in found["rows"]
    ]


def named(events: RankEvents, name: str) -> list[int]:
    """The events of a name."""
    mask = np.array([one == name for one in events.index.names])
    found: list[int] = events.index.named(mask).tolist()
    return found


def test_a_lane_has_its_streams_and_the_host_its_threads(
    run: OpenRun, events: RankEvents
) -> None:
    """In rows by depth, the busiest thread first."""
    t0, t1 = us(run, 0), us(run, 900)

    def of(row: Row) -> list[tuple[str, list[str], list[int]]]:
        return rows(window(events, lane_lines(events, row), t0, t1, 1))

    tiny = ["tiny0", "tiny1", "tiny2"]
    assert of(Row.COMPUTE)[0] == (f"d0.{COMPUTE}.0", ["gemm", *tiny], [1] * 4)
    assert of(Row.ALL_GATHER) == [(f"d0.{GATHER}.0", [NCCL], [1])]
    host = [
        (f"t.{MAIN}.0", ["ProfilerStep#0"], [1]),
        (f"t.{MAIN}.1", ["aten::mm", "cudaLaunchKernel"], [1, 1]),
        (f"t.{MAIN}.2", ["cudaLaunchKernel"], [1]),
        (f"t.{AUTOGRAD}.0", ["aten::relu"], [1]),
    ]
    assert of(Row.HOST) == host
    # Where the host has no row of its own, its threads are under compute.
    assert (Row.HOST in events.rows) == (of(Row.COMPUTE)[1:] != host)


def test_what_no_pixel_tells_apart_is_one_mark(
    run: OpenRun, events: RankEvents
) -> None:
    """With its number; what is longer than a pixel stands alone, and none is lost."""
    lines = lane_lines(events, Row.ALL_GATHER)._replace(
        shown=lane_lines(events, Row.COMPUTE).shown[:1]
    )
    pixel = 20 * US
    (row,) = window(events, lines, us(run, 0), us(run, 900), pixel)["rows"]

    assert row["count"] == [1, 3]
    assert row["start"] == [us(run, 50), us(run, 400)]
    assert row["end"] == [us(run, 80), us(run, 402.5)]
    whole = window(events, lines, us(run, 0), us(run, 2000), 1 << 40)["rows"][0]
    assert sum(whole["count"]) == 8


def test_an_event_is_told_with_its_launch_and_arguments(
    run: OpenRun, events: RankEvents
) -> None:
    """A kernel's launch, and all that was around that."""
    gemm = named(events, "gemm")[1]
    found = event_details(0, events, gemm)

    assert (found["title"], found["kind"]) == ("gemm", "kernel")
    assert (found["start"], found["end"]) == (us(run, 1050), us(run, 1080))
    assert found["place"] == f"stream {COMPUTE} of device 0"
    assert found["arguments"] == [
        ["device", "text", "0"],
        ["stream", "text", str(COMPUTE)],
        ["correlation", "text", "6"],
    ]
    (launch,) = found["launch"]
    assert (launch["title"], launch["kind"]) == ("cudaLaunchKernel", "call")
    assert launch["start"] == us(run, 1020)
    call = event_details(0, events, launch["event"])
    assert [one["event"] for one in call["launch"]] == [gemm]
    assert [one["title"] for one in call["within"]] == ["ProfilerStep#1", "aten::mm"]


def test_ranks_stand_on_one_clock(run: OpenRun, traces: TraceEvents) -> None:
    """Where the gather ends on both, and where its own span is."""
    for rank in (0, 1):
        events = traces.wait(run, rank)
        (first, second) = named(events, NCCL)
        starts = [event_details(rank, events, e)["start"] for e in (first, second)]
        spans = run.store.spans[rank]
        gathers = spans.column("lane") == Lane.ALL_GATHER
        own = spans.column("start_ns")[gathers] - run.store.origin_ns
        assert starts == own.tolist()
    mine = traces.wait(run, 1)
    assert mine.own(int(mine.on_timeline(np.array([BASE_NS]))[0])) == BASE_NS


def test_hits_are_walked_in_the_order_of_time(
    run: OpenRun, traces: TraceEvents
) -> None:
    """Over both ranks, whatever the case of the text."""
    both = [(rank, traces.wait(run, rank)) for rank in (0, 1)]
    found = hits(both, "GEMM")

    assert len(found.start) == 4
    assert found.start.tolist() == sorted(found.start.tolist())
    assert found.rank.tolist() == [0, 1, 0, 1]
    assert hit_at(found, us(run, 0), forward=True) == 1
    assert hit_at(found, int(found.start[2]), forward=True) == 3
    assert hit_at(found, int(found.start[2]), forward=False) == 2
    assert hit_at(found, us(run, 5000), forward=True) == 0
    assert hit_at(found, us(run, 0), forward=False) == 0
    assert len(hits([], "gemm").start) == 0


def test_events_of_a_row_follow_each_other(events: RankEvents) -> None:
    """To the end of the row and no further."""
    first, second = named(events, "aten::relu")
    assert next_event(events.index, first, forward=True) == second
    assert next_event(events.index, second, forward=True) == -1
    assert next_event(events.index, first, forward=False) == -1


def test_more_rows_than_can_be_shown_are_counted(
    events: RankEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the busiest threads stay."""
    monkeypatch.setattr(opened_lanes, "MOST_LINES", 3)
    found = lane_lines(events, Row.HOST)
    assert [line.depth for line in found.shown] == [0, 1, 2]
    assert found.more == 1


def test_a_recorded_run_says_why_it_has_none(tmp_path: Path) -> None:
    """And where they are, when a profiler ran beside the record."""
    path = tmp_path / "run"
    shutil.copytree(RECORDED, path)
    run = Library([path], lambda p: open_paths([p])).wait("run")
    with pytest.raises(NoEventsError, match=r"without torch.profiler.*--kineto 2"):
        TraceEvents().of(run, 0)
    (path / "kineto").mkdir()
    with pytest.raises(NoEventsError, match=f"fsdpdoctor view {path}/kineto"):
        TraceEvents().of(run, 0)


def test_without_a_cache_events_go_with_the_process(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read all the same."""
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    mine = TraceEvents()
    assert mine.of(run, 0) == "reading the trace"
    assert len(mine.wait(run, 0).index) == 20


def test_a_large_trace_is_read_by_another_process(
    run: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same outcome, and an error comes back."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(trace_events, "APART_FROM", 1)
    assert len(TraceEvents().wait(run, 0).index) == 20

    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "blocked"))
    with pytest.raises(NoEventsError, match=r"Not a directory|File exists"):
        TraceEvents().wait(run, 0)


def test_a_trace_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its events cannot be kept, which is not tried again and again."""
    folder = tmp_path / "gone"
    folder.mkdir()
    path = drawn(0).write(folder / "rank0.json")
    run = Library([folder], lambda p: open_paths([p])).wait("gone")
    monkeypatch.setattr(trace_events, "open_index", lambda _: None)
    mine = TraceEvents()
    with pytest.raises(NoEventsError, match="could not be kept"):
        mine.wait(run, 0)
    path.unlink()
    with pytest.raises(NoEventsError, match="cannot be read: No such file"):
        mine.of(run, 0)


def test_a_real_trace_is_shown_where_its_spans_are() -> None:
    """Each kernel of the compute lane begins where a span of the lane does."""
    path = real("exposed_216k")
    run = Library([path], lambda p: open_paths([p])).wait("exposed_216k")
    (rank,) = run.store.ranks
    events = TraceEvents().wait(run, rank)
    (stream, *_) = lane_lines(events, Row.COMPUTE).shown
    here = slice(stream.first, stream.last)
    starts = events.on_timeline(events.index.start_ns[here])
    table = run.store.spans[rank]
    spans = table.column("start_ns") - run.store.origin_ns

    assert np.isin(starts, spans).all()
