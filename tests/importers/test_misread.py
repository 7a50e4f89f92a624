"""Small traces of the structure that public ones have, each once misread."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.detectors.other_collectives import other_collectives
from fsdpdoctor.errors import InputError
from fsdpdoctor.importers import import_run
from fsdpdoctor.quantities import MS
from fsdpdoctor.report.collectives_ranks import rank_rows
from fsdpdoctor.report.diagnosis import report_from
from fsdpdoctor.report.value import Report
from fsdpdoctor.schema import Evidence
from tests.detectors.answers import found
from tests.importers.drawn_trace import AUTOGRAD, DrawnTrace, Event, rank_metadata
from tests.importers.real_traces import real

STEP = 10_000
"""Microseconds."""

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def drawn(
    rank: int = 0,
    world_size: int = 2,
    *,
    first: int = 3,
    late: int = 0,
    mark: str = "user_annotation",
) -> DrawnTrace:
    """Four steps of 10 ms: 6 ms of compute, then an all-reduce of 2 ms."""
    trace = DrawnTrace(metadata=rank_metadata(rank, world_size))
    for step in range(4):
        at = 10_000_000 + step * STEP
        trace.host(f"ProfilerStep#{first + step}", at, at + STEP - 10, cat=mark)
        trace.host("aten::mm", at + 10, at + 60, cat="cpu_op")
        trace.device("gemm_kernel", at + 100, at + 6100, launched=at + 20)
        trace.host("c10d::allreduce_", at + 70, at + 90, cat="cpu_op")
        start = at + 6200 + late
        trace.device(ALL_REDUCE, start, at + 8200, launched=at + 75, stream=20)
    return trace


def written(folder: Path, *traces: DrawnTrace) -> Path:
    """The traces as ranks 0, 1, ... in a folder."""
    for rank, trace in enumerate(traces):
        trace.write(folder / f"rank{rank}.json")
    return folder


def measured(folder: Path, *traces: DrawnTrace) -> Measures:
    """The traces, measured together."""
    return measure(import_run([written(folder, *traces)]))


def reported(m: Measures) -> Report:
    """What is said of them, findings left out."""
    return report_from(m, [], [])


def warned(m: Measures, part: str) -> list[str]:
    """The warnings of the first rank that hold some words."""
    return [text for text in m.ranks[0].header.warnings if part in text]


def other_ns(m: Measures) -> int:
    """Exposed communication beside FSDP2's, per step."""
    return m.budget_ns_per_step()["exposed_other_communication"]


def kernels(trace: DrawnTrace) -> list[Event]:
    """The device's events."""
    return [event for event in trace.events if event["cat"] == "kernel"]


def test_an_all_reduce_of_a_forward_reduces_no_gradient(tmp_path: Path) -> None:
    """Launched by the thread that runs forward: outside FSDP2, no stall of its own."""
    m = measured(tmp_path, drawn())

    assert m.exposed_ns_per_step() == 0
    assert other_ns(m) == 2 * MS


def test_a_reduce_scatter_of_a_forward_reduces_none_either(tmp_path: Path) -> None:
    """Sequence parallelism scatters activations."""
    trace = drawn()
    for event in trace.events:
        if event["name"] == ALL_REDUCE:
            event["name"] = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)"
        if event["name"] == "c10d::allreduce_":
            event["name"] = "c10d::_reduce_scatter_base_"
    m = measured(tmp_path, trace)

    assert m.exposed_ns_per_step() == 0
    assert other_ns(m) == 2 * MS


def test_an_all_reduce_that_autograd_launched_does(tmp_path: Path) -> None:
    """The same from a thread of autograd's, or under one of its functions."""
    trace = drawn()
    for step in range(4):
        at = 10_000_000 + step * STEP
        trace.host(BACKWARD, at + 68, at + 95, cat="cpu_op")
    m = measured(tmp_path, trace)

    assert m.exposed_ns_per_step() == 2 * MS
    assert other_ns(m) == 0


def test_kernels_of_no_table_on_a_stream_of_their_own_are_named(
    tmp_path: Path,
) -> None:
    """1 ms of 7 beside compute; a copy of PyTorch's own there is nothing unknown."""
    trace = drawn()
    for step in range(4):
        at = 10_000_000 + step * STEP
        trace.device("void acme::ring_push<8>(int4*)", at + 200, at + 1200, stream=30)
        trace.device("void at::native::copy_kernel<4>", at + 300, at + 400, stream=31)
        trace.device("acme::copy_to_peer(int4*)", at + 1300, at + 1800, stream=32)
    (text,) = warned(measured(tmp_path, trace), "not known")

    assert "ring_push (4.00 ms), copy_to_peer (2.00 ms), 19.7 % of all" in text
    assert "copy_kernel" not in text


