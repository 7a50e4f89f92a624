"""From kernels to units, on traces drawn event by event."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.analysis.timeline import timeline_of
from fsdpdoctor.errors import InputError
from fsdpdoctor.importers import import_run
from fsdpdoctor.quantities import US
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    NO_TIME,
    Evidence,
    Flag,
    GroupSpec,
    Kind,
    Lane,
    ModelSpec,
    Phase,
    Spans,
)
from tests.importers.drawn_trace import (
    AUTOGRAD,
    COPY_IN,
    GATHER,
    SCATTER,
    DrawnTrace,
    collective,
    rank_metadata,
)

NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NCCL_RS = (
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
)


def imported(trace: DrawnTrace, folder: Path) -> RankData:
    """The trace as rank 0 of 4."""
    trace.metadata = {**rank_metadata(0, 4), **trace.metadata}
    trace.write(folder / "rank0.json")
    (data,) = import_run([folder]).load()
    return data


def told(data: RankData, spans: Spans) -> list[tuple[object, ...]]:
    """Spans in words: kind, unit, phase, start and end in microseconds."""
    return [
        (
            Kind(kind).name,
            data.unit_name(unit),
            Phase(phase).name,
            start / US,
            end / US,
        )
        for kind, unit, phase, start, end in zip(
            spans.kind.tolist(),
            spans.unit.tolist(),
            spans.phase.tolist(),
            spans.start_ns.tolist(),
            spans.end_ns.tolist(),
            strict=True,
        )
    ]


def on_lane(data: RankData, *lanes: Lane) -> Spans:
    """The first step's spans on some lanes."""
    spans = data.steps[0].spans
    return spans.rows([lane in lanes for lane in spans.lane])  # type: ignore[arg-type]


def unshard(
    trace: DrawnTrace,
    unit: str,
    at: float,
    *,
    runs: float,
    took: float,
    tid: int = 100,
    nccl: str | None = NCCL,
) -> None:
    """An all_gather label of 10 us at `at`, with its copy-in and NCCL kernel."""
    trace.host(f"FSDP::all_gather{unit}", at, at + 10, tid=tid)
    trace.host("fsdp::all_gather_copy_in", at + 1, at + 4, cat="cpu_op", tid=tid)
    trace.device(
        "copy_in_kernel", runs - 3, runs, launched=at + 2, stream=COPY_IN, tid=tid
    )
    if nccl is not None:
        trace.device(
            nccl,
            runs,
            runs + took,
            launched=at + 6,
            stream=GATHER,
            tid=tid,
            args=collective("_allgather_base", 500, 2000),
        )


def copy_out(
    trace: DrawnTrace, unit: str, at: float, *, runs: float, tid: int = 100
) -> None:
    """A copy-out label of 4 us at `at`, whose kernel takes 5 us."""
    trace.host(f"FSDP::all_gather_copy_out{unit}", at, at + 4, tid=tid)
    trace.device("split_with_sizes_copy", runs, runs + 5, launched=at + 1, tid=tid)


