"""Collectives that FSDP2 did not issue, whoever did.

[Note: One place for every collective] `torch.distributed`'s functions, the methods of
`ProcessGroup`, functional collectives, DTensor, optimizers, checkpoints and compiled
code all end in the operators of `c10d`. Names in Python are imported early, and half
of those callers are C++; a kernel under the dispatch key `BackendSelect`, which every
call passes and for which `c10d` has none, sees each of them once. It hands the call
on, with the arguments, the result and the work as they are. It is there in recorded
steps only.

A group whose class overrides the methods in Python never comes to the operators when
it is called from Python: there the class's own methods are wrapped.

Somebody waits for a collective through `Work.wait`, or, of a functional one, through
the operator `wait_tensor`; both are bracketed and joined to their call, so what is
measured is how long the caller (the host, or the current stream) stood still.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from functools import cache
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch

from fsdpdoctor.recorder.fsdp2 import flag_bits, internals
from fsdpdoctor.recorder.fsdp2.process_groups import Groups
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.host.call_stack import CallSite, CallStack, frame_of
from fsdpdoctor.recorder.patching import Patches, unseen
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import UNKNOWN, Kind, Lane, Phase, Within

_KINDS = {
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

_METHOD_KINDS = frozenset(
    {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"),
        *("broadcast", "gather", "scatter", "reduce", "send", "recv"),
    }
)

_KEY = "BackendSelect"

_torch: Any = torch  # parts of it have no types
_C10D: Any = getattr(torch._C, "_distributed_c10d", None)  # None: built without it

MERGED_NS, MERGED_LINE_NS = 50_000, 10_000_000
"""On the host, so little between a call and the wait for it is torch's own time, and
so little where both come from one line (`full_tensor()` gathers, and waits); where it
is longer, the caller has done something in between."""


class _Operator(NamedTuple):
    """One operator of `c10d`."""

    name: str
    call: Any
    group_at: int
    async_at: int  # UNKNOWN: it has no such argument
    kind: str


class _Call:
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
        self.phase = Phase.OTHER
        self.within = Within.SCRIPT
        self.asynchronous = True
        self.issued_ns = self.start = self.ended = 0
        self.waits: list[tuple[int, int]] = []
        self.work: Any = None  # kept until it is waited for: its identity is the key
        self.outputs: list[int] = []


class CollectiveCalls:
    """One recorded step's view of every collective outside FSDP2."""

    def __init__(
        self,
        recording: Recording,
        units: Units,
        groups: Groups,
        within: Callable[[], Within],
    ) -> None:
        self._rec = recording
        self._units = units
        self._groups = groups
        self._within = within
        self._stack = CallStack()
        self._patches = Patches()
        self._libraries: list[Any] = []
        self._inside: list[None] = []  # calls that are in a kernel now, of any thread
        self._training = 0
        self._of_work: dict[int, _Call] = {}
        self._of_output: dict[int, _Call] = {}
        self._last: _Call | None = None  # sync, and not waited for until now
        self._kind_names: dict[str, int] = {}

    def turn(self, on: bool) -> None:
        """See collectives, or see none."""
        self._patches.undo()
        if not self._inside:  # a kernel must not go while a call is in it
            for library in self._libraries:
                library._destroy()
            self._libraries = []
        self._of_work.clear()
        self._of_output.clear()
        self._last = None
        if on and supported():
            self._see()

    def boundary(self) -> None:
        """A step ends: what nobody will wait for belongs to it."""
        self._flush()
        before = self._rec.next_op - _MOST_OPEN
        for call in [*self._of_work.values()]:
            if call.op < before:
                self._add(call)

    # Putting the kernels in place

    def _see(self) -> None:
        self._training = threading.get_ident()
        self._see_python_classes()
        if self._libraries:
            return  # they could not be taken out
        library = self._library("c10d")
        for operator in _operators():
            self._kind_names[operator.kind] = self._rec.names.id(operator.kind)
            kernel = self._kernel(operator)
            library.impl(operator.name, kernel, _KEY, with_keyset=True)
        wait_tensor = getattr(torch.ops._c10d_functional, "wait_tensor", None)
        if wait_tensor is not None:
            kernel = self._tensor_wait(wait_tensor.default)
            library = self._library("_c10d_functional")
            library.impl("wait_tensor", kernel, _KEY, with_keyset=True)

    def _see_python_classes(self) -> None:
        for work in _classes(_C10D.Work):
            if "wait" in vars(work):
                self._patches.put(work, "wait", self._work_wait(work.wait))
        for group in _classes(_C10D.ProcessGroup)[1:]:
            for name in [name for name in vars(group) if _is_collective(name)]:
                kind = _kind(name)
                self._kind_names[kind] = self._rec.names.id(kind)
                method = self._method(getattr(group, name), kind)
                self._patches.put(group, name, method)

    def _library(self, namespace: str) -> Any:
        library = _torch.library.Library(namespace, "IMPL")
        self._libraries.append(library)
        return library

    def _kernel(self, operator: _Operator) -> Callable[..., Any]:
        rec, guard, inside = self._rec, self._rec.guard, self._inside
        call_on, below = operator.call.redispatch, _below()

        @unseen
        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if rec.own_collective or not rec.on:
                return call_on(keyset & below, *args, **kwargs)
            inside.append(None)
            try:
                call = guard.run(self._begins, operator, args, kwargs)
                try:
                    result = call_on(keyset & below, *args, **kwargs)
                except BaseException:
                    if call is not None:
                        guard.run(self._failed, call)
                    raise
                if call is not None:
                    guard.run(self._returned, call, result)
                return result
            finally:
                inside.pop()

        return kernel

    def _method(self, original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """A Python class's own method, and not what it may call in turn."""
        rec, guard = self._rec, self._rec.guard

        @unseen
        @functools.wraps(original)
        def method(group: Any, *args: Any, **kwargs: Any) -> Any:
            if rec.own_collective or not rec.on:
                return original(group, *args, **kwargs)
            call = guard.run(self._issues, kind, group, args, _wants_work(args))
            rec.own_collective = True
            try:
                result = original(group, *args, **kwargs)
            except BaseException:
                if call is not None:
                    guard.run(self._failed, call)
                raise
            finally:
                rec.own_collective = False
            if call is not None:
                guard.run(self._returned, call, result)
            return result

        return method

    def _work_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        rec, guard = self._rec, self._rec.guard

        @unseen
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call = self._of_work.get(id(work))
            if call is None or not rec.on:
                return original(work, *args, **kwargs)
            start = guard.run(rec.mark)
            try:
                return original(work, *args, **kwargs)
            finally:
                guard.run(self._waited, call, start)

        wait._torchdynamo_disable = True  # type: ignore[attr-defined]
        return wait

    def _tensor_wait(self, operator: Any) -> Callable[..., Any]:
        rec, guard, below = self._rec, self._rec.guard, _below()
        call_on = operator.redispatch

        @unseen
        def wait_tensor(keyset: Any, tensor: Any) -> Any:
            call = None
            if rec.on and self._of_output:
                call = guard.run(self._call_of, tensor)
            if call is None:
                return call_on(keyset & below, tensor)
            start = guard.run(rec.mark)
            try:
                return call_on(keyset & below, tensor)
            finally:
                guard.run(self._waited, call, start)

        return wait_tensor

    # What a call says

    def _begins(
        self, operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Call:
        group = _C10D.ProcessGroup.unbox(args[operator.group_at])
        asynchronous = _asynchronous(operator, args, kwargs)
        return self._issues(
            operator.kind, group, args[: operator.group_at], asynchronous
        )

    def _issues(
        self, kind: str, group: Any, tensors: tuple[Any, ...], asynchronous: bool
    ) -> _Call:
        rec = self._rec
        thread = threading.get_ident()
        backward = internals.in_backward()
        mine = thread == self._training or backward
        if mine:
            self._flush()
        site = self._stack.site(sys._getframe())
        if site.place == "?" and backward and thread != self._training:
            site = self._stack.site(frame_of(self._training))
        call = _Call(kind, site)
        call.group = self._groups.index(group)
        call.seq = _sequence_number(group)
        call.size = max(map(_bytes, tensors), default=0)
        call.outputs = [tensor.data_ptr() for tensor in _tensors(tensors[:1])]
        call.asynchronous = asynchronous
        call.op = rec.new_op()
        call.micro_batch = rec.micro_batch
        self._place(call, backward, mine)
        if not mine:
            call.flags = flag_bits.BACKGROUND
        rec.beat(Kind.COLLECTIVE, call.phase, call.unit, call.seq, call.group)
        call.issued_ns = perf_counter_ns()
        call.start = rec.mark() if rec.clock.of_device else call.issued_ns
        return call

    def _place(self, call: _Call, backward: bool, mine: bool) -> None:
        """What the call ran in."""
        forward = self._rec.in_forward and mine
        call.phase = (
            Phase.BACKWARD if backward else Phase.FORWARD if forward else Phase.OTHER
        )
        within = self._within() if mine else Within.SCRIPT
        if within == Within.SCRIPT and (forward or backward):
            unit = self._units.running(backward=backward)
            if unit is not None:
                call.unit, within = unit.index, Within.UNIT
        elif within == Within.SCRIPT:
            within = _named_within((*call.site.functions, call.site.via))
        if within in (Within.OPTIMIZER, Within.CLIP) and not backward:
            call.phase = Phase.OPTIMIZER
        call.within = within

    def _returned(self, call: _Call, result: Any) -> None:
        call.ended = self._rec.mark()
        if call.flags & flag_bits.BACKGROUND:
            self._add(call)
            return
        work = result[-1] if isinstance(result, tuple | list) and result else result
        if isinstance(work, torch.ScriptObject):
            work = _C10D.Work.unbox(work)
        if isinstance(work, _C10D.Work):
            call.work = work
        if call.work is None:
            self._add(call)
            return
        self._of_work[id(call.work)] = call
        self._of_output.update(dict.fromkeys(call.outputs, call))
        if not call.asynchronous:
            self._last = call

    def _failed(self, call: _Call) -> None:
        call.ended = self._rec.mark()
        call.flags |= flag_bits.ABORTED
        self._add(call)

    def _call_of(self, tensor: Any) -> _Call | None:
        return self._of_output.get(tensor.data_ptr())

    def _waited(self, call: _Call, start: int | None) -> None:
        if call.done:
            return  # `wait_tensor` calls the wait of a work that is Python's
        if start is not None:
            end = self._rec.mark()
            if not self._rec.clock.of_device and self._at_once(call, start):
                start = call.ended
            call.waits.append((start, end))
        self._add(call)

    def _at_once(self, call: _Call, start: int) -> bool:
        """Whether nothing but torch's own code ran between a call and its wait."""
        between = start - call.ended
        if between <= MERGED_NS:
            return True
        if between > MERGED_LINE_NS:
            return False
        return self._stack.site(sys._getframe(), 0).place == call.site.place

    def _flush(self) -> None:
        """The last call was made on the caller's own stream: nobody waits for it."""
        call, self._last = self._last, None
        if call is not None and id(call.work) in self._of_work:
            self._add(call)

    # Rows

    def _add(self, call: _Call) -> None:
        """A call is over: its spans, and who made it."""
        call.done = True
        if call.work is not None:
            self._of_work.pop(id(call.work), None)
            call.work = None
        for pointer in call.outputs:
            if self._of_output.get(pointer) is call:
                del self._of_output[pointer]
        if self._last is call:
            self._last = None
        end = call.waits[-1][1] if call.waits else call.ended
        still = self._stood_still(call)
        if call.asynchronous and (len(still) > 1 or not call.waits):
            call.flags |= flag_bits.END_ESTIMATED | flag_bits.ASYNC_OP
        self._span(call, Kind.COLLECTIVE, Lane.OTHER_COMM, call.start, end)
        if not call.flags & flag_bits.BACKGROUND:
            for start, stop in still:
                self._span(call, Kind.COLLECTIVE_WAIT, Lane.COMPUTE, start, stop)
        self._rec.call_sites.add(call.op, call.within, call.site.place, call.site.via)

    def _stood_still(self, call: _Call) -> list[tuple[int, int]]:
        """The call itself and the waits for it."""
        merged = [(call.start, call.ended)]
        for start, stop in call.waits:
            if start == merged[-1][1]:
                merged[-1] = merged[-1][0], stop
            else:
                merged.append((start, stop))
        return merged

    def _span(self, call: _Call, kind: Kind, lane: Lane, start: int, end: int) -> None:
        self._rec.spans.add(
            kind,
            lane,
            call.phase,
            call.flags,
            call.micro_batch,
            call.unit,
            start,
            end,
            op=call.op,
            by_unit=call.unit,
            issued=call.issued_ns,
            size=call.size,
            group=call.group,
            seq=call.seq,
            name=self._kind_names[call.kind],
        )


_MOST_OPEN = 4096
"""Operations later, a work that nobody waited for is given up: a send, for example."""

_CLIPPING = ("clip", "grad_norm", "total_norm")
_LOADING = ("loader", "next_batch", "get_batch", "__next__", "collate", "fetch")
_SAVING = ("save", "checkpoint", "state_dict", "load_")


def _named_within(functions: tuple[str, ...]) -> Within:
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
        and hasattr(_C10D.ProcessGroup, "unbox")
        and hasattr(_C10D.Work, "unbox")
    )


def _below() -> Any:
    return torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))


