"""From kernels to units: who issued them, for what, and on which lane."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fsdpdoctor.analysis.timeline import timeline_of
from fsdpdoctor.quantities import US
from fsdpdoctor.schema import (
    NO_TIME,
    Evidence,
    Flag,
    Kind,
    Lane,
    ModelSpec,
)
from tests.importers.drawn_trace import (
    AUTOGRAD,
    GATHER,
    DrawnTrace,
)
from tests.importers.kineto.drawn_step import (
    NCCL,
    copy_out,
    fsdp2_step,
    host_step,
    imported,
    on_lane,
    told,
    unshard,
)


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
        Evidence.OTHER_COLLECTIVES,
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


def test_where_the_host_computes_its_passes_are_the_spans(tmp_path: Path) -> None:
    """From the end of a hook to the beginning of the next, and the optimizer's step."""
    data = imported(host_step(), tmp_path)
    compute = on_lane(data, Lane.COMPUTE)
    passes = compute.rows(np.isin(compute.kind, (Kind.FORWARD, Kind.OPTIMIZER)))

    assert told(data, passes) == [
        ("FORWARD", "layers.0", "FORWARD", 90.0, 150.0),
        ("OPTIMIZER", None, "OPTIMIZER", 420.0, 460.0),
    ]