def fsdp2_step() -> DrawnTrace:
    """A step of a root and one layer, with backward on its own thread.

    Host and device times are microseconds; the device lags the host throughout.
    """
    trace = DrawnTrace()
    trace.host("ProfilerStep#7", 0, 1000)
    trace.host("FSDP::root_pre_forward", 10, 12)
    trace.host("FSDP::pre_forward", 20, 40)
    unshard(trace, "", 21, runs=60, took=40)
    copy_out(trace, "", 32, runs=100)
    trace.host("FSDP::pre_forward (layers.0)", 50, 70)
    unshard(trace, " (layers.0)", 51, runs=105, took=45)
    copy_out(trace, " (layers.0)", 62, runs=150)
    trace.device("gemm", 155, 200, launched=80)
    trace.host("FSDP::post_forward (layers.0)", 90, 92)
    trace.device("head", 200, 210, launched=95)
    trace.host("FSDP::post_forward", 97, 99)
    trace.host("FSDP::pre_backward", 120, 160, tid=AUTOGRAD)
    trace.host("FSDP::backward_prefetch for layers.0", 130, 150, tid=AUTOGRAD)
    unshard(trace, " (layers.0)", 131, runs=215, took=40, tid=AUTOGRAD)
    trace.device("head_backward", 210, 230, launched=170, tid=AUTOGRAD)
    trace.host("FSDP::pre_backward (layers.0)", 180, 190, tid=AUTOGRAD)
    copy_out(trace, " (layers.0)", 182, runs=255, tid=AUTOGRAD)
    trace.device("gemm_backward", 260, 340, launched=200, tid=AUTOGRAD)
    trace.host("FSDP::post_backward_accumulate (layers.0)", 210, 211, tid=AUTOGRAD)
    trace.host("FSDP::post_backward_reshard (layers.0)", 212, 214, tid=AUTOGRAD)
    trace.host("FSDP::post_backward_reduce (layers.0)", 215, 235, tid=AUTOGRAD)
    trace.device("chunk_cat", 340, 345, launched=217, tid=AUTOGRAD)
    trace.device(
        NCCL_RS,
        345,
        400,
        launched=225,
        stream=SCATTER,
        tid=AUTOGRAD,
        args=collective("_reduce_scatter_base", 2000, 500),
    )
    trace.device("cast", 400, 402, launched=230, stream=SCATTER, tid=AUTOGRAD)
    trace.host("FSDP::root_post_backward_callback", 240, 250, tid=AUTOGRAD)
    trace.host("FSDP::post_backward_accumulate", 241, 242, tid=AUTOGRAD)
    trace.host("cudaStreamSynchronize", 300, 410, cat="cuda_runtime")
    trace.host("Optimizer.step#AdamW.step", 420, 460)
    trace.device("adamw", 470, 500, launched=430)
    return trace


def test_units_phases_and_lanes(tmp_path: Path) -> None:
    """Every kernel gets the unit and pass that launched it, collectives their lanes."""
    data = imported(fsdp2_step(), tmp_path)

    assert tuple(unit.fqn for unit in data.header.units) == ("<root>", "layers.0")
    assert told(data, on_lane(data, Lane.COPY_IN, Lane.ALL_GATHER)) == [
        ("COPY_IN", "<root>", "FORWARD", 57.0, 60.0),
        ("ALL_GATHER", "<root>", "FORWARD", 60.0, 100.0),
        ("COPY_IN", "layers.0", "FORWARD", 102.0, 105.0),
        ("ALL_GATHER", "layers.0", "FORWARD", 105.0, 150.0),
        ("COPY_IN", "layers.0", "BACKWARD", 212.0, 215.0),
        ("ALL_GATHER", "layers.0", "BACKWARD", 215.0, 255.0),
    ]
    assert told(data, on_lane(data, Lane.REDUCE_SCATTER)) == [
        ("REDUCE_SCATTER", "layers.0", "BACKWARD", 345.0, 400.0)
    ]
    assert told(data, on_lane(data, Lane.COMPUTE)) == [
        ("COPY_OUT", "<root>", "FORWARD", 100.0, 105.0),
        ("COPY_OUT", "layers.0", "FORWARD", 150.0, 155.0),
        ("FORWARD", "<root>", "FORWARD", 150.0, 210.0),
        ("KERNEL", "layers.0", "FORWARD", 155.0, 200.0),
        ("FORWARD", "layers.0", "FORWARD", 155.0, 200.0),
        ("KERNEL", "<root>", "FORWARD", 200.0, 210.0),
        ("KERNEL", "<root>", "BACKWARD", 210.0, 230.0),
        ("BACKWARD", "<root>", "BACKWARD", 210.0, 402.0),
        ("COPY_OUT", "layers.0", "BACKWARD", 255.0, 260.0),
        ("KERNEL", "layers.0", "BACKWARD", 260.0, 340.0),
        ("BACKWARD", "layers.0", "BACKWARD", 260.0, 340.0),
        ("REDUCE_COPY_IN", "layers.0", "BACKWARD", 340.0, 345.0),
        ("KERNEL", "layers.0", "BACKWARD", 400.0, 402.0),
        ("KERNEL", None, "OPTIMIZER", 470.0, 500.0),
        ("OPTIMIZER", None, "OPTIMIZER", 470.0, 500.0),
    ]


