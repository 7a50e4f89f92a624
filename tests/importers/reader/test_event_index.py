"""Every event of a trace, found again by line, time, correlation and name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.importers.reader import build_index as building
from fsdpdoctor.importers.reader import chunks
from fsdpdoctor.importers.reader.build_index import build_index, index_folder
from fsdpdoctor.importers.reader.decode_json import decode_chunk
from fsdpdoctor.importers.reader.event_index import EventIndex, host_event, open_index
from fsdpdoctor.importers.reader.trace_cache import cached_scan
from fsdpdoctor.importers.reader.trace_file import Cat
from fsdpdoctor.quantities import US
from tests.importers.drawn_trace import AUTOGRAD, COMPUTE, GATHER, MAIN, DrawnTrace
from tests.importers.real_traces import real

BASE_NS = 1_700_000_000_000_000_000


def indexed(path: Path, folder: Path) -> EventIndex:
    """The index of a file, written and opened."""
    place = index_folder(path, folder)
    build_index(path, place)
    found = open_index(place)
    assert found is not None
    return found


def drawn() -> DrawnTrace:
    """A step: an operator that calls another, which launches a kernel; and a gather."""
    trace = DrawnTrace(metadata={"baseTimeNanoseconds": BASE_NS})
    trace.host("ProfilerStep#3", 0, 100)
    trace.host("aten::linear", 10, 40, cat="cpu_op", args={"Input Dims": [[2, 3]]})
    trace.host("aten::mm", 15, 35, cat="cpu_op", args={"Sequence number": 7})
    trace.device("gemm", 50, 80, launched=20, args={"grid": [4, 1, 1]})
    trace.host("aten::relu", 60, 70, cat="cpu_op", tid=AUTOGRAD)
    trace.device("ncclDevKernel_AllGather", 30, 60, stream=GATHER, launched=5)
    return trace


@pytest.fixture
def index(tmp_path: Path) -> EventIndex:
    """Of what is drawn."""
    return indexed(drawn().write(tmp_path / "rank0.json"), tmp_path / "cache")


def named(index: EventIndex, name: str) -> int:
    """The one event of a name."""
    mask = np.array([one == name for one in index.names])
    (event,) = index.named(mask).tolist()
    return int(event)


def calls(index: EventIndex) -> list[tuple[int | None, int, int, list[str]]]:
    """The lines: device, thread or stream, depth, and the names on them."""
    return [
        (
            line.device,
            line.id,
            line.depth,
            [index.names[at] for at in index.name[line.first : line.last].tolist()],
        )
        for line in index.lines
    ]


def test_each_depth_of_a_thread_is_a_line(index: EventIndex) -> None:
    """And each stream of a device."""
    assert calls(index) == [
        (None, MAIN, 0, ["ProfilerStep#3"]),
        (None, MAIN, 1, ["cudaLaunchKernel", "aten::linear"]),
        (None, MAIN, 2, ["aten::mm"]),
        (None, MAIN, 3, ["cudaLaunchKernel"]),
        (None, AUTOGRAD, 0, ["aten::relu"]),
        (0, COMPUTE, 0, ["gemm"]),
        (0, GATHER, 0, ["ncclDevKernel_AllGather"]),
    ]


def test_an_event_has_its_time_and_its_arguments(index: EventIndex) -> None:
    """The file's base time is in it."""
    gemm, linear = named(index, "gemm"), named(index, "aten::linear")
    assert int(index.start_ns[gemm]) == BASE_NS + 50 * US
    assert int(index.duration_ns[gemm]) == 30 * US
    assert index.arguments(gemm) == {
        "device": 0,
        "stream": COMPUTE,
        "correlation": 1,
        "grid": [4, 1, 1],
    }
    assert index.arguments(linear) == {"Input Dims": [[2, 3]]}


def test_a_kernel_leads_to_its_launch_and_what_that_was_within(
    index: EventIndex,
) -> None:
    """By correlation; and a launch to its kernel."""
    gemm = named(index, "gemm")
    (launch,) = index.correlated(gemm)
    assert index.cat[launch] == Cat.RUNTIME
    assert int(index.start_ns[launch]) == BASE_NS + 20 * US
    assert index.correlated(launch) == [gemm]
    assert [index.names[index.name[e]] for e in index.around(launch)] == [
        "ProfilerStep#3",
        "aten::linear",
        "aten::mm",
    ]
    assert index.correlated(named(index, "aten::mm")) == []


