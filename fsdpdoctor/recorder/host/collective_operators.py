"""The operators of `c10d`, and what the arguments of a call say of it.

[Note: The shortest way of FSDP2's own] Each unit of a step is gathered twice and
reduced once, by two operators. A kernel in Python costs each of those calls tens of
microseconds, only to hand it on. So these two have none: who calls them from Python is
seen by the methods of `ProcessGroup`, which cost what a call in Python does, and who
does from C++ by the one functional collective that leads to them.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any, NamedTuple

import torch

from fsdpdoctor.recorder import phases
from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.recorder.host.call_stack import CallSite
from fsdpdoctor.recorder.patching import unasked
from fsdpdoctor.schema import UNKNOWN, Within

KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "monitored_barrier": "barrier",
    "recv": "recv",
    "all_gather": "all_gather",
    "all_to_all": "all_to_all",
}
"""Operators by their first letters; any other has its kind's own name."""

_DTENSOR = "/torch/distributed/tensor/".replace("/", os.sep)
_MOST_FRAMES = 40

METHOD_KINDS = frozenset(
    {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"),
        *("broadcast", "gather", "scatter", "reduce", "send", "recv"),
    }
)

KEY = "BackendSelect"

TORCH: Any = torch  # parts of it have no types
C10D: Any = getattr(torch._C, "_distributed_c10d", None)  # None: built without it


_WITHOUT_KERNEL = frozenset({"_allgather_base_", "_reduce_scatter_base_"})
"""[Note: The shortest way of FSDP2's own]."""

THEIR_METHODS = (
    *("_allgather_base", "all_gather_single"),
    *("_reduce_scatter_base", "reduce_scatter_single"),
)
"""Of `ProcessGroup`, by the names that versions have for them."""

FUNCTIONAL = "all_gather_into_tensor_out"
"""Of the functional collectives the one that calls one of these two."""


class Operator(NamedTuple):
    """One operator of `c10d`."""

    name: str
    call: Any
    group_at: int
    async_at: int  # UNKNOWN: it has no such argument
    kind: str


class Call:
    """A collective that was issued."""

    __slots__ = (
        "asynchronous",
        "done",
        "ended",
        "flags",
        "group",
        "issued_ns",
        "kind",
        "micro_batch",
        "op",
        "outputs",
        "phase",
        "seq",
        "site",
        "size",
        "start",
        "unit",
        "waits",
        "within",
        "work",
    )

    def __init__(self, kind: str, site: CallSite) -> None:
        self.kind = kind
        self.site = site
        self.flags = 0
        self.done = False
        self.group = self.seq = self.size = self.unit = self.op = UNKNOWN
        self.micro_batch = UNKNOWN
        self.phase = phases.OTHER
        self.within = Within.SCRIPT
        self.asynchronous = True
        self.issued_ns = self.start = self.ended = 0
        self.waits: list[tuple[int, int]] = []
        self.work: Any = None  # kept until it is waited for: its identity is the key
        self.outputs: list[int] = []


_CLIPPING = ("clip", "grad_norm", "total_norm")
_LOADING = ("loader", "next_batch", "get_batch", "__next__", "collate", "fetch")
_SAVING = ("save", "checkpoint", "state_dict", "load_")


def named_within(functions: tuple[str, ...]) -> Within:
    """What the functions around a call say of themselves, by their names."""
    names = [name.lower() for name in functions]
    for within, words in (
        (Within.CLIP, _CLIPPING),
        (Within.LOADER, _LOADING),
        (Within.CHECKPOINT, _SAVING),
    ):
        if any(word in name for name in names for word in words):
            return within
    return Within.SCRIPT


@cache
def supported() -> bool:
    """Whether the installed torch has what this needs. Seen in torch 2.13."""
    return (
        torch.distributed.is_available()
        and hasattr(torch._C, "_dispatch_keyset_full_after")
        and hasattr(C10D.ProcessGroup, "unbox")
        and hasattr(C10D.Work, "unbox")
    )


def below_key() -> Any:
    """The keys under ours: who is asked next."""
    return torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))


@cache
def operators() -> list[Operator]:
    """The operators of `c10d`, as the installed torch has them."""
    found = []
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace != "c10d" or "." in name:
            continue
        call = getattr(torch.ops.c10d, name).default
        arguments = [argument.name for argument in call._schema.arguments]
        if "process_group" not in arguments:
            continue
        found.append(
            Operator(
                name=name,
                call=call,
                group_at=arguments.index("process_group"),
                async_at=arguments.index("async_op")
                if "async_op" in arguments
                else UNKNOWN,
                kind=kind_of(name),
            )
        )
    return found


@cache
def without_kernel() -> frozenset[str]:
    """The operators that are seen by `THEIR_METHODS`; none in a torch that has other
    names for them.
    """
    there = {operator.name for operator in operators()}
    return _WITHOUT_KERNEL if there >= _WITHOUT_KERNEL else frozenset()


def kind_of(operator: str) -> str:
    """What an operator, or a method of a process group, does."""
    name = operator.strip("_")
    for start, kind in KINDS.items():
        if name.startswith(start):
            return kind
    return name


def is_asynchronous(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the caller wanted a work to wait for; that is the default, too."""
    if operator.async_at == UNKNOWN or "async_op" in kwargs:
        return bool(kwargs.get("async_op", True))
    return bool(args[operator.async_at]) if operator.async_at < len(args) else True


def wants_work(args: tuple[Any, ...]) -> bool:
    """The same of a method, whose options say it."""
    return next((bool(a.asyncOp) for a in args if hasattr(a, "asyncOp")), True)


def classes(base: Any) -> list[Any]:
    """A class and all that are made from it, in the order of their making."""
    return [base, *(one for sub in base.__subclasses__() for one in classes(sub))]


def is_collective(method: str) -> bool:
    """Whether a method of a process group is one."""
    return kind_of(method) in METHOD_KINDS


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of an argument, however nested."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, list | tuple):
        return []
    return [tensor for item in value for tensor in tensors_of(item)]


def of_dtensor() -> bool:
    """Whether what is issued now redistributes a DTensor."""
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if _DTENSOR in frame.f_code.co_filename:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def bytes_of(value: Any) -> int:
    """What the tensors of an argument hold."""
    with unasked():
        return sum(t.numel() * t.element_size() for t in tensors_of(value))


def sequence_number(group: Any) -> int:
    """A group's own number of its last collective; the same on every rank."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError as error:
        let_through(error)
        return UNKNOWN  # this backend does not count