def test_collectives_say_what_they_are(tmp_path: Path) -> None:
    """Issue time, bytes of the large side, group, number, flags and issuer."""
    data = imported(fsdp2_step(), tmp_path)
    gathers = on_lane(data, Lane.ALL_GATHER)
    (reduce,) = on_lane(data, Lane.REDUCE_SCATTER).bytes.tolist()

    assert (gathers.issued_ns / US).tolist() == [27.0, 57.0, 137.0]
    assert gathers.bytes.tolist() == [4000, 4000, 4000]
    assert reduce == 4000
    assert gathers.flags.tolist() == [Flag.FIRST, Flag.NONE, Flag.BACKWARD_PREFETCH]
    assert [data.unit_name(unit) for unit in gathers.by_unit] == [
        "<root>",
        "layers.0",
        "<root>",
    ]
    assert gathers.seq.tolist() == [0, 1, 2]
    assert gathers.stream.tolist() == [GATHER] * 3
    assert data.header.groups == (
        GroupSpec(name="1", ranks=(0, 1, 2, 3), size=4, backend="nccl"),
    )


def test_the_stall_before_a_copy_out_is_the_gathers(tmp_path: Path) -> None:
    """Gaps that end in a copy-out are the exposed time of its all-gather."""
    data = imported(fsdp2_step(), tmp_path)
    stalls = timeline_of(data, data.steps[0]).stalls
    gathers = stalls.rows((stalls.kind == Kind.ALL_GATHER) & (stalls.unit == 1))

    assert [
        (data.unit_name(unit), start / US, end / US)
        for unit, start, end in zip(
            gathers.unit,
            gathers.start_ns.tolist(),
            gathers.end_ns.tolist(),
            strict=True,
        )
    ] == [
        ("layers.0", 105.0, 150.0),
        ("layers.0", 230.0, 255.0),
    ]


def test_what_a_device_trace_can_show(tmp_path: Path) -> None:
    """Everything but what only a recorder sees."""
    data = imported(fsdp2_step(), tmp_path)
    step = data.steps[0]

    assert data.evidence == {
        Evidence.UNITS,
        Evidence.STEPS,
        Evidence.MICRO_BATCHES,
        Evidence.COLLECTIVES,
        Evidence.KERNELS,
        Evidence.ISSUE_TIMES,
        Evidence.HOST,
        Evidence.SYNC_CALLS,
        Evidence.OPTIMIZER,
    }
    assert (step.step, step.micro_batches, step.complete) == (7, 1, True)
    assert (step.start_ns, step.end_ns) == (0, 1000 * US)
    assert data.header.model == ModelSpec(wrapper="fsdp2")
    assert told(data, step.spans.rows(step.spans.kind == Kind.SYNC)) == [
        ("SYNC", None, "OTHER", 300.0, 410.0)
    ]


