"""Which collective a communication kernel is, and what the host's calls do.

Arguments decide first ("Collective name"), then the CPU operation that launched
the kernel, and its name only last: RCCL's kernels say nothing of the operation, and
NCCL renamed its own twice (pytorch HTA #208, #247, #360). `libraries` has the names.
"""

from __future__ import annotations

import re

from fsdpdoctor.schema import Kind

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
    return found[1].lower() if found else function_name(text)


def function_name(kernel: str) -> str:
    """The function of a kernel's name, without its types: `cached_notify`."""
    plain = kernel.split("(")[0].split("<")[0].strip()
    return (plain.split("::")[-1].split(" ")[-1] or kernel)[:80]


def is_launch(call: str) -> bool:
    """Whether a runtime call puts work on the device."""
    return "Launch" in call and "HostFunc" not in call


def is_graph_launch(call: str) -> bool:
    """Whether a runtime call replays a whole graph: `cudaGraphLaunch`."""
    return "GraphLaunch" in call
