"""Communication libraries, and what their kernels' names look like: one table.

A library that has a namespace of its own for communication is known by it, whatever
the function: DeepEP's `notify_dispatch` and `cached_notify` wait for other ranks, too.
Where a namespace holds compute as well (aiter, FlashInfer), the functions are named.
`of` is where the names come from.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Library(NamedTuple):
    """A communication library and what its kernels' names look like."""

    name: str
    pattern: re.Pattern[str]
    of: str


_NAMESPACE = r"(?:^|[\s:(*&])"
"""Before a namespace: the name's beginning, a return type, or an outer namespace."""

LIBRARIES: tuple[Library, ...] = (
    # ncclKernel_AllReduce_RING_LL_Sum_float, ncclDevKernel_AllGather_RING_LL,
    # ncclSymkDevKernel_*, ncclDevKernel_Generic (RCCL too).
    Library(
        "nccl",
        re.compile(r"^(?:void )?nccl(?:Symk)?(?:Dev)?Kernel", re.I),
        "https://github.com/NVIDIA/nccl src/device/generate.py",
    ),
    Library(
        "rccl",
        re.compile(r"^(?:void )?rccl|rcclGenericKernel", re.I),
        "https://github.com/ROCm/rccl",
    ),
    # multimem_all_gather_kernel, one_shot_all_reduce_kernel.
    Library(
        "symm_mem",
        re.compile(
            r"multimem_\w*(?:all_gather|all_reduce|reduce_scatter|broadcast|one_shot)"
            r"|(?:one|two)_shot_all_reduce|two_shot_\w*reduce|"
            r"\bsymm_mem|all_to_all_vdev"
        ),
        "https://github.com/pytorch/pytorch torch/csrc/distributed/c10d/symm_mem",
    ),
    Library(
        "nvshmem",
        re.compile(r"nvshmem|rocshmem|ishmem", re.I),
        "https://github.com/NVIDIA/nvshmem src/device",
    ),
    Library(
        "hccl",
        re.compile(r"^(?:hcom_|hccl)", re.I),
        "https://gitee.com/ascend/pytorch; https://docs.habana.ai (HCCL)",
    ),
    Library(
        "oneccl",
        re.compile(r"^(?:oneccl|ccl)_|oneapi::ccl|ccl_kernel", re.I),
        "https://github.com/uxlfoundation/oneCCL",
    ),
    Library(
        "msccl",
        re.compile(r"msccl(?:pp)?(?:Kernel|::|_)", re.I),
        "https://github.com/microsoft/mscclpp",
    ),
    # deep_ep::intranode::dispatch, internode_ll::combine, layout::get_dispatch_layout;
    # forks keep the inner namespaces (uccl::internode, primus_turbo::deep_ep).
    Library(
        "deep_ep",
        re.compile(
            _NAMESPACE + r"(?:deep_ep|uccl|hybrid_ep)::"
            r"|" + _NAMESPACE + r"(?:internode|intranode)(?:_ll)?::"
        ),
        "https://github.com/deepseek-ai/DeepEP csrc/kernels",
    ),
    # EpDispatchIntraNodeKernel, EpCombineInterNodeKernel, and mori's own namespace.
    Library(
        "mori",
        re.compile(_NAMESPACE + r"mori::|\bEp(?:Dispatch|Combine)\w*"),
        "https://github.com/ROCm/mori src/ops/dispatch_combine",
    ),
    # userbuffers_fp16_sum_inplace_gpu_rw_ag, kuserbuffers_pushsend.
    Library(
        "userbuffers",
        re.compile(r"\bk?userbuffers_\w+"),
        "https://github.com/NVIDIA/TransformerEngine "
        "transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu",
    ),
    # quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<...>>.
    Library(
        "quickreduce",
        re.compile(_NAMESPACE + r"quickreduce::|\ballreduce_prototype_\w+"),
        "https://github.com/mk1-project/quickreduce; vLLM csrc/quickreduce",
    ),
    # vllm::, sglang:: and aiter::cross_device_reduce_1stage, and aiter's fused forms.
    Library(
        "custom_all_reduce",
        re.compile(
            r"\bcross_device_reduce\w*"
            r"|" + _NAMESPACE + r"aiter::(?:\w+::)*\w*"
            r"(?:all_?reduce|all_?gather|reduce_?scatter|cross_device)",
            re.I,
        ),
        "https://github.com/vllm-project/vllm csrc/custom_all_reduce.cuh; "
        "https://github.com/ROCm/aiter csrc/include/custom_all_reduce.cuh",
    ),
    # flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport,
    # trtllm_mnnvl_allreduce::twoshotAllreduceKernel, trtllm_alltoall::*, and
    # TensorRT-LLM's own moeA2ADispatchKernel.
    Library(
        "flashinfer",
        re.compile(
            r"\ballreduce_fusion_kernel\w*|\b\w*shot_?all_?reduce\w*|"
            r"flashinfer::(?:\w+::)*\w*(?:all_?reduce|all_?to_?all|a2a)"
            r"|moe_?(?:A2A|all_?to_?all)\w*",
            re.I,
        ),
        "https://github.com/flashinfer-ai/flashinfer include/flashinfer/comm; "
        "https://github.com/NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels",
    ),
)
"""Names of communication kernels, by library. First match wins."""

COMPUTE = re.compile(
    r"at::native|at_cuda_detail|cutlass|cute::|gemm|cublas|cudnn|nvjet|triton_|flash"
    r"|fmha|attention|elementwise|softmax|_norm|conv|^ampere_|^volta_|^turing_|^sm\d\d"
    r"|hopper|Cijk_|(?:^|[\s:])ck::|ck_tile|splitK|multi_tensor|adam|cub::|thrust::"
    r"|rocprim|hipcub|MIOpen|miopen|transformer_engine|vectorized_|reduce_kernel"
    r"|copy|fill|index|embedding|dropout|rmsnorm|layernorm|rope|topk|sort",
    re.I,
)
"""Kernels that are known to compute, wherever they run: PyTorch's own, generated
ones, and the math libraries'."""


def library_of(kernel: str) -> str | None:
    """The library that a kernel's name belongs to; None: no communication."""
    for library in LIBRARIES:
        if library.pattern.search(kernel):
            return library.name
    return None
