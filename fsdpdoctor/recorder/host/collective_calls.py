"""Collectives that FSDP2 did not issue, whoever did.

[Note: One place for every collective] `torch.distributed`'s functions, the methods of
`ProcessGroup`, functional collectives, DTensor, optimizers, checkpoints and compiled
code all end in the operators of `c10d`. Names in Python are imported early, and half
of those callers are C++; a kernel under the dispatch key `BackendSelect`, which every
call passes and for which `c10d` has none, sees each of them once. It hands the call
on, with the arguments, the result and the work as they are. It is there in recorded
steps only.

A group whose class overrides the methods in Python never comes to the operators when
it is called from Python: there the class's own methods are wrapped. So are some of
`ProcessGroup` itself, see [Note: The shortest way of FSDP2's own].

Somebody waits for a collective through `Work.wait`, or, of a functional one, through
the operator `wait_tensor`; both are bracketed and joined to their call, so what is
measured is how long the caller (the host, or the current stream) stood still.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch

from fsdpdoctor.recorder import flag_bits, kinds, lanes, phases
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.hook_context import HookContext
from fsdpdoctor.recorder.host.call_stack import CallStack, WaitingThread
from fsdpdoctor.recorder.host.collective_operators import (
    C10D,
    FUNCTIONAL,
    KEY,
    THEIR_METHODS,
    TORCH,
    Call,
    Operator,
    below_key,
    bytes_of,
    classes,
    is_asynchronous,
    is_collective,
    kind_of,
    named_within,
    of_dtensor,
    operators,
    sequence_number,
    supported,
    tensors_of,
    wants_work,
    without_kernel,
)
from fsdpdoctor.recorder.host.thread_stacks import tell_this_thread
from fsdpdoctor.recorder.patching import Function, Patches, hide_frames, unseen
from fsdpdoctor.schema import COUNTER_GATHERED, Kind, Lane, Within

_MOST_OPEN = 4096
"""Operations later, a work that nobody waited for is given up: a send, for example."""

MERGED_NS, MERGED_LINE_NS = 50_000, 10_000_000
"""On the host, so little between a call and the wait for it is torch's own time, and
so little where both come from one line (`full_tensor()` gathers, and waits); where it
is longer, the caller has done something in between."""


class CollectiveCalls:
    """One recorded step's view of every collective outside FSDP2."""

    def __init__(
        self,
        context: HookContext,
        within: Callable[[], Within],
        unless_own: Callable[[Function, Function], Function],
    ) -> None:
        self._rec = context.recording
        self._units = context.units
        self._groups = context.groups
        self._within = within
        self._unless_own = unless_own
        self._stack = CallStack()
        self._waiting = WaitingThread(self._stack)
        self._patches = Patches()
        self._libraries: list[Any] = []
        self._inside: list[None] = []  # calls that are in a kernel now, of any thread
        self._training = 0
        self._of_work: dict[int, Call] = {}
        self._of_output: dict[int, Call] = {}
        self._last: Call | None = None  # sync, and not waited for until now
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
        self._rec.gathered.clear()
        self._last = None
        self._waiting.close()
        if on and supported():
            self._see()

    def boundary(self) -> None:
        """A step ends: what nobody will wait for belongs to it."""
        self._flush()
        before = self._rec.next_op - _MOST_OPEN
        for call in [*self._of_work.values()]:
            if call.op < before:
                self._add(call)
        for where, size in self._rec.gathered.by_place().items():
            name = self._rec.names.id(f"{COUNTER_GATHERED}: {where}")
            self._rec.counters.add(name, perf_counter_ns(), size)

    # Putting the kernels in place

    def _see(self) -> None:
        self._training = threading.get_ident()
        tell_this_thread()
        self._see_classes(THEIR_METHODS if without_kernel() else ())
        if self._libraries:
            return  # they could not be taken out
        library = self._library("c10d")
        for operator in operators():
            self._name(operator.kind)
            if operator.name in without_kernel():
                continue
            begins = functools.partial(self._begins, operator)
            kernel = self._kernel(operator.call, begins)
            library.impl(operator.name, kernel, KEY, with_keyset=True)
        library = self._library("_c10d_functional")
        functional = torch.ops._c10d_functional
        wait_tensor = getattr(functional, "wait_tensor", None)
        if wait_tensor is not None:
            kernel = self._tensor_wait(wait_tensor.default)
            library.impl("wait_tensor", kernel, KEY, with_keyset=True)
        gather = getattr(functional, FUNCTIONAL, None)
        if gather is not None:
            kernel = self._kernel(gather.default, self._functional_begins)
            library.impl(FUNCTIONAL, kernel, KEY, with_keyset=True)

    def _see_classes(self, of_base: tuple[str, ...]) -> None:
        """Methods of Python's classes, and some of `ProcessGroup` itself."""
        for work in classes(C10D.Work):
            if "wait" in vars(work):
                self._patches.put(work, "wait", self._work_wait(work.wait))
        for group in classes(C10D.ProcessGroup)[1:]:
            for name in [name for name in vars(group) if is_collective(name)]:
                self._see_method(group, name, hides=True)
        for name in of_base:
            if name in vars(C10D.ProcessGroup):
                self._see_method(C10D.ProcessGroup, name, hides=False)

    def _see_method(self, group: Any, name: str, *, hides: bool) -> None:
        kind = kind_of(name)
        self._name(kind)
        original = getattr(group, name)
        method = self._method(original, kind, hides=hides)
        if not hides:
            method = self._unless_own(original, method)
        self._patches.put(group, name, method)

    def _name(self, kind: str) -> None:
        self._kind_names[kind] = self._rec.names.id(kind)

    def _library(self, namespace: str) -> Any:
        library = TORCH.library.Library(namespace, "IMPL")
        self._libraries.append(library)
        return library

    def _kernel(self, operator: Any, begins: Callable[..., Call]) -> Callable[..., Any]:
        rec, guard, inside = self._rec, self._rec.guard, self._inside
        call_on, below = operator.redispatch, below_key()

        @unseen
        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if rec.own_collective or not rec.on:
                return call_on(keyset & below, *args, **kwargs)
            inside.append(None)
            try:
                call = guard.run(begins, args, kwargs)
                try:
                    result = call_on(keyset & below, *args, **kwargs)
                except BaseException as error:
                    if call is not None:
                        guard.run(self._failed, call)
                    hide_frames(error)
                    raise
                if call is not None:
                    guard.run(self._returned, call, result)
                return result
            finally:
                inside.pop()

        return kernel

    def _method(
        self, original: Callable[..., Any], kind: str, *, hides: bool
    ) -> Callable[..., Any]:
        """A class's method; one of Python's `hides` what it may call in turn."""
        rec, guard = self._rec, self._rec.guard

        @unseen
        @functools.wraps(original)
        def method(group: Any, *args: Any, **kwargs: Any) -> Any:
            if rec.own_collective or not rec.on:
                return original(group, *args, **kwargs)
            given = (*args, *kwargs.values())
            call = guard.run(self._issues, kind, group, given, wants_work(given))
            if hides:
                rec.own_collective = True
            try:
                result = original(group, *args, **kwargs)
            except BaseException as error:
                if call is not None:
                    guard.run(self._failed, call)
                hide_frames(error)
                raise
            finally:
                if hides:
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
            start = guard.run(rec.tick)
            try:
                return original(work, *args, **kwargs)
            except BaseException as error:
                hide_frames(error)
                raise
            finally:
                guard.run(self._waited, call, start)

        wait._torchdynamo_disable = True  # type: ignore[attr-defined]
        return wait

    def _tensor_wait(self, operator: Any) -> Callable[..., Any]:
        rec, guard, below = self._rec, self._rec.guard, below_key()
        call_on = operator.redispatch

        @unseen
        def wait_tensor(keyset: Any, tensor: Any) -> Any:
            call = None
            if rec.on and self._of_output:
                call = guard.run(self._call_of, tensor)
            if call is None:
                return call_on(keyset & below, tensor)
            start = guard.run(rec.tick)
            try:
                return call_on(keyset & below, tensor)
            except BaseException as error:
                hide_frames(error)
                raise
            finally:
                guard.run(self._waited, call, start)

        return wait_tensor

    # What a call says

    def _begins(
        self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        group = C10D.ProcessGroup.unbox(args[operator.group_at])
        asynchronous = is_asynchronous(operator, args, kwargs)
        return self._issues(
            operator.kind, group, args[: operator.group_at], asynchronous
        )

    def _functional_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Of `FUNCTIONAL`: what is gathered, its size, the group, and where to."""
        group = C10D._resolve_process_group(args[2])
        return self._issues("all_gather", group, (kwargs["out"], args[0]), True)

    def _issues(
        self, kind: str, group: Any, tensors: tuple[Any, ...], asynchronous: bool
    ) -> Call:
        rec = self._rec
        thread = threading.get_ident()
        backward = internals.in_backward()
        mine = thread == self._training or backward
        if mine:
            rec.catch_up()
            self._flush()
        site = self._stack.site(sys._getframe())
        if site.place == "?" and backward and thread != self._training:
            site = self._waiting.site(self._training, (rec.step, rec.micro_batch))
        call = Call(kind, site)
        call.group = self._groups.index(group)
        call.seq = sequence_number(group)
        call.size = max(map(bytes_of, tensors), default=0)
        call.outputs = [tensor.data_ptr() for tensor in tensors_of(tensors[:1])]
        call.asynchronous = asynchronous
        call.op = rec.new_op()
        call.micro_batch = rec.micro_batch
        self._place(call, backward, mine)
        if call.within != Within.UNIT and kind == "all_gather" and of_dtensor():
            rec.gathered.add(tensors_of(tensors[:1]), f"{site.place} ({site.via})")
        if not mine:
            call.flags = flag_bits.BACKGROUND
        size = max(call.size, 0)
        rec.beat(kinds.COLLECTIVE, call.phase, call.unit, call.seq, call.group, size)
        call.issued_ns = perf_counter_ns()
        call.start = rec.tick() if rec.clock.of_device else call.issued_ns
        return call

    def _place(self, call: Call, backward: bool, mine: bool) -> None:
        """What the call ran in."""
        forward = self._rec.in_forward and mine
        call.phase = (
            phases.BACKWARD if backward else phases.FORWARD if forward else phases.OTHER
        )
        within = self._within() if mine else Within.SCRIPT
        if within == Within.SCRIPT and (forward or backward):
            unit = self._units.running(backward=backward)
            if unit is not None:
                call.unit, within = unit.index, Within.UNIT
        elif within == Within.SCRIPT:
            within = named_within((*call.site.functions, call.site.via))
        if within in (Within.OPTIMIZER, Within.CLIP) and not backward:
            call.phase = phases.OPTIMIZER
        call.within = within

    def _returned(self, call: Call, result: Any) -> None:
        call.ended = self._rec.tick()
        if call.flags & flag_bits.BACKGROUND:
            self._add(call)
            return
        work = result[-1] if isinstance(result, tuple | list) and result else result
        if isinstance(work, torch.ScriptObject):
            work = C10D.Work.unbox(work)
        if isinstance(work, C10D.Work):
            call.work = work
        elif isinstance(result, torch.Tensor):
            call.work = object()  # of a functional one: it is known by its output
        if call.work is None:
            self._add(call)
            return
        self._of_work[id(call.work)] = call
        self._of_output.update(dict.fromkeys(call.outputs, call))
        if not call.asynchronous:
            self._last = call

    def _failed(self, call: Call) -> None:
        call.ended = self._rec.tick()
        call.flags |= flag_bits.ABORTED
        self._add(call)

    def _call_of(self, tensor: Any) -> Call | None:
        return self._of_output.get(tensor.data_ptr())

    def _waited(self, call: Call, start: int | None) -> None:
        if call.done:
            return  # `wait_tensor` calls the wait of a work that is Python's
        if start is not None:
            end = self._rec.tick()
            if not self._rec.clock.of_device and self._at_once(call, start):
                start = call.ended
            call.waits.append((start, end))
        self._add(call)

    def _at_once(self, call: Call, start: int) -> bool:
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

    def _add(self, call: Call) -> None:
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
        self._span(call, kinds.COLLECTIVE, lanes.OTHER_COMM, call.start, end)
        if not call.flags & flag_bits.BACKGROUND:
            for start, stop in still:
                self._span(call, kinds.COLLECTIVE_WAIT, lanes.COMPUTE, start, stop)
        self._rec.call_sites.add(call.op, call.within, call.site.place, call.site.via)

    def _stood_still(self, call: Call) -> list[tuple[int, int]]:
        """The call itself and the waits for it."""
        merged = [(call.start, call.ended)]
        for start, stop in call.waits:
            if start == merged[-1][1]:
                merged[-1] = merged[-1][0], stop
            else:
                merged.append((start, stop))
        return merged

    def _span(self, call: Call, kind: Kind, lane: Lane, start: int, end: int) -> None:
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