def test_a_cut_file_is_not_judged_where_it_is_cut(tmp_path: Path) -> None:
    """The last kernel's event is missing: its step is left out, the others count."""
    trace = drawn()
    trace.events.sort(key=lambda event: event["cat"] == "kernel")
    text = trace.text()
    cut = text.rindex('{"ph"') + 20
    (tmp_path / "rank0.json").write_text(text[:cut])
    m = measure(import_run([tmp_path]))

    assert m.ranks[0].judged_steps.tolist() == [3, 4, 5]
    assert warned(m, "3 of 4 steps are whole and judged")
    assert Evidence.KERNELS in m.evidence


def test_a_cut_file_without_a_whole_step(tmp_path: Path) -> None:
    """Nothing is judged, and no figure of the capture stands for one."""
    trace = drawn()
    order = {"gemm_kernel": 2, ALL_REDUCE: 1}
    trace.events.sort(key=lambda event: order.get(str(event["name"]), 0))
    text = trace.text()
    cut = text.index('"name": "gemm_kernel"')
    (tmp_path / "rank0.json").write_text(text[:cut])
    report = reported(measure(import_run([tmp_path])))

    assert report.overlap_share.all is None
    assert report.exposed_ns_per_step.total is None
    assert report.step_time_ns.median is None


@pytest.mark.parametrize("which", [slice(0, 1), slice(4, 5), slice(None)])
def test_kernels_without_arguments_are_placed_by_time(
    tmp_path: Path, which: slice
) -> None:
    """One, or all of them: steps and exposed time stay, and a line says so."""
    trace = drawn()
    bare = kernels(trace)[which]
    for event in bare:
        del event["args"]
    m = measured(tmp_path, trace)

    assert m.step_ns.tolist() == [10 * MS, 10 * MS, 10 * MS, 9_990_000]
    assert other_ns(m) == 2 * MS
    assert m.ranks[0].header.health["kernels_without_arguments"] == len(bare)
    assert warned(m, "have no arguments")


@pytest.mark.parametrize("mark", ["cpu_op", "Operator", "user_annotation"])
def test_the_name_makes_the_mark(tmp_path: Path, mark: str) -> None:
    """Torch 1.8 writes its annotations as operators."""
    m = measured(tmp_path, drawn(mark=mark))

    assert m.ranks[0].steps.step.tolist() == [3, 4, 5, 6]


def test_device_categories_that_are_not_read_are_named(tmp_path: Path) -> None:
    """An accelerator's own categories: nothing is measured, and nothing is said to."""
    trace = drawn()
    for event in kernels(trace):
        event["cat"] = "accel_events"
    trace.metadata["distributedInfo"] = {
        **rank_metadata(0, 2)["distributedInfo"],  # type: ignore[dict-item]
        "backend": "accel:hccl,cpu:gloo",
    }
    m = measured(tmp_path, trace)
    report = reported(m)

    assert warned(m, "not read: accel_events (8)")
    assert report.run.device == "accel"
    assert report.overlap_share.all is None
    assert report.exposed_ns_per_step.total is None
    assert report.budget_ns_per_step["exposed_all_gather"] == 0


def test_one_rank_has_no_collectives(tmp_path: Path) -> None:
    """No kernel of communication runs: said once, and no figure is missing for it."""
    trace = drawn(world_size=1)
    trace.events = [event for event in trace.events if event["name"] != ALL_REDUCE]
    m = measured(tmp_path, trace)

    assert m.exposed_ns_per_step() == 0
    assert warned(m, "one rank")
    assert not warned(m, "not measured")


def test_communication_that_was_not_captured_has_no_exposed_time(
    tmp_path: Path,
) -> None:
    """With two ranks the same trace shows nothing of what they waited for."""
    trace = drawn()
    trace.events = [event for event in trace.events if event["name"] != ALL_REDUCE]
    m = measured(tmp_path, trace)

    assert m.exposed_ns_per_step() is None
    assert warned(m, "not measured")


def test_a_device_may_have_a_process_of_its_own(tmp_path: Path) -> None:
    """Only processes with operators of the host count as ranks."""
    trace = drawn()
    trace.host("device_ack", 10_000_000, 10_000_010, cat="cuda_runtime")
    trace.events[-1]["pid"] = 17
    m = measured(tmp_path, trace)

    assert m.ranks[0].header.pid == trace.pid


def test_two_jobs_in_one_folder(tmp_path: Path) -> None:
    """No step in common and clocks days apart: refused, both named."""
    other = drawn(rank=1, first=101)
    for event in other.events:
        event["ts"] = float(str(event["ts"])) + 3 * 24 * 3600 * 1e6
    folder = written(tmp_path, drawn(), other)

    with pytest.raises(InputError, match=r"2 jobs: rank 0 .*steps 3-6.*; rank 1 "):
        measure(import_run([folder]))