def test_r29_copy_engine_gather(tmp_path: Path) -> None:
    """A gather that copy engines ran shows as memcpys: together they are one."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 300)
    trace.host("FSDP::pre_forward (layers.0)", 10, 60)
    unshard(trace, " (layers.0)", 20, runs=40, took=0, nccl=None)
    for peer in range(3):
        trace.device(
            "Memcpy PtoP (Device -> Device)",
            40 + peer,
            50 + peer,
            launched=25 + peer,
            stream=30 + peer,
            cat="gpu_memcpy",
            call="cudaMemcpyAsync",
            args={"bytes": 1000},
        )
    copy_out(trace, " (layers.0)", 40, runs=52)
    data = imported(trace, tmp_path)

    assert told(data, on_lane(data, Lane.ALL_GATHER)) == [
        ("ALL_GATHER", "layers.0", "FORWARD", 40.0, 52.0)
    ]
    assert on_lane(data, Lane.ALL_GATHER).bytes.tolist() == [3000]
    assert told(data, on_lane(data, Lane.COPY_IN)) == [
        ("COPY_IN", "layers.0", "FORWARD", 37.0, 40.0)
    ]
    assert len(on_lane(data, Lane.COPY)) == 0


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", Kind.ALL_REDUCE),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)", Kind.ALL_GATHER),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)", Kind.ALL_GATHER),
        ("void ncclDevKernel_ReduceScatter_Sum_f32", Kind.REDUCE_SCATTER),
        ("rcclGenericKernel<1, false>", Kind.COLLECTIVE),
        ("multimem_all_gather_kernel", Kind.ALL_GATHER),
        ("two_shot_all_reduce_kernel<c10::BFloat16>", Kind.ALL_REDUCE),
        ("hcom_allGather__123_0", Kind.ALL_GATHER),
        ("oneccl_reduce_scatter", Kind.REDUCE_SCATTER),
        ("mscclKernel_Sum_half_LL", Kind.COLLECTIVE),
        ("void deep_ep::internode::dispatch<8>(int4*)", Kind.COLLECTIVE),
        ("void at::native::reduce_kernel<512>", None),
        ("void cutlass::Kernel<gather_gemm>", None),
        ("triton_poi_fused_all_gather_like_add_0", None),
    ],
)
def test_r27_r28_r45_names_of_every_backend(
    tmp_path: Path, kernel: str, kind: Kind | None
) -> None:
    """One table of libraries; a compute kernel with a telling word is none of them."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 100)
    trace.device(kernel, 20, 30, launched=10)
    data = imported(trace, tmp_path)
    (span,) = (
        data.steps[0].spans.rows(data.steps[0].spans.lane != Lane.HOST).kind.tolist()
    )

    assert span == (Kind.KERNEL if kind is None else kind)


def test_r27_arguments_and_parent_before_the_name(tmp_path: Path) -> None:
    """A kernel of an unknown library is a collective by its arguments, or because
    `record_param_comms` launched it.
    """
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 100)
    trace.device(
        "vendor_kernel_a",
        20,
        30,
        launched=10,
        args=collective("_allgather_base", 5, 20),
    )
    trace.host(
        "record_param_comms", 39, 45, cat="cpu_op", args=collective("allreduce", 7, 7)
    )
    trace.device("vendor_kernel_b", 50, 60, launched=40)
    data = imported(trace, tmp_path)

    assert told(data, on_lane(data, Lane.ALL_GATHER, Lane.ALL_REDUCE)) == [
        ("ALL_GATHER", None, "OTHER", 20.0, 30.0),
        ("ALL_REDUCE", None, "OTHER", 50.0, 60.0),
    ]
    assert on_lane(data, Lane.ALL_GATHER, Lane.ALL_REDUCE).bytes.tolist() == [40, 14]


def test_r36_communication_that_was_not_captured(tmp_path: Path) -> None:
    """Collectives were called and no kernel of them is there: not a perfect overlap."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 100)
    trace.host("nccl:all_reduce", 10, 12)
    trace.device("gemm", 20, 30, launched=15)
    data = imported(trace, tmp_path)

    assert Evidence.COLLECTIVES not in data.evidence
    assert (
        "communication was called (1 event on the host) and no kernel of it was "
        "captured: overlap and exposed time are not measured. Profile with "
        "ProfilerActivity.CUDA, from before the step begins"
    ) in data.header.warnings


def test_other_communication_beside_fsdp2(tmp_path: Path) -> None:
    """With labels in the trace, a collective outside them is somebody else's."""
    trace = fsdp2_step()
    trace.device(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        510,
        520,
        launched=440,
        stream=40,
        args=collective("allreduce", 1, 1, group="tp"),
    )
    data = imported(trace, tmp_path)
    others = on_lane(data, Lane.OTHER_COMM)

    assert told(data, others) == [("COLLECTIVE", None, "OPTIMIZER", 510.0, 520.0)]
    assert data.name(int(others.name[0])) == "allreduce"


