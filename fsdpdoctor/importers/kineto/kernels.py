"""Which device work is communication, and which collective it is.

Arguments decide first ("Collective name"), then the CPU operation that launched
the kernel, and its name only last: RCCL's kernels say nothing of the operation, and
NCCL renamed its own twice (pytorch HTA #208, #247, #360). One table for all backends.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fsdpdoctor.schema import Kind


class Backend(NamedTuple):
    """A communication library and what its kernels' names look like."""

    name: str
    pattern: re.Pattern[str]


BACKENDS: tuple[Backend, ...] = (
    # ncclKernel_AllReduce_RING_LL_Sum_float, ncclDevKernel_AllGather_RING_LL,
    # ncclSymkDevKernel_*, ncclDevKernel_Generic (RCCL too).
    Backend("nccl", re.compile(r"^(?:void )?nccl(?:Symk)?(?:Dev)?Kernel", re.I)),
    Backend("rccl", re.compile(r"^(?:void )?rccl|rcclGenericKernel", re.I)),
    # torch's symmetric memory: multimem_all_gather_kernel, one_shot_all_reduce_kernel.
    Backend(
        "symm_mem",
        re.compile(
            r"multimem_\w*(?:all_gather|all_reduce|reduce_scatter|broadcast|one_shot)"
            r"|(?:one|two)_shot_all_reduce|two_shot_\w*reduce|"
            r"\bsymm_mem|all_to_all_vdev|nvshmem"
        ),
    ),
    Backend("hccl", re.compile(r"^(?:hcom_|hccl)", re.I)),
    Backend("oneccl", re.compile(r"^(?:oneccl|ccl)_|oneapi::ccl|ccl_kernel", re.I)),
    Backend("msccl", re.compile(r"msccl(?:pp)?(?:Kernel|::|_)", re.I)),
    Backend(
        "deep_ep",
        re.compile(r"deep_ep::|(?:internode|intranode)(?:_ll)?::(?:dispatch|combine)"),
    ),
    # Custom all-reduces of serving stacks.
    Backend("custom", re.compile(r"cross_device_reduce|allreduce_fusion_kernel")),
)
"""Names of communication kernels, by library. First match wins."""

_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (Kind.REDUCE_SCATTER, re.compile(r"reduce_?scatter", re.I)),
    (Kind.ALL_GATHER, re.compile(r"all_?gather", re.I)),
    (Kind.ALL_REDUCE, re.compile(r"all_?reduce|cross_device_reduce", re.I)),
)

_OTHER_OPERATIONS = re.compile(
    r"(all_?to_?all\w*|all_?reduce|all_?gather|reduce_?scatter|send_?recv|broadcast|reduce|gather|scatter|send|recv|barrier"
    r"|dispatch|combine)",
    re.I,
)

SYNCHRONIZING_CALLS = frozenset(
    {
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "hipDeviceSynchronize",
        "hipStreamSynchronize",
        "hipEventSynchronize",
        "hipMemcpy",
        "hipMemcpyWithStream",
    }
)
"""Runtime calls in which the host waits for the device."""


def backend_of(kernel: str) -> str | None:
    """The library that a kernel's name belongs to; None: no communication."""
    for backend in BACKENDS:
        if backend.pattern.search(kernel):
            return backend.name
    return None


def collective_kind(operation: str) -> Kind:
    """The kind of a collective, from whatever names it."""
    for kind, pattern in _KINDS:
        if pattern.search(operation):
            return kind
    return Kind.COLLECTIVE


def says_operation(text: str) -> bool:
    """Whether a name says which collective it is; `ncclDevKernel_Generic` does not."""
    return collective_kind(text) != Kind.COLLECTIVE or bool(
        _OTHER_OPERATIONS.search(text)
    )


def operation_name(text: str) -> str:
    """A short word for a collective that is none of FSDP2's: `all_to_all`."""
    found = _OTHER_OPERATIONS.search(text)
    return found[1].lower() if found else text.split("(")[0][:80]


def is_launch(call: str) -> bool:
    """Whether a runtime call puts work on the device."""
    return "Launch" in call and "HostFunc" not in call


def is_graph_launch(call: str) -> bool:
    """Whether a runtime call replays a whole graph: `cudaGraphLaunch`."""
    return "GraphLaunch" in call
