"""Brackets FSDP2's reduce-scatters and all-reduces."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from fsdpdoctor.recorder import flag_bits, kinds, lanes, phases
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.hook_context import HookContext
from fsdpdoctor.recorder.fsdp2.unit_state import Reduction, Unit, tensor_bytes
from fsdpdoctor.recorder.patching import ErrorBorder, unseen
from fsdpdoctor.recorder.tape.worlds import World
from fsdpdoctor.schema import NO_TIME, Kind, Lane


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


class ReductionHooks:
    """One recorded step's view of how FSDP2 reduces gradients."""

    def __init__(self, context: HookContext, world: World) -> None:
        self._rec = context.recording
        self._world = world
        self._guard: ErrorBorder = context.recording.guard
        self._units = context.units
        self._groups = context.groups
        self._swap = internals.ArgumentSwap(context.names.reduce_scatter_class)
        self._reducing: Reducing | None = None

    def reduce(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`foreach_reduce`, which issues the collectives."""
        guard = self._guard

        @unseen
        def reduce(*args: Any, **kwargs: Any) -> Any:
            entered = perf_counter_ns()
            given = guard.run(self._begins, args)
            result = None
            try:
                result = original(*(args if given is None else given), **kwargs)
                return result
            finally:
                guard.run(self.reduced, entered, result)

        return reduce

    @unseen
    def scatter_call(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """The reduce-scatter itself, on the stream it runs on."""
        return self._bracketed(kinds.REDUCE_SCATTER, inner, args, kwargs)

    @unseen
    def all_reduce_call(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """The all-reduce itself, on the stream it runs on."""
        return self._bracketed(kinds.ALL_REDUCE, inner, args, kwargs)

    @unseen
    def _bracketed(
        self, kind: Kind, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        issued = self._guard.run(self._issues, kind, args, kwargs)
        if issued is None:
            return inner(*args, **kwargs)  # no part of a reduce
        self._rec.own_collective = True
        try:
            result = inner(*args, **kwargs)
        finally:
            self._rec.own_collective = False
        self._guard.run(self.ended, issued)
        return result

    # What the live hooks ask

    def _begins(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        unit = self._units.of_params(args[0])
        self.begins(unit, internals.current_stream(unit.group()))
        return self._swap(
            args,
            lambda inner: internals.CollectiveProxy(
                inner,
                self.scatter_call,
                lambda: self._guard.run(self.allocates),
            ),
        )

    def _issues(self, kind: Kind, args: Any, kwargs: Any) -> Reduction | None:
        if self._reducing is None:
            return None
        pg = self._groups.index(internals.argument(args, kwargs, 2, ("group",)))
        scatter = kind == kinds.REDUCE_SCATTER
        tensor = internals.argument(args, kwargs, scatter, _INPUTS)
        return self.issues(kind, pg, tensor_bytes(tensor))

    # What each moment means

    def begins(self, unit: Unit, stream: Any = None) -> None:
        """`foreach_reduce` is called; it copies in on a stream."""
        self._reducing = Reducing(
            unit, self._rec.new_op(), stream, self._world.tick(stream)
        )

    def allocates(self) -> None:
        """It asks for memory."""
        # FSDP2 allocates the input, copies in on the compute stream, and
        # allocates the output: at the second call the copy is enqueued.
        reducing = self._reducing
        if reducing is None:
            return
        reducing.allocations += 1
        if reducing.allocations == 2:
            reducing.copied_in = self._world.tick(reducing.stream)

    def issues(self, kind: Kind, pg: int, size: int) -> Reduction | None:
        """A collective is issued; None where it is no part of a reduce."""
        reducing, rec, world = self._reducing, self._rec, self._world
        if reducing is None:
            return None
        scatter = kind == kinds.REDUCE_SCATTER
        if scatter and reducing.copied_in == NO_TIME:
            reducing.copied_in = world.tick(reducing.stream)
        reduction = Reduction(
            reducing.unit.index, kind, reducing.op, pg, rec.new_seq(pg), size
        )
        world.beat(kind, phases.BACKWARD, reduction.unit, reduction.seq, pg)
        reducing.last = reduction
        if scatter:
            reducing.scattered = reduction
        reduction.issued_ns = world.now_ns()
        of_device = rec.clock.of_device
        reduction.start = world.tick() if of_device else reduction.issued_ns
        return reduction

    def ended(self, issued: Reduction) -> None:
        """It has returned."""
        end, kind = self._world.tick(), issued.kind
        blocking = not self._rec.clock.of_device
        flags = flag_bits.BLOCKING if blocking else 0
        self._add(kind, _LANES[kind], flags, issued, end)
        if blocking:
            self._add(_WAITS[kind], lanes.COMPUTE, flags, issued, end)

    def _add(self, kind: Kind, lane: Lane, flags: int, of: Reduction, end: int) -> None:
        self._rec.spans.add(
            kind,
            lane,
            phases.BACKWARD,
            flags,
            self._rec.micro_batch,
            of.unit,
            of.start,
            end,
            op=of.op,
            by_unit=of.unit,
            issued=of.issued_ns,
            size=of.size,
            group=of.group,
            seq=of.seq,
        )

    def reduced(self, entered: int, result: Any) -> None:
        """`foreach_reduce` is left, with what it has given; None: by an error."""
        reducing, self._reducing = self._reducing, None
        if reducing is None:
            return
        rec, unit = self._rec, reducing.unit
        flags = 0 if result is not None else flag_bits.ABORTED
        if reducing.copied_in != NO_TIME:
            rec.spans.add(
                kinds.REDUCE_COPY_IN,
                lanes.COMPUTE,
                phases.BACKWARD,
                flags,
                rec.micro_batch,
                unit.index,
                reducing.start,
                reducing.copied_in,
                op=reducing.op,
            )
        rec.host_span(
            kinds.REDUCE,
            entered,
            phases.BACKWARD,
            unit.index,
            flags,
            reducing.op,
            end_ns=self._world.now_ns(),
        )
        if rec.clock.of_device and result is not None and reducing.last is not None:
            # (input, its event, stream, the event after it all, ...)
            self._units.remember(result[1], reducing.scattered or reducing.last)
            for event in (e for e in result[3:] if hasattr(e, "elapsed_time")):
                self._units.remember(event, reducing.last)


_INPUTS = ("input_tensor", "input", "tensor")
_WAITS = {
    kinds.REDUCE_SCATTER: kinds.REDUCE_SCATTER_WAIT,
    kinds.ALL_REDUCE: kinds.ALL_REDUCE_WAIT,
}
_LANES = {
    kinds.REDUCE_SCATTER: lanes.REDUCE_SCATTER,
    kinds.ALL_REDUCE: lanes.ALL_REDUCE,
}