def test_r19_merged_file(tmp_path: Path) -> None:
    """Calls of two processes in one file are refused: their ids collide."""
    trace = DrawnTrace()
    trace.host("aten::add", 0, 1, cat="cpu_op")
    trace.pid = 4001
    trace.host("aten::add", 0, 1, cat="cpu_op")
    trace.host("cudaLaunchKernel", 0, 1, cat="cuda_runtime", args={"correlation": 1})
    trace.write(tmp_path / "rank0.json")

    with pytest.raises(InputError, match=r"2 processes \(pid 4000, 4001\): a merged"):
        list(import_run([tmp_path]).load())


def test_r31_durations_that_cannot_be(tmp_path: Path) -> None:
    """Kernels of one stream that overlap by more than a clock's jitter are counted,
    and a trace full of them is called unreliable.
    """
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 200)
    trace.device("a", 10, 25, launched=1)
    trace.device("b", 20, 30, launched=2)  # 5 us before a ended
    trace.device("c", 29.5, 40, launched=3)  # half a microsecond: jitter
    data = imported(trace, tmp_path)

    assert data.header.health["kernels_overlapping_on_a_stream"] == 1
    assert (
        "1 kernel began before the one before them on the same stream had ended: "
        "durations in this trace are not reliable"
    ) in data.header.warnings


def test_r34_counts_of_what_cannot_be(tmp_path: Path) -> None:
    """Kernels of no length, before their launch, and without one are counted."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 200)
    trace.device("zero", 10, 10, launched=1)
    trace.device("early", 20, 30, launched=25)
    trace.device("orphan", 40, 50)
    data = imported(trace, tmp_path)

    assert data.header.health == {
        "events": 6,
        "repaired": 0,
        "dropped": 0,
        "negative_durations": 0,
        "kernels_before_their_launch": 1,
        "kernels_of_no_length": 1,
        "kernels_without_a_launch": 1,
    }


def test_r33_sync_events_and_memset_are_no_compute(tmp_path: Path) -> None:
    """A `cuda_sync` row and a memset on a stream hide no communication."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 300)
    trace.device(NCCL, 10, 110, launched=1, stream=GATHER)
    trace.device("Stream Wait Event", 10, 110, cat="cuda_sync")
    trace.device("Memset (Device)", 20, 60, launched=2, cat="gpu_memset")
    trace.device("gemm", 110, 120, launched=3)
    data = imported(trace, tmp_path)
    line = timeline_of(data, data.steps[0])

    assert (line.compute / US).tolist() == [[110.0, 120.0]]


def test_r35_base_time_is_added(tmp_path: Path) -> None:
    """Files of different origins compare: times are since the Unix epoch."""
    trace = DrawnTrace(metadata={"baseTimeNanoseconds": 1_790_857_026_000_000_000})
    trace.host("ProfilerStep#0", 4_955_104_754_192.022, 4_955_104_754_200.0)
    data = imported(trace, tmp_path)

    assert data.steps[0].host_start_ns == 1_795_812_130_754_192_022


def test_r37_the_last_step_is_kept(tmp_path: Path) -> None:
    """Every whole step counts, the last one too, with the kernels that it launched
    wherever they ran.
    """
    trace = DrawnTrace()
    for step in range(3):
        start = 100 * step
        trace.host(f"ProfilerStep#{step}", start, start + 99.9)
        trace.device("gemm", start + 150, start + 240, launched=start + 10)
    data = imported(trace, tmp_path)

    assert [step.step for step in data.steps] == [0, 1, 2]
    assert [step.duration_ns / US for step in data.steps] == [240.0, 100.0, 100.0]
    assert [int((step.spans.kind == Kind.KERNEL).sum()) for step in data.steps] == [
        1
    ] * 3


def test_r39_gpu_annotations_are_not_used(tmp_path: Path) -> None:
    """A gpu_user_annotation that covers the wrong kernels misleads nobody."""
    trace = fsdp2_step()
    trace.device("FSDP::all_gather (layers.9)", 0, 900, cat="gpu_user_annotation")
    data = imported(trace, tmp_path)

    assert tuple(unit.fqn for unit in data.header.units) == ("<root>", "layers.0")


