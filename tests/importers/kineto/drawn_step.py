"""A step of FSDP2 on a device, drawn event by event, and what is read of it."""

from __future__ import annotations

from pathlib import Path

from fsdpdoctor.importers import import_run
from fsdpdoctor.quantities import US
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    Kind,
    Lane,
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


def host_step() -> DrawnTrace:
    """A step of one layer on a CPU, its gathers over gloo: the host computes."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#7", 0, 1000)
    trace.host("FSDP::root_pre_forward", 10, 12)
    trace.host("FSDP::pre_forward (layers.0)", 50, 90)
    trace.host("FSDP::post_forward (layers.0)", 150, 152)
    trace.host("FSDP::pre_backward (layers.0)", 180, 220)
    for at in (51, 181):
        trace.host("FSDP::all_gather (layers.0)", at, at + 19)
        trace.host("c10d::_allgather_base_", at + 3, at + 19, cat="cpu_op")
        trace.host("gloo:all_gather", at + 4, at + 18, cat="cpu_op")
        trace.host("FSDP::all_gather_copy_out (layers.0)", at + 20, at + 24)
    trace.host("FSDP::post_backward_reshard (layers.0)", 300, 304)
    trace.host("FSDP::post_backward_reduce (layers.0)", 305, 335)
    trace.host("FSDP::root_post_backward_callback", 340, 350)
    trace.host("Optimizer.step#AdamW.step", 420, 460)
    return trace
