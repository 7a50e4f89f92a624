"""Brackets FSDP2's collectives, and the waits for them.

[Note: Bracketed waits] FSDP2 waits for an all-gather inside the call that also
copies it out. The wait is made here instead, between two marks; FSDP2's own,
right after, finds it done. Nothing else changes, so numerics cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from fsdpdoctor.recorder import fsdp2
from fsdpdoctor.recorder.groups import Groups
from fsdpdoctor.recorder.patching import Guard
from fsdpdoctor.recorder.recording import Recording
from fsdpdoctor.recorder.units import Op, Reduction, Unit, Units, tensor_bytes
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Flag, Kind, Lane, Phase


class Reducing:
    """A reduce that is being issued."""

    def __init__(self, unit: Unit, op: int, stream: Any, start: int) -> None:
        self.unit = unit
        self.op = op
        self.stream = stream  # compute
        self.start = start
        self.allocations = 0
        self.copied_in = NO_TIME
        self.last: Reduction | None = None
        self.scattered: Reduction | None = None


class CollectiveHooks:
    """One recorded step's view of FSDP2's collectives."""

    def __init__(
        self, recording: Recording, units: Units, groups: Groups, names: fsdp2.Names
    ) -> None:
        self._rec = recording
        self._guard: Guard = recording.guard
        self._units = units
        self._groups = groups
        self._names = names
        self._module = names.param_group_module
        self._gathering: Op | None = None
        self._copy_in: tuple[Any, int] = (None, NO_TIME)
        self._reducing: Reducing | None = None

    def wrappers(self) -> dict[str, Callable[..., Any]]:
        """The bracketed functions of `_fsdp_param_group`, by name."""
        made = {
            "foreach_all_gather": self._all_gather,
            "foreach_all_gather_copy_out": self._copy_out,
            "foreach_reduce": self._reduce,
        }
        return {
            name: make(getattr(self._module, name))
            for name, make in made.items()
            if hasattr(self._module, name)
        }

    def dist(self, real: Any) -> fsdp2.Dist:
        """`torch.distributed` for `_fsdp_collectives`."""
        calls = fsdp2.dist_calls(
            self._names, self._gather_call, self._scatter_call, self._all_reduce_call
        )
        return fsdp2.Dist(real, calls)

    # All-gather

    def _all_gather(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def all_gather(*args: Any, **kwargs: Any) -> Any:
            entered = perf_counter_ns()
            try:
                given = self._gather_begins(args)
            except Exception as error:
                self._guard.fail(error)
                return original(*args, **kwargs)
            self._guard.cost_ns += perf_counter_ns() - entered
            try:
                return original(*given, **kwargs)
            finally:
                self._safely(self._gather_issued)

        return all_gather

    def _gather_begins(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        unit = self._units.of_params(args[0])
        group = unit.group()
        pg = self._groups.index(args[1])
        entered = perf_counter_ns()
        op = self._units.new_op(unit, group, bool(args[2]), pg, entered)
        unit.pending = self._gathering = op
        copy_stream = next(fsdp2.streams_of(args), None)
        self._copy_in = (copy_stream, self._rec.mark(copy_stream))
        self._rec.beat(Kind.ALL_GATHER, op.phase, op.unit, op.seq, op.group)
        return fsdp2.swap_argument(
            args,
            self._names.all_gather_class,
            lambda inner: fsdp2.Collective(inner, self._gather_call),
        )

    def _gather_call(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        op, rec = self._gathering, self._rec
        if op is None:
            return inner(*args, **kwargs)
        stream, copy_start = self._copy_in
        copied = rec.mark(stream)
        op.issued_ns = perf_counter_ns()
        op.start = rec.mark() if rec.clock.of_device else op.issued_ns
        result = inner(*args, **kwargs)
        end = rec.mark()
        self._safely(
            self._gather_returned,
            op,
            copy_start,
            copied,
            end,
            inner,
            args,
            kwargs,
            result,
        )
        return result

    def _gather_returned(
        self,
        op: Op,
        copy_start: int,
        copied: int,
        end: int,
        inner: Any,
        args: Any,
        kwargs: Any,
        result: Any,
    ) -> None:
        op.size = tensor_bytes(_argument(args, kwargs, 0, _OUTPUTS))
        self._rec.spans.add(
            Kind.COPY_IN,
            Lane.COPY_IN,
            op.phase,
            op.flags & ~Flag.FIRST,
            op.micro_batch,
            op.unit,
            copy_start,
            copied,
            op=op.number,
            by_unit=op.by_unit,
        )
        if result is not None:
            op.work = result
            if not self._rec.clock.of_device:
                _note_end(result, op.ended_ns)
            return
        if self._rec.clock.of_device:
            op.end = end
            self._units.gathered(op)
            return
        op.end = _modelled_end(inner, op.start, end)
        op.flags |= Flag.BLOCKING
        self._units.gathered(op)
        self._units.gather_waited(op, op.start, end)

    def _gather_issued(self) -> None:
        self._gathering = None

    def _copy_out(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copy_out(*args: Any, **kwargs: Any) -> Any:
            try:
                unit = self._units.of_params(args[1])
                self._wait(unit, args[0])
            except Exception as error:
                self._guard.fail(error)
                return original(*args, **kwargs)
            start = self._rec.mark()
            result = original(*args, **kwargs)
            self._safely(self._copied_out, unit, start, self._rec.mark())
            return result

        return copy_out

    def _wait(self, unit: Unit, result: Any) -> None:
        """See [Note: Bracketed waits]."""
        op, rec = unit.pending, self._rec
        work = result.all_gather_work
        waits = hasattr(work, "wait")
        if not waits and not rec.clock.of_device:
            return
        if op is not None:
            rec.beat(Kind.ALL_GATHER_WAIT, op.phase, op.unit, op.seq, op.group)
        start = rec.mark()
        if result.all_gather_event is not None and rec.clock.of_device:
            group = unit.group()
            fsdp2.current_stream(group).wait_event(result.all_gather_event)
        if waits:
            work.wait()
        end = rec.mark()
        if op is None:
            return  # issued before recording started
        if op.end == NO_TIME:
            self._units.end_of(op, start, end)
        self._units.gather_waited(op, start, end)

    def _copied_out(self, unit: Unit, start: int, end: int) -> None:
        op, rec = unit.pending, self._rec
        rec.spans.add(
            Kind.COPY_OUT,
            Lane.COMPUTE,
            op.phase if op else Phase.OTHER,
            op.flags & ~Flag.FIRST if op else 0,
            op.micro_batch if op else rec.micro_batch,
            unit.index,
            start,
            end,
            op=op.number if op else UNKNOWN,
        )
        unit.copied_out = end

    # Reduce-scatter and all-reduce

    def _reduce(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reduce(*args: Any, **kwargs: Any) -> Any:
            entered = perf_counter_ns()
            try:
                given = self._reduce_begins(args)
            except Exception as error:
                self._guard.fail(error)
                return original(*args, **kwargs)
            self._guard.cost_ns += perf_counter_ns() - entered
            result = None
            try:
                result = original(*given, **kwargs)
                return result
            finally:
                self._safely(self._reduced, entered, result)

        return reduce

    def _reduce_begins(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        unit = self._units.of_params(args[0])
        group = unit.group()
        stream = fsdp2.current_stream(group)
        self._reducing = Reducing(
            unit, self._rec.new_op(), stream, self._rec.mark(stream)
        )
        return fsdp2.swap_argument(
            args,
            self._names.reduce_scatter_class,
            lambda inner: fsdp2.Collective(inner, self._scatter_call, self._allocates),
        )

    def _allocates(self) -> None:
        # FSDP2 allocates the input, copies in on the compute stream, and
        # allocates the output: at the second call the copy is enqueued.
        reducing = self._reducing
        if reducing is None:
            return
        reducing.allocations += 1
        if reducing.allocations == 2:
            reducing.copied_in = self._rec.mark(reducing.stream)

    def _scatter_call(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        reducing, rec = self._reducing, self._rec
        if reducing is None:
            return inner(*args, **kwargs)
        if reducing.copied_in == NO_TIME:
            reducing.copied_in = rec.mark(reducing.stream)
        reduction = self._collective_begins(reducing, Kind.REDUCE_SCATTER, args, kwargs)
        issued = perf_counter_ns()
        start = rec.mark() if rec.clock.of_device else issued
        result = inner(*args, **kwargs)
        end = rec.mark()
        self._safely(self._reduction_ended, reduction, issued, start, end, inner)
        return result

    def _all_reduce_call(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        reducing, rec = self._reducing, self._rec
        if reducing is None:
            return inner(*args, **kwargs)
        reduction = self._collective_begins(reducing, Kind.ALL_REDUCE, args, kwargs)
        issued = perf_counter_ns()
        start = rec.mark() if rec.clock.of_device else issued
        result = inner(*args, **kwargs)
        end = rec.mark()
        self._safely(self._reduction_ended, reduction, issued, start, end, inner)
        return result

    def _collective_begins(
        self, reducing: Reducing, kind: Kind, args: Any, kwargs: Any
    ) -> Reduction | None:
        """What is issued now; None where that could not be told."""
        rec = self._rec
        try:
            pg = self._groups.index(_argument(args, kwargs, 2, ("group",)))
            scatter = kind == Kind.REDUCE_SCATTER
            tensor = _argument(args, kwargs, scatter, _INPUTS)
            reduction = Reduction(
                unit=reducing.unit.index,
                kind=kind,
                op=reducing.op,
                group=pg,
                seq=rec.new_seq(pg),
                size=tensor_bytes(tensor),
            )
            rec.beat(kind, Phase.BACKWARD, reduction.unit, reduction.seq, pg)
        except Exception as error:
            self._guard.fail(error)
            return None
        reducing.last = reduction
        if scatter:
            reducing.scattered = reduction
        return reduction

    def _reduction_ended(
        self, of: Reduction | None, issued: int, start: int, end: int, inner: Any
    ) -> None:
        if of is None:
            return
        rec = self._rec
        blocking = not rec.clock.of_device
        done = _modelled_end(inner, start, end) if blocking else end
        flags = int(Flag.BLOCKING) if blocking else 0
        scatter = of.kind == Kind.REDUCE_SCATTER
        lane = Lane.REDUCE_SCATTER if scatter else Lane.ALL_REDUCE
        rec.spans.add(
            of.kind,
            lane,
            Phase.BACKWARD,
            flags,
            rec.micro_batch,
            of.unit,
            start,
            done,
            op=of.op,
            by_unit=of.unit,
            issued=issued,
            size=of.size,
            group=of.group,
            seq=of.seq,
        )
        if not blocking:
            return
        rec.spans.add(
            Kind.REDUCE_SCATTER_WAIT if scatter else Kind.ALL_REDUCE_WAIT,
            Lane.COMPUTE,
            Phase.BACKWARD,
            flags,
            rec.micro_batch,
            of.unit,
            start,
            end,
            op=of.op,
            by_unit=of.unit,
            issued=issued,
            size=of.size,
            group=of.group,
            seq=of.seq,
        )

    def _reduced(self, entered: int, result: Any) -> None:
        reducing, self._reducing = self._reducing, None
        if reducing is None:
            return
        rec, unit = self._rec, reducing.unit
        flags = 0 if result is not None else int(Flag.ABORTED)
        if reducing.copied_in != NO_TIME:
            rec.spans.add(
                Kind.REDUCE_COPY_IN,
                Lane.COMPUTE,
                Phase.BACKWARD,
                flags,
                rec.micro_batch,
                unit.index,
                reducing.start,
                reducing.copied_in,
                op=reducing.op,
            )
        rec.host_span(
            Kind.REDUCE, entered, Phase.BACKWARD, unit.index, flags, reducing.op
        )
        if rec.clock.of_device and result is not None and reducing.last is not None:
            # (input, its event, stream, the event after it all, ...)
            self._units.remember(result[1], reducing.scattered or reducing.last)
            for event in (e for e in result[3:] if hasattr(e, "elapsed_time")):
                self._units.remember(event, reducing.last)

    def _safely(self, call: Callable[..., None], *args: Any) -> None:
        """Run our own code at the end of theirs; see [Note: The border]."""
        entered = perf_counter_ns()
        try:
            call(*args)
        except Exception as error:
            self._guard.fail(error)
        self._guard.cost_ns += perf_counter_ns() - entered


_OUTPUTS = ("output_tensor", "output")
_INPUTS = ("input_tensor", "input", "tensor")


def _argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], at: int, names: tuple[str, ...]
) -> Any:
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return args[at]


def _modelled_end(inner: Any, start: int, end: int) -> int:
    """When a modelled wire says that a blocking collective ended."""
    modelled = getattr(inner, "fsdpdoctor_end_ns", None)
    if modelled is not None and start <= modelled <= end:
        return int(modelled)
    return end


def _note_end(work: Any, ended_ns: list[int]) -> None:
    """Have the backend's thread note when a collective on the host is done."""
    if getattr(work, "fsdpdoctor_end_ns", None) is not None:
        return
    try:
        future = work.get_future()
    except (RuntimeError, NotImplementedError, AttributeError):
        return  # this backend has none; the end will be said to be estimated
    future.add_done_callback(lambda _: ended_ns.append(perf_counter_ns()))
