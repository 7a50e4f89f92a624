"""What real traces and users throw at a tool: one row per public report, R01 to R45.

`ROWS` says which test answers each row, in this file or in another; a row without a
test says why. Rows marked A must have one.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.importers import import_run
from fsdpdoctor.importers.kineto.process_groups import BY_ORDER
from fsdpdoctor.importers.reader.decoders import default_decoder
from fsdpdoctor.importers.reader.read_trace import scan_file
from fsdpdoctor.quantities import MS, US
from fsdpdoctor.report import diagnose
from fsdpdoctor.run import Run
from fsdpdoctor.schema import Kind, Lane
from tests.importers.drawn_trace import (
    AUTOGRAD,
    GATHER,
    DrawnTrace,
    collective,
    rank_metadata,
)

A = frozenset(
    {
        *("R01", "R02", "R04", "R05", "R08", "R09", "R10", "R11", "R12", "R13", "R17"),
        *("R19", "R20", "R21", "R22", "R23", "R25", "R26", "R27", "R28", "R29", "R31"),
        *("R33", "R34", "R35", "R36", "R37", "R39", "R41", "R42", "R43", "R45"),
    }
)
"""What the first release must have."""


class Row(NamedTuple):
    """Who answers a report: `file::test`, relative to tests/; or why nobody does."""

    tests: tuple[str, ...] = ()
    reason: str | None = None


HERE = "test_robustness.py"
SNAPSHOTS = "memory_snapshot/test_read_snapshot.py"
DIAGNOSED = "memory_snapshot/test_diagnose_snapshot.py"
DAMAGE = "importers/test_damage.py"
COMMUNICATION = "importers/kineto/test_communication.py"
QUALITY = "importers/kineto/test_quality.py"
SPANS = "importers/kineto/test_device_spans.py"
STEPS = "importers/kineto/test_steps.py"
UNLABELLED = "importers/kineto/test_unlabelled_units.py"
RANKS = "importers/test_rank_files.py"

ROWS: dict[str, Row] = {
    # Size, memory, loading
    "R01": Row((f"{RANKS}::test_r01_sources_load_in_worker_processes",)),
    "R02": Row((f"{HERE}::test_r02_what_is_not_used_is_not_decoded",)),
    "R03": Row(
        (
            "importers/test_blocks.py::test_r03_memory_does_not_grow_with_a_trace",
            "importers/test_nsys.py::test_r03_memory_does_not_grow_with_an_export",
        )
    ),
    "R04": Row((f"{HERE}::test_r04_an_empty_trace_says_what_was_dropped",)),
    "R05": Row((f"{HERE}::test_r05_captures_are_small_by_default",)),
    "R06": Row(
        (f"{SNAPSHOTS}::test_a_file_that_would_fill_memory_is_refused",),
    ),
    "R07": Row(
        ("recorder/launch/test_profiler_capture.py::test_sampling_beside_a_capture",)
    ),
    # Broken or odd files
    "R08": Row((f"{DAMAGE}::test_r08_invalid_escapes",)),
    "R09": Row((f"{DAMAGE}::test_r09_control_characters",)),
    "R10": Row(
        (
            f"{DAMAGE}::test_r10_huge_integers_and_foreign_bytes",
            f"{DAMAGE}::test_r10_the_real_one",
        )
    ),
    "R11": Row(
        (
            f"{DAMAGE}::test_r11_truncated_tail",
            f"{DAMAGE}::test_r11_truncated_archive",
            f"{DAMAGE}::test_r11_every_cut",
            f"{DAMAGE}::test_r11_two_traces_in_one_file",
            f"{DAMAGE}::test_r11_duplicated_rank",
        )
    ),
    "R12": Row(
        (
            f"{DAMAGE}::test_r12_wrong_kind_of_file",
            f"{DAMAGE}::test_r12_other_files_in_the_folder_are_left_out",
            f"{DAMAGE}::test_r12_the_real_ones",
        )
    ),
    "R13": Row((f"{DAMAGE}::test_r13_metadata_only",)),
    "R14": Row((f"{DAMAGE}::test_r14_stray_bracket",)),
    "R15": Row(
        (
            "hang/test_diagnose.py::test_r15_a_pickle_runs_no_code",
            f"{SNAPSHOTS}::test_every_protocol_gives_the_same",
            f"{SNAPSHOTS}::test_a_snapshot_runs_no_code",
        )
    ),
    "R16": Row(
        (f"{DIAGNOSED}::test_a_snapshot_without_history_says_how_to_record_one",)
    ),
    # Rank, process group, merging
    "R17": Row(
        (
            f"{RANKS}::test_r17_the_files_own_word_comes_first",
            f"{RANKS}::test_r17_distributed_info_after_the_events",
            f"{RANKS}::test_r17_names_of_files",
            f"{RANKS}::test_r17_no_rank",
            f"{RANKS}::test_r17_the_real_ones",
        )
    ),
    "R18": Row(
        (f"{RANKS}::test_r18_rank_regex", f"{RANKS}::test_r18_globs_and_folders")
    ),
    "R19": Row((f"{QUALITY}::test_r19_merged_file",)),
    "R20": Row((f"{RANKS}::test_r20_r22_ranks_pair_by_group_and_number",)),
    "R21": Row((f"{HERE}::test_r21_collectives_without_a_group_pair_by_order",)),
    "R22": Row((f"{RANKS}::test_r20_r22_ranks_pair_by_group_and_number",)),
    "R23": Row((f"{HERE}::test_r23_r26_who_is_late_on_clocks_that_differ",)),
    "R24": Row(
        (
            "hang/test_diagnose.py::test_r24_partial_sets",
            "cli/test_hang.py::test_r24_missing_and_empty_ranks",
        )
    ),
    "R25": Row((f"{STEPS}::test_r25_capture_skew",)),
    "R26": Row((f"{HERE}::test_r23_r26_who_is_late_on_clocks_that_differ",)),
    # Names, devices, kernels
    "R27": Row(
        (
            f"{COMMUNICATION}::test_r27_arguments_and_parent_before_the_name",
            f"{COMMUNICATION}::test_r27_r28_r45_names_of_every_backend",
        )
    ),
    "R28": Row((f"{COMMUNICATION}::test_r27_r28_r45_names_of_every_backend",)),
    "R29": Row((f"{SPANS}::test_r29_copy_engine_gather",)),
    "R30": Row((f"{HERE}::test_r30_stream_zero_is_a_stream",)),
    "R31": Row((f"{QUALITY}::test_r31_durations_that_cannot_be",)),
    "R32": Row((f"{HERE}::test_r32_events_out_of_order_and_clock_inversions",)),
    "R33": Row((f"{SPANS}::test_r33_sync_events_and_memset_are_no_compute",)),
    "R34": Row(
        (
            f"{QUALITY}::test_r34_counts_of_what_cannot_be",
            f"{STEPS}::test_r34_device_events_begin_late",
        )
    ),
    "R35": Row((f"{QUALITY}::test_r35_base_time_is_added",)),
    "R36": Row((f"{COMMUNICATION}::test_r36_communication_that_was_not_captured",)),
    # Annotations, steps, graphs, display
    "R37": Row((f"{STEPS}::test_r37_the_last_step_is_kept",)),
    "R38": Row(
        (
            f"{UNLABELLED}::test_r38_units_by_size_and_order",
            f"{UNLABELLED}::test_r38_graphs_take_the_names_of_labelled_steps",
            f"{UNLABELLED}::test_r38_tensor_parallel_is_no_fsdp",
        )
    ),
    "R39": Row((f"{SPANS}::test_r39_gpu_annotations_are_not_used",)),
    "R40": Row(
        ("exporters/test_perfetto.py::test_r40_overlapping_spans_get_further_tracks",)
    ),
    "R41": Row((f"{HERE}::test_r41_r42_exposed_time_comes_first",)),
    "R42": Row((f"{HERE}::test_r41_r42_exposed_time_comes_first",)),
    "R43": Row((f"{HERE}::test_r43_each_collective_has_its_unit_and_times",)),
    "R44": Row(reason="no chain yet: each stall's causes stand where it would"),
    "R45": Row((f"{COMMUNICATION}::test_r27_r28_r45_names_of_every_backend",)),
}


def defined(file: str) -> set[str]:
    """The test functions of a file."""
    tree = ast.parse((Path(__file__).parent / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_has_its_test() -> None:
    """All rows are listed; the tests exist; those of A are named after their row."""
    named = [tuple(test.split("::")) for row in ROWS.values() for test in row.tests]
    unnamed = [
        (number, test)
        for number, row in ROWS.items()
        for test in row.tests
        if number in A and f"_{number.lower()}_" not in test
    ]

    assert sorted(ROWS) == [f"R{number:02}" for number in range(1, 46)]
    assert [(file, test) for file, test in named if test not in defined(file)] == []
    assert [number for number in sorted(A) if not ROWS[number].tests] == []
    assert [
        number for number, row in ROWS.items() if not (row.tests or row.reason)
    ] == []
    assert unnamed == []


def gathering(rank: int, *, late: float = 0, clock: float = 0) -> DrawnTrace:
    """Four steps of 100 us with a gather that lasts until both ranks are there.

    Times are microseconds; `late`: when the rank arrives at it, `clock`: what its
    clock is ahead by.
    """
    trace = DrawnTrace(metadata=rank_metadata(rank, 2))
    for step in range(4):
        at = 1000 + 100 * step + clock
        trace.host(f"ProfilerStep#{step}", at, at + 100)
        trace.host("FSDP::pre_forward (layers.0)", at + 1, at + 20)
        trace.host("FSDP::all_gather (layers.0)", at + 2, at + 12)
        trace.device(
            "ncclDevKernel_AllGather_RING_LL",
            at + 20 + late,
            at + 60,
            launched=at + 5,
            stream=GATHER,
            args=collective("_allgather_base", 4, 16, seq=step),
        )
        trace.host("FSDP::all_gather_copy_out (layers.0)", at + 14, at + 18)
        trace.device("split_with_sizes_copy", at + 60, at + 65, launched=at + 15)
        trace.device("gemm", at + 65, at + 90, launched=at + 25)
        trace.host("FSDP::post_forward (layers.0)", at + 30, at + 31)
    return trace


def two_ranks(folder: Path, *, late: float = 0, clock: float = 0) -> Run:
    """Rank 1 is late, on a clock of its own."""
    gathering(0).write(folder / "rank0.json")
    gathering(1, late=late, clock=clock).write(folder / "rank1.json")
    return import_run([folder])


def test_r02_what_is_not_used_is_not_decoded(tmp_path: Path) -> None:
    """Python frames, most of a trace with stacks, are counted and let go: no row, no
    name, and the arguments not even looked at.
    """
    frames = ",\n".join(
        f'{{"ph": "X", "cat": "python_function", "name": "frame {i}", "pid": 1, "tid": '
        f'1, "ts": {i}, "dur": 1, "args": {{"Python id": {i}, "Python parent": [[]]}}}}'
        for i in range(1000)
    )
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [\n{frames}\n]}}')

    trace = scan_file(path, default_decoder())

    assert (trace.health.events, len(trace.events), trace.names) == (1000, 0, ())


def test_r04_an_empty_trace_says_what_was_dropped(tmp_path: Path) -> None:
    """A trace of which nothing can be used is a report that says why."""
    trace = DrawnTrace(metadata=rank_metadata(0, 1))
    for at in range(3):
        trace.host("FSDP::pre_forward", at, at - 1)
    trace.write(tmp_path / "rank0.json")

    done = CliRunner().invoke(main, ["analyze", str(tmp_path), "--no-cache"])

    assert done.exit_code == 0
    assert "3 events of 3 were dropped" in done.stdout
    assert "no whole step" in done.stdout


def test_r05_captures_are_small_by_default() -> None:
    """The record needs no torch.profiler; where it is asked for, it is two ranks, and
    as many steps as were asked for.
    """
    capture_plan = pytest.importorskip("fsdpdoctor.recorder.launch.profiler_schedule")

    capture = capture_plan.capture_of(2, None, None)

    assert (capture.count, capture.ranks) == (2, (0, 1))


def test_r21_collectives_without_a_group_pair_by_order(tmp_path: Path) -> None:
    """They are numbered in the order of issue, whatever stream they ran on, and that
    this is less sure is said.
    """
    for rank in range(2):
        trace = DrawnTrace(metadata=rank_metadata(rank, 2))
        trace.host("ProfilerStep#0", 0, 100)
        for at, stream in ((40, 20 + rank), (10, 22 - rank)):
            trace.device(
                "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
                at,
                at + 5,
                launched=at - 5,
                stream=stream,
            )
        trace.write(tmp_path / f"rank{rank}.json")

    for data in import_run([tmp_path]).load():
        spans = data.steps[0].spans
        spans = spans.rows(spans.kind == Kind.COLLECTIVE)
        assert [group.name for group in data.header.groups] == [BY_ORDER]
        assert spans.seq.tolist() == [0, 1]
        assert (spans.start_ns / US).tolist() == [10.0, 40.0]
        assert any(
            "matched between ranks by their order, which is right only if" in text
            for text in data.header.warnings
        )


def test_r23_r26_who_is_late_on_clocks_that_differ(tmp_path: Path) -> None:
    """Rank 1 arrives 30 us late at each gather; its clock is five seconds ahead, which
    is told from the gathers' ends and is nobody's lateness.
    """
    report = diagnose(two_ranks(tmp_path, late=30, clock=5e6))
    first, second = report.ranks
    offsets = [rank.clock_offset_ns or 0 for rank in report.ranks]

    assert report.run.steps == (1, 3)  # the first is warm-up
    assert (first.last_arrivals, second.last_arrivals) == (0, 3)
    assert (first.wait_ns_per_step, second.wait_ns_per_step) == (30 * US, 0)
    assert second.wait_caused_ns_per_step == 30 * US
    assert abs(offsets[1] - offsets[0]) == 5000 * MS


def test_r30_stream_zero_is_a_stream(tmp_path: Path) -> None:
    """Kernels of the default stream are kernels; those of "no stream" are not lost."""
    trace = DrawnTrace(metadata=rank_metadata(0, 1))
    trace.host("ProfilerStep#0", 0, 100)
    trace.device("triton_poi_fused_add_0", 10, 20, launched=5, stream=0)
    trace.device("gemm", 20, 30, launched=6, stream=2**32 - 1)
    trace.write(tmp_path / "rank0.json")
    (data,) = import_run([tmp_path]).load()
    spans = data.steps[0].spans
    spans = spans.rows(spans.lane == Lane.COMPUTE)

    assert spans.stream.tolist() == [0, -1]
    assert spans.kind.tolist() == [Kind.KERNEL, Kind.KERNEL]


def test_r32_events_out_of_order_and_clock_inversions(tmp_path: Path) -> None:
    """Events come in any order; one that ends before it begins is dropped, counted."""
    trace = DrawnTrace(metadata=rank_metadata(0, 1))
    trace.host("ProfilerStep#0", 0, 100)
    trace.device("late", 60, 70, launched=30)
    trace.device("inverted", 50, 45, launched=20)
    trace.device("early", 10, 20, launched=5)
    trace.write(tmp_path / "rank0.json")
    (data,) = import_run([tmp_path]).load()
    spans = data.steps[0].spans
    kernels = spans.rows(spans.kind == Kind.KERNEL)

    assert [data.name(name) for name in kernels.name.tolist()] == ["early", "late"]
    assert data.header.health["negative_durations"] == 1
    assert data.header.health["dropped"] == 1


def ddp_trace() -> DrawnTrace:
    """Two steps of DDP: half of the all-reduce is hidden."""
    trace = DrawnTrace(metadata=rank_metadata(0, 1))
    for step in range(2):
        at = 100 * step
        trace.host(f"ProfilerStep#{step}", at, at + 100)
        trace.host("DistributedDataParallel.forward", at + 1, at + 10)
        engine = "autograd::engine::evaluate_function: AddmmBackward0"
        trace.host(engine, at + 4, at + 9, cat="cpu_op", tid=AUTOGRAD)
        trace.device("gemm_backward", at + 10, at + 50, launched=at + 5, tid=AUTOGRAD)
        trace.device(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            at + 30,
            at + 70,
            launched=at + 8,
            tid=AUTOGRAD,
            stream=GATHER,
            args=collective("allreduce", 16, 16),
        )
        trace.device("adam", at + 70, at + 90, launched=at + 20)
    return trace


@pytest.mark.parametrize("wrapper", ["fsdp2", "ddp"])
def test_r41_r42_exposed_time_comes_first(tmp_path: Path, wrapper: str) -> None:
    """Of FSDP2 and of DDP, right below the verdict, which says what there is to gain:
    what was exposed, and why.
    """
    if wrapper == "fsdp2":
        gathering(0).write(tmp_path / "rank0.json")
    else:
        ddp_trace().write(tmp_path / "rank0.json")

    done = CliRunner().invoke(main, ["analyze", str(tmp_path), "--no-cache"])

    first = {
        "fsdp2": "exposed 0.060 ms of 0.100 ms per step on average (60.0 % of the "
        "step): all-gather 0.060 (host-late 0.005, queued 0.015, straggler or wire "
        "0.040)",
        "ddp": "exposed 0.020 ms of 0.100 ms per step on average (20.0 % of the "
        "step): all-reduce 0.020 (straggler not measured, wire 0.020)",
    }
    verdict, *lines = done.stdout.splitlines()
    assert verdict.startswith("Compute waits ")
    gains = ("Most to gain, ", "Best change")
    assert next(line for line in lines if not line.startswith(gains)) == first[wrapper]


def test_r43_each_collective_has_its_unit_and_times(tmp_path: Path) -> None:
    """Per unit: how large its gather was, and how long compute stood still for it.

    A live record says the same: recorder/test_fsdp2_counts.py.
    """
    two_ranks(tmp_path)
    done = CliRunner().invoke(main, ["analyze", str(tmp_path), "--no-cache", "--json"])
    (unit,) = json.loads(done.stdout)["units"]

    assert unit["unit"] == "layers.0"
    assert unit["all_gather_bytes"] == 32
    assert unit["exposed_ns"]["forward"] == 60 * US