def test_external_id_where_runtime_calls_are_missing(tmp_path: Path) -> None:
    """Without launch calls the operator's External id still leads to the label."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 200)
    trace.host("FSDP::pre_forward (layers.0)", 10, 60)
    trace.host("FSDP::all_gather (layers.0)", 20, 40)
    trace.host("c10d::_allgather_base_", 25, 30, cat="cpu_op", args={"External id": 77})
    trace.device(NCCL, 50, 90, stream=GATHER, args={"External id": 77})
    data = imported(trace, tmp_path)
    gathers = on_lane(data, Lane.ALL_GATHER)

    assert told(data, gathers) == [("ALL_GATHER", "layers.0", "FORWARD", 50.0, 90.0)]
    assert gathers.issued_ns.tolist() == [NO_TIME]
    assert Evidence.ISSUE_TIMES not in data.evidence


def test_recomputation_is_backwards(tmp_path: Path) -> None:
    """A forward inside backward is recomputation, and what it gathers backward's."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 500)
    trace.host("FSDP::pre_backward", 10, 20, tid=AUTOGRAD)
    trace.host("FSDP::pre_forward (layers.0)", 30, 60, tid=AUTOGRAD)
    unshard(trace, " (layers.0)", 31, runs=60, took=10, tid=AUTOGRAD)
    copy_out(trace, " (layers.0)", 45, runs=70, tid=AUTOGRAD)
    trace.device("again", 75, 90, launched=70, tid=AUTOGRAD)
    trace.host("FSDP::post_forward (layers.0)", 80, 81, tid=AUTOGRAD)
    trace.host("FSDP::root_post_backward_callback", 100, 110, tid=AUTOGRAD)
    data = imported(trace, tmp_path)
    spans = data.steps[0].spans
    again = spans.rows(spans.flags & Flag.RECOMPUTE != 0)

    assert [
        row
        for row in told(data, again)
        if row[0] in ("ALL_GATHER", "KERNEL", "FORWARD")
    ] == [
        ("ALL_GATHER", "layers.0", "BACKWARD", 60.0, 70.0),
        ("KERNEL", "layers.0", "BACKWARD", 75.0, 90.0),
        ("FORWARD", "layers.0", "BACKWARD", 75.0, 90.0),
    ]
    layer = next(unit for unit in data.header.units if unit.fqn == "layers.0")
    assert layer.checkpointed is True


def test_steps_from_optimizers_where_none_are_marked(tmp_path: Path) -> None:
    """Between two optimizer steps lies one step, if profiler.step() was not called."""
    trace = DrawnTrace()
    for step in range(3):
        trace.host("Optimizer.step#SGD.step", 100 * step + 80, 100 * step + 90)
        trace.device("gemm", 100 * step + 30, 100 * step + 60, launched=100 * step + 20)
    data = imported(trace, tmp_path)

    assert [
        (step.step, step.host_start_ns / US, step.host_end_ns / US)
        for step in data.steps
    ] == [(0, 90.0, 190.0), (1, 190.0, 290.0)]


def steps_of(
    count: int, *, first_took: float = 20, kernels_in_first: int = 4
) -> DrawnTrace:
    """Steps of 100 ms, each with an all-reduce of 20 us and four kernels."""
    trace = DrawnTrace()
    for step in range(count):
        start = 100_000.0 * step
        trace.host(f"ProfilerStep#{step}", start, start + 99_999)
        took = 20 if step else first_took
        trace.device(
            "ncclDevKernel_AllReduce_Sum_f32",
            start + 10,
            start + 10 + took,
            launched=start + 1,
            stream=GATHER,
            args=collective("allreduce", 9, 9),
        )
        for kernel in range(4):
            at = start + 60_000 + 10 * kernel
            if step == 0 and kernel >= kernels_in_first:
                trace.host("cudaLaunchKernel", at - 50, at - 49, cat="cuda_runtime")
                continue
            trace.device("gemm", at, at + 5, launched=at - 50)
    return trace