@cache
def _operators() -> list[_Operator]:
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
            _Operator(
                name=name,
                call=call,
                group_at=arguments.index("process_group"),
                async_at=arguments.index("async_op")
                if "async_op" in arguments
                else UNKNOWN,
                kind=_kind(name),
            )
        )
    return found


def _kind(operator: str) -> str:
    name = operator.strip("_")
    for start, kind in _KINDS.items():
        if name.startswith(start):
            return kind
    return name


def _asynchronous(
    operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the caller wanted a work to wait for; that is the default, too."""
    if operator.async_at == UNKNOWN or "async_op" in kwargs:
        return bool(kwargs.get("async_op", True))
    return bool(args[operator.async_at]) if operator.async_at < len(args) else True


def _wants_work(args: tuple[Any, ...]) -> bool:
    """The same of a method, whose options say it."""
    return next((bool(a.asyncOp) for a in args if hasattr(a, "asyncOp")), True)


def _classes(base: Any) -> list[Any]:
    """A class and all that are made from it, in the order of their making."""
    return [base, *(one for sub in base.__subclasses__() for one in _classes(sub))]


def _is_collective(method: str) -> bool:
    return _kind(method) in _METHOD_KINDS


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, list | tuple):
        return []
    return [tensor for item in value for tensor in _tensors(item)]


def _bytes(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in _tensors(value))


def _sequence_number(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return UNKNOWN  # this backend does not count
