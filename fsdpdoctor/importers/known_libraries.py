"""Communication libraries, by what their kernels' names look like.

The first whose pattern is found in a name is the one. Patterns are written over several
lines: blanks and line ends count for nothing, (?i) ignores case.
"""

from __future__ import annotations

from typing import NamedTuple

NAMESPACE = r"(?:^|[\s:(*&])"
"""Before a namespace: the name's beginning, a return type, or an outer namespace."""

COMPUTE = r"""(?i)
    at::native | at_cuda_detail | cutlass | cute:: | gemm | cublas | cudnn | nvjet
    | triton_ | flash | fmha | attention | elementwise | softmax | _norm
    | convol | conv\d?d | wgrad | dgrad | fprop | __amd_rocclr
    | ^ampere_ | ^volta_ | ^turing_ | ^sm\d\d | hopper | Cijk_ | (?:^|[\s:])ck::
    | ck_tile | splitK | multi_tensor | adam | cub:: | thrust:: | rocprim | hipcub
    | MIOpen | miopen | transformer_engine | vectorized_ | embedding
    | dropout | rmsnorm | layernorm | rope | topk
"""
"""Kernels that are known to compute, wherever they run: PyTorch's own, generated ones,
and the math libraries'. Words that a library's transfers have in their names, too
(copy, fill, index, sort), count for nothing: PyTorch's own are known by namespace.
"""


class Library(NamedTuple):
    """A library, and where the names come from."""

    name: str
    pattern: str
    of: str


LIBRARIES = (
    # ncclKernel_AllReduce_RING_LL_Sum_float, ncclDevKernel_AllGather_RING_LL,
    # ncclSymDevKernel_* and ncclSymkDevKernel_*, ncclDevKernel_Generic (RCCL too), and
    # those of NCCL 2.7 and before: ncclAllReduceRingLLKernel_sum_f32.
    Library(
        "nccl",
        rf"(?i) ^(?:void[ ])?nccl\w*Kernel | {NAMESPACE}nccl(?:x|_ep|_device)?::",
        "https://github.com/NVIDIA/nccl src/device/generate.py, "
        "src/device/symmetric/generate.py; 2.7: src/collectives/device/common.h",
    ),
    Library(
        "rccl",
        r"(?i) ^(?:void[ ])?rccl | rcclGenericKernel",
        "https://github.com/ROCm/rccl",
    ),
    # multimem_all_gather_kernel, one_shot_all_reduce_kernel.
    Library(
        "symm_mem",
        rf"""
            multimem_\w*(?:all_gather|all_reduce|reduce_scatter|broadcast|one_shot)
            | (?:one|two)_shot_all_reduce | two_shot_\w*reduce
            | \bsymm_mem | all_to_all_vdev
            | {NAMESPACE}c10d::symmetric_memory:: | {NAMESPACE}c10d::nvshmem_extension::
        """,
        "https://github.com/pytorch/pytorch torch/csrc/distributed/c10d/symm_mem",
    ),
    Library(
        "nvshmem",
        r"(?i) nvshmem | rocshmem | ishmem",
        "https://github.com/NVIDIA/nvshmem src/device",
    ),
    Library(
        "hccl",
        r"(?i) ^(?:hcom_|hccl)",
        "https://gitee.com/ascend/pytorch; https://docs.habana.ai (HCCL)",
    ),
    Library(
        "oneccl",
        r"(?i) ^(?:oneccl|ccl)_ | oneapi::ccl | ccl_kernel",
        "https://github.com/uxlfoundation/oneCCL",
    ),
    Library(
        "msccl",
        r"(?i) msccl(?:pp)?(?:Kernel|::|_)",
        "https://github.com/microsoft/mscclpp",
    ),
    # deep_ep::intranode::dispatch, internode_ll::combine, layout::get_dispatch_layout;
    # forks keep the inner namespaces (uccl::internode, primus_turbo::deep_ep).
    Library(
        "deep_ep",
        rf"""
            {NAMESPACE}(?:deep_ep|uccl|hybrid_ep)::
            | {NAMESPACE}(?:internode|intranode)(?:_ll)?::
        """,
        "https://github.com/deepseek-ai/DeepEP csrc/kernels",
    ),
    # EpDispatchIntraNodeKernel, EpCombineInterNodeKernel, and mori's own namespace.
    Library(
        "mori",
        rf"{NAMESPACE}mori:: | \bEp(?:Dispatch|Combine)\w*",
        "https://github.com/ROCm/mori src/ops/dispatch_combine",
    ),
    # userbuffers_fp16_sum_inplace_gpu_rw_ag, kuserbuffers_pushsend.
    Library(
        "userbuffers",
        r"\bk?userbuffers_\w+",
        "https://github.com/NVIDIA/TransformerEngine "
        "transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu",
    ),
    # quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<...>>.
    Library(
        "quickreduce",
        rf"{NAMESPACE}quickreduce:: | \ballreduce_prototype_\w+",
        "https://github.com/mk1-project/quickreduce; vLLM csrc/quickreduce",
    ),
    # vllm::, sglang:: and aiter::cross_device_reduce_1stage, and aiter's fused forms.
    Library(
        "custom_all_reduce",
        rf"""(?i)
            \bcross_device_reduce\w*
            | {NAMESPACE}aiter::(?:\w+::)*\w*
            (?:all_?reduce|all_?gather|reduce_?scatter|cross_device)
        """,
        "https://github.com/vllm-project/vllm csrc/custom_all_reduce.cuh; "
        "https://github.com/ROCm/aiter csrc/include/custom_all_reduce.cuh",
    ),
    # flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport,
    # trtllm_mnnvl_allreduce::twoshotAllreduceKernel, trtllm_alltoall::*, and
    # TensorRT-LLM's own moeA2ADispatchKernel.
    Library(
        "flashinfer",
        r"""(?i)
            \ballreduce_fusion_kernel\w* | \b\w*shot_?all_?reduce\w*
            | flashinfer::(?:\w+::)*\w*(?:all_?reduce|all_?to_?all|a2a)
            | moe_?(?:A2A|all_?to_?all)\w*
        """,
        "https://github.com/flashinfer-ai/flashinfer include/flashinfer/comm; "
        "https://github.com/NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels",
    ),
)