def test_r25_capture_skew(tmp_path: Path) -> None:
    """A first collective that waited for other ranks' captures is not training time:
    its step is set aside, and said to be.
    """
    data = imported(steps_of(5, first_took=50_000), tmp_path)

    assert [step.step for step in data.steps] == [1, 2, 3, 4]
    assert data.header.warnings[0] == (
        "step 0 is set aside: its first collective took 50.0 ms, where the median of "
        "its kind is 20.0 us: it waited for ranks whose capture began later. Start "
        "captures together, after a barrier"
    )
    assert int((data.outside.kind == Kind.KERNEL).sum()) == 4


def test_r34_device_events_begin_late(tmp_path: Path) -> None:
    """A first step whose kernels were lost is set aside; a sound one is kept."""
    late = imported(steps_of(3, kernels_in_first=0), tmp_path)
    (tmp_path / "sound").mkdir()
    sound = imported(steps_of(3), tmp_path / "sound")

    assert [step.step for step in late.steps] == [1, 2]
    assert "most of its kernels are missing" in late.header.warnings[0]
    assert [step.step for step in sound.steps] == [0, 1, 2]


def unlabelled_step(trace: DrawnTrace, at: float, *, in_graph: bool) -> None:
    """A step of a root and two layers, only its kernels: 100 us from `at` on."""
    trace.host(f"ProfilerStep#{int(at / 100)}", at, at + 100)
    calls = [(NCCL, 9), (NCCL, 4), (NCCL, 6), (NCCL, 6), (NCCL_RS, 6)]
    calls += [(NCCL, 4), (NCCL_RS, 4), (NCCL_RS, 9)]
    for i, (kernel, size) in enumerate(calls):
        begins = at + 12 + 10 * i
        gathers = kernel == NCCL
        trace.device(
            kernel,
            begins,
            begins + 8,
            launched=at + 1 if in_graph else at + 1 + i,
            call="cudaGraphLaunch" if in_graph else "cudaLaunchKernel",
            stream=GATHER,
            args=collective(
                "_allgather_base" if gathers else "_reduce_scatter_base",
                size if gathers else 4 * size,
                4 * size if gathers else size,
            ),
        )


@pytest.mark.parametrize("in_graph", [False, True])
def test_r38_units_by_size_and_order(tmp_path: Path, in_graph: bool) -> None:
    """Without labels, or in CUDA graphs, units are numbered by their forward order,
    flagged, and said to be of low confidence.
    """
    trace = DrawnTrace()
    for step in range(2):
        unlabelled_step(trace, 100 * step, in_graph=in_graph)
    data = imported(trace, tmp_path)
    spans = on_lane(data, Lane.ALL_GATHER, Lane.REDUCE_SCATTER)
    names = [f"unit {i} by order" for i in (1, 2, 3)]

    assert [unit.fqn for unit in data.header.units] == names
    assert [row[:3] for row in told(data, spans)] == [
        ("ALL_GATHER", names[0], "FORWARD"),
        ("ALL_GATHER", names[1], "FORWARD"),
        ("ALL_GATHER", names[2], "FORWARD"),
        ("ALL_GATHER", names[2], "BACKWARD"),
        ("REDUCE_SCATTER", names[2], "BACKWARD"),
        ("ALL_GATHER", names[1], "BACKWARD"),
        ("REDUCE_SCATTER", names[1], "BACKWARD"),
        ("REDUCE_SCATTER", names[0], "BACKWARD"),
    ]
    assert (spans.flags & Flag.BY_ORDER != 0).all()
    assert Evidence.UNITS not in data.evidence
    assert Evidence.UNITS_BY_ORDER in data.evidence
    assert any(
        text == "units of 16 collectives are told from sizes and order alone, with low "
        "confidence: no FSDP:: label names them, so they are numbered by forward order"
        for text in data.header.warnings
    )
    assert in_graph == any("CUDA graphs" in text for text in data.header.warnings)