def test_jobs_of_another_size(tmp_path: Path) -> None:
    """The same steps on the same device, days apart, of two and of four ranks."""
    other = drawn(rank=1, world_size=4)
    for event in other.events:
        event["ts"] = float(str(event["ts"])) + 3 * 24 * 3600 * 1e6

    with pytest.raises(InputError, match="2 jobs"):
        measure(import_run([written(tmp_path, drawn(), other)]))


def test_one_job_may_share_no_step(tmp_path: Path) -> None:
    """One sign of three is none: ranks that profiled different steps."""
    m = measured(tmp_path, drawn(), drawn(rank=1, first=101))

    assert [rank.rank for rank in m.ranks] == [0, 1]


def test_one_rank_cannot_tell_a_late_rank_from_the_wire(tmp_path: Path) -> None:
    """Two causes as one figure; with both ranks, each has its own."""
    alone, both = tmp_path / "alone", tmp_path / "both"
    alone.mkdir()
    both.mkdir()
    traces = drawn(), drawn(rank=1, late=900)
    for trace in traces:
        for step in range(4):
            at = 10_000_000 + step * STEP
            trace.host(BACKWARD, at + 68, at + 95, cat="cpu_op", tid=AUTOGRAD)
        for event in trace.events:
            if event["cat"] == "cuda_runtime" and event["ts"] in range(75, 10**9):
                event["tid"] = AUTOGRAD
    one = reported(measured(alone, traces[0])).exposed_ns_per_step.by_cause
    two = measured(both, *traces)
    told = reported(two).exposed_ns_per_step.by_cause

    assert (one.straggler, one.wire, one.wire_or_straggler) == (None, None, 2 * MS)
    assert (told.straggler, told.wire, told.wire_or_straggler) == (
        900_000 // 2,
        1_100_000,
        None,
    )


def test_nor_for_collectives_of_no_unit(tmp_path: Path) -> None:
    """FD407 gives no figure for a late rank, and says that none can be given."""
    m = measured(tmp_path, drawn())
    (finding,) = found(other_collectives, m)

    assert finding.summary.endswith("for the wire, this record cannot tell")
    assert finding.evidence["waiting_for_last_rank_ns"] is None


def test_last_arrivals_count_every_kind_of_collective(tmp_path: Path) -> None:
    """All-reduces of a forward, of which rank 1 is late for each."""
    m = measured(tmp_path, drawn(), drawn(rank=1, late=900))

    assert [
        (row.last_arrivals, row.wait_ns_per_step, row.wait_caused_ns_per_step)
        for row in rank_rows(m)
    ] == [(0, 900_000, 0), (4, 0, 900_000)]


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("dlrm_8ranks", {4: 1, 5: 2, 7: 5}),
        ("megatron_tp8", {0: 32, 2: 5, 3: 12, 6: 34, 7: 1}),
    ],
)
def test_t1_t22_last_arrivals(folder: str, expected: dict[int, int]) -> None:
    """Who came last, over whatever collectives there were."""
    rows = rank_rows(measure(import_run([real(folder)])))

    assert {row.rank: row.last_arrivals for row in rows if row.last_arrivals} == (
        expected
    )


def packed(content: bytes) -> bytes:
    """A tar archive of one file, with gzip."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        info = tarfile.TarInfo("rank0.json")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return found.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
            "a Git LFS pointer, not the file itself: fetch it with `git lfs pull`",
        ),
        (b"/annex/objects/MD5E-s9--1.json\n", "a git-annex pointer"),
        ('{"traceEvents": []}'.encode("utf-16"), "text in UTF-16: convert it"),
        ('{"traceEvents": []}'.encode("utf-32"), "text in UTF-32: convert it"),
        ('{"traceEvents": []}'.encode("utf-32-le"), "text in UTF-32: convert it"),
        ('{"traceEvents": []}'.encode("utf-16-le"), "text in UTF-16: convert it"),
        (b"PK\x03\x04rest", "a zip archive: unpack it"),
        (packed(b"{}"), "a tar archive: unpack it"),
        (b"\x28\xb5\x2f\xfdrest", "packed with zstd: unpack it"),
        (b"\xfd7zXZ\x00rest", "packed with xz"),
        (b"BZh91AY", "packed with bzip2"),
    ],
)
def test_files_that_hold_no_trace_are_named(
    tmp_path: Path, content: bytes, said: str
) -> None:
    """A trace's name does not make one."""
    path = tmp_path / "rank0.json"
    path.write_bytes(content)

    with pytest.raises(InputError, match=said):
        import_run([path])


def test_folders_are_sniffed_as_files_are(tmp_path: Path) -> None:
    """A trace of any name is read; what lies beside it is left out without a word."""
    content = drawn(world_size=1).text().encode()
    (tmp_path / "trainer0.pt.trace").write_bytes(gzip.compress(content))
    (tmp_path / "notes.md").write_text("what I ran")
    run = import_run([tmp_path])

    assert run.ranks == (0,)
    assert not [text for text in run.warnings if "left out" in text]
