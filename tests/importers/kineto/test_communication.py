"""Collectives of a device trace: which, of what size, in which group."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.importers.kineto.process_groups import tensor_bytes
from fsdpdoctor.importers.reader.trace_file import CommArgs
from fsdpdoctor.quantities import US
from fsdpdoctor.schema import (
    Evidence,
    Flag,
    GroupSpec,
    Kind,
    Lane,
)
from tests.importers.drawn_trace import (
    AUTOGRAD,
    GATHER,
    DrawnTrace,
    collective,
)
from tests.importers.kineto.drawn_step import (
    fsdp2_step,
    imported,
    on_lane,
    told,
)


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


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", Kind.ALL_REDUCE),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)", Kind.ALL_GATHER),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)", Kind.ALL_GATHER),
        ("void ncclDevKernel_ReduceScatter_Sum_f32", Kind.REDUCE_SCATTER),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32(x)", Kind.ALL_REDUCE),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", Kind.ALL_REDUCE),
        ("ncclAllGatherRingLLKernel_copy_i8(ncclColl)", Kind.ALL_GATHER),
        ("c10d::symmetric_memory::barrier_kernel(unsigned int**)", Kind.COLLECTIVE),
        ("rcclGenericKernel<1, false>", Kind.COLLECTIVE),
        ("multimem_all_gather_kernel", Kind.ALL_GATHER),
        ("two_shot_all_reduce_kernel<c10::BFloat16>", Kind.ALL_REDUCE),
        ("hcom_allGather__123_0", Kind.ALL_GATHER),
        ("oneccl_reduce_scatter", Kind.REDUCE_SCATTER),
        ("mscclKernel_Sum_half_LL", Kind.COLLECTIVE),
        ("void deep_ep::internode::dispatch<8>(int4*)", Kind.COLLECTIVE),
        ("void acme::ep::internode::cached_notify<false>(int)", Kind.COLLECTIVE),
        ("void uccl::intranode::notify_dispatch<8>(int*)", Kind.COLLECTIVE),
        ("mori::moe::EpDispatchIntraNodeKernel<float>", Kind.COLLECTIVE),
        ("EpCombineInterNodeKernel_bf16", Kind.COLLECTIVE),
        ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int)", Kind.COLLECTIVE),
        ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", Kind.COLLECTIVE),
        ("quickreduce::allreduce_prototype_twoshot<T, __half>", Kind.ALL_REDUCE),
        ("void aiter::cross_device_reduce_2stage<__half, 8>", Kind.ALL_REDUCE),
        ("void aiter::reduce_scatter_cross_device_store<8>", Kind.REDUCE_SCATTER),
        ("nvshmemi_barrier_threadgroup_kernel", Kind.COLLECTIVE),
        ("void flashinfer::trtllm_allreduce_fusion::x<1>(P)", Kind.ALL_REDUCE),
        ("moeA2ADispatchKernel(int const*)", Kind.COLLECTIVE),
        ("void aiter::fused_moe_gemm<8>(int)", None),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<8>", None),
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
    by_autograd = "autograd::engine::evaluate_function: AddmmBackward0"
    trace.host(by_autograd, 5, 15, cat="cpu_op", tid=AUTOGRAD)
    trace.device(kernel, 20, 30, launched=10, tid=AUTOGRAD)
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

    found = on_lane(data, Lane.ALL_GATHER, Lane.OTHER_COMM)
    assert told(data, found) == [
        ("ALL_GATHER", None, "OTHER", 20.0, 30.0),
        ("COLLECTIVE", None, "OTHER", 50.0, 60.0),
    ]
    assert found.bytes.tolist() == [40, 14]


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


def test_an_all_reduce_that_autograd_did_not_launch_reduces_no_gradient(
    tmp_path: Path,
) -> None:
    """Without labels: the forward's is another parallelism's, the backward's is not."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 100)
    trace.device("gemm", 5, 10, launched=1)
    trace.host("c10d::allreduce_", 11, 13, cat="cpu_op")
    trace.device("ncclDevKernel_AllReduce_Sum_f16", 15, 30, launched=12, stream=20)
    trace.host(
        "autograd::engine::evaluate_function: AddBackward0",
        40,
        60,
        cat="cpu_op",
        tid=AUTOGRAD,
    )
    trace.device(
        "ncclDevKernel_AllReduce_Sum_f32", 50, 60, launched=45, stream=20, tid=AUTOGRAD
    )
    data = imported(trace, tmp_path)

    assert told(data, on_lane(data, Lane.OTHER_COMM, Lane.ALL_REDUCE)) == [
        ("COLLECTIVE", None, "OTHER", 15.0, 30.0),
        ("ALL_REDUCE", None, "BACKWARD", 50.0, 60.0),
    ]


def test_the_bytes_of_an_operators_inputs() -> None:
    """By shape and type; what has no type that is known, or is no list, is left out."""
    args = CommArgs(
        dims="[[2, 3], [], [4], [5]]",
        types='["float", "float", "c10::BFloat16", "Who"]',
    )

    assert tensor_bytes(args) == [24, 8]
    assert tensor_bytes(CommArgs(dims="[[2", types='["float"]')) == []
    assert tensor_bytes(CommArgs()) == []