def test_r38_graphs_take_the_names_of_labelled_steps(tmp_path: Path) -> None:
    """A step that a graph replays has the units that labels named in another."""
    trace = fsdp2_step()
    trace.host("ProfilerStep#8", 1100, 1200)
    for i, kernel in enumerate((NCCL, NCCL, NCCL, NCCL_RS, NCCL_RS)):
        trace.device(
            kernel,
            1110 + 10 * i,
            1118 + 10 * i,
            launched=1101,
            call="cudaGraphLaunch",
            stream=GATHER,
            args=collective(
                "_allgather_base" if kernel == NCCL else "_reduce_scatter_base",
                500 if kernel == NCCL else 2000,
                2000 if kernel == NCCL else 500,
            ),
        )
    data = imported(trace, tmp_path)
    spans = data.steps[1].spans
    spans = spans.rows(spans.lane != Lane.HOST)

    # Both are of one size: which of them is gathered again, sizes do not say.
    assert [row[:3] for row in told(data, spans)] == [
        ("ALL_GATHER", "<root>", "FORWARD"),
        ("ALL_GATHER", "layers.0", "FORWARD"),
        ("ALL_GATHER", None, "BACKWARD"),
        ("REDUCE_SCATTER", "layers.0", "BACKWARD"),
        ("REDUCE_SCATTER", "<root>", "BACKWARD"),
    ]
    assert {Evidence.UNITS, Evidence.UNITS_BY_ORDER} <= data.evidence
    assert any("labels gave in other steps" in text for text in data.header.warnings)


def test_r38_tensor_parallel_is_no_fsdp(tmp_path: Path) -> None:
    """Gathers and reductions in turn, as in sequence parallelism, are no units."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 200)
    for i in range(6):
        gathers = i % 2 == 0
        trace.device(
            NCCL if gathers else NCCL_RS,
            20 + 10 * i,
            28 + 10 * i,
            launched=1 + i,
            args=collective(
                "_allgather_base" if gathers else "_reduce_scatter_base",
                4 if gathers else 16,
                16 if gathers else 4,
            ),
        )
    data = imported(trace, tmp_path)

    assert data.header.units == ()
    assert any("no FSDP:: labels" in text for text in data.header.warnings)


def test_unshard_windows(tmp_path: Path) -> None:
    """From the copy-out's end until all that was launched before the reshard is done:
    after forward where a gather in backward explains that, else after backward.
    """
    trace = fsdp2_step()
    trace.host("FSDP::post_backward_reshard", 243, 244, tid=AUTOGRAD)
    data = imported(trace, tmp_path)
    windows = on_lane(data, Lane.UNSHARDED)

    assert told(data, windows) == [
        ("UNSHARDED", "<root>", "FORWARD", 105.0, 402.0),
        ("UNSHARDED", "layers.0", "FORWARD", 155.0, 200.0),
        ("UNSHARDED", "layers.0", "BACKWARD", 260.0, 340.0),
    ]
    assert windows.bytes.tolist() == [4000, 4000, 4000]
    assert Evidence.WINDOWS in data.evidence


def test_windows_that_labels_do_not_show(tmp_path: Path) -> None:
    """A unit that is never seen resharded: no windows at all, rather than some."""
    data = imported(fsdp2_step(), tmp_path)

    assert Evidence.WINDOWS not in data.evidence
    assert len(on_lane(data, Lane.UNSHARDED)) == 0


def test_a_gather_that_nobody_used(tmp_path: Path) -> None:
    """A prefetched unit without a pass is held until the end of backward, flagged."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 300)
    unshard(trace, " (layers.1)", 20, runs=40, took=10)
    trace.device("gemm", 60, 90, launched=50)
    trace.host("FSDP::root_post_backward_callback", 100, 110)
    data = imported(trace, tmp_path)
    windows = on_lane(data, Lane.UNSHARDED)

    assert told(data, windows) == [("UNSHARDED", "layers.1", "OTHER", 50.0, 90.0)]
    assert windows.flags.tolist() == [Flag.MANUAL | Flag.NEVER_USED]