def test_a_window_holds_what_reaches_into_it(index: EventIndex) -> None:
    """What ended at its begin does not, what begins at its end does not."""
    line = index.lines[1]

    def within(t0: int, t1: int) -> list[str]:
        here = index.between(line, BASE_NS + t0 * US, BASE_NS + t1 * US)
        return [index.names[at] for at in index.name[here].tolist()]

    assert within(0, 100) == ["cudaLaunchKernel", "aten::linear"]
    assert within(6, 10) == []
    assert within(39, 100) == ["aten::linear"]
    assert within(40, 100) == []
    assert within(5, 10) == ["cudaLaunchKernel"]


def test_a_file_that_changed_has_another_index(tmp_path: Path) -> None:
    """And one that did not has the same."""
    path = drawn().write(tmp_path / "rank0.json")
    before = index_folder(path, tmp_path)
    assert index_folder(path, tmp_path) == before
    path.write_bytes(path.read_bytes() + b" ")
    assert index_folder(path, tmp_path) != before


def test_what_is_damaged_is_no_index(tmp_path: Path) -> None:
    """Half of it, or of another version: it is made anew."""
    path = drawn().write(tmp_path / "rank0.json")
    place = index_folder(path, tmp_path / "cache")
    assert open_index(place) is None
    build_index(path, place)
    content = (place / "columns.bin").read_bytes()
    (place / "columns.bin").write_bytes(content[:-64])
    assert open_index(place) is None
    (place / "columns.bin").write_bytes(content)
    told = json.loads((place / "index.json").read_text())
    (place / "index.json").write_text(json.dumps({**told, "version": 0}))
    assert open_index(place) is None


@pytest.mark.parametrize("with_c", [True, False])
def test_pieces_and_repairs_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_c: bool
) -> None:
    """Of a file of many pieces, one of them damaged, each event has its arguments."""
    if not with_c:
        monkeypatch.setattr(building, "default_decoder", lambda every_op: decode_chunk)
    monkeypatch.setattr(chunks, "BLOCK", 512)
    trace = DrawnTrace()
    for at in range(40):
        trace.host(f"op{at}", at, at + 0.5, cat="cpu_op", args={"at": at})
    path = tmp_path / "rank0.json"
    path.write_text(trace.text().replace('"op20"', '"op\\q20"'))
    index = indexed(path, tmp_path / "cache")

    assert len(index.pieces) > 5
    names = [index.names[at] for at in index.name.tolist()]
    assert names == [f"op{at}" if at != 20 else "op\\q20" for at in range(40)]
    assert [index.arguments(at)["at"] for at in range(40)] == [*range(40)]


def test_a_trace_without_events_has_an_empty_index(tmp_path: Path) -> None:
    """Nothing is found in it, and nothing fails."""
    index = indexed(DrawnTrace().write(tmp_path / "rank0.json"), tmp_path / "cache")
    assert (len(index), index.lines) == (0, ())
    assert index.named(np.zeros(0, dtype=np.bool_)).tolist() == []


def test_a_real_trace_is_in_it_whole(tmp_path: Path) -> None:
    """As many kernels as the analysis reads, over the same time."""
    path = real("exposed_216k/df_index_resolver.json.gz")
    index = indexed(path, tmp_path)
    events = cached_scan(path, None).events
    kernels = events.cat == Cat.KERNEL
    mine = index.cat == Cat.KERNEL

    assert int(mine.sum()) == int(kernels.sum()) == 19_370
    assert index.duration_ns[mine].sum() == events.duration_ns[kernels].sum()
    assert (index.cat == Cat.CPU_OP).sum() == 56_680
    assert sorted(index.start_ns[mine]) == sorted(events.start_ns[kernels])
    launched = [len(index.correlated(e)) for e in np.flatnonzero(mine)[:200].tolist()]
    assert launched == [1] * 200


def test_what_ran_on_the_host() -> None:
    """All but kernels, copies and fills of a device's memory."""
    on_device = {cat for cat in Cat if not host_event(cat)}

    assert on_device == {Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET}
