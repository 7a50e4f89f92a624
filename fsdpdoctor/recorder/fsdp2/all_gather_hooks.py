"""Brackets FSDP2's all-gathers, and the waits for them.

[Note: Bracketed waits] FSDP2 waits for an all-gather inside the call that also
copies it out. The wait is made here instead, between two ticks; FSDP2's own,
right after, finds it done. Nothing else changes, so numerics cannot. What the
wait raises (a peer has died) is raised as FSDP2's own wait would raise it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from fsdpdoctor.recorder import flag_bits, kinds, lanes, phases
from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.hook_context import HookContext
from fsdpdoctor.recorder.fsdp2.unit_state import Op, Unit, tensor_bytes
from fsdpdoctor.recorder.patching import ErrorBorder, unseen
from fsdpdoctor.recorder.tape.worlds import World
from fsdpdoctor.schema import NO_TIME, UNKNOWN


class GatherHooks:
    """One recorded step's view of FSDP2's all-gathers."""

    def __init__(self, context: HookContext, world: World) -> None:
        self._rec = context.recording
        self._world = world
        self._guard: ErrorBorder = context.recording.guard
        self._units = context.units
        self._groups = context.groups
        self._swap = internals.ArgumentSwap(context.names.all_gather_class)
        self._gathering: Op | None = None
        self._thread = 0  # that gathers
        self._copy_in: tuple[Any, int] = (None, NO_TIME)

    def all_gather(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`foreach_all_gather`, which issues the collective."""
        guard = self._guard

        @unseen
        def all_gather(*args: Any, **kwargs: Any) -> Any:
            given = guard.run(self._begins, args)
            try:
                return original(*(args if given is None else given), **kwargs)
            finally:
                self.ended()

        return all_gather

    def copy_out(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`foreach_all_gather_copy_out`, which waits for it."""
        guard = self._guard

        @unseen
        def copy_out(*args: Any, **kwargs: Any) -> Any:
            start = guard.run(self._wait, args)
            result = original(*args, **kwargs)
            if start is not None:
                guard.run(self._copied_out, args, start)
            return result

        return copy_out

    @unseen
    def call(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """The collective itself, on the stream it runs on."""
        copied = self._guard.run(self.copied_in)
        self._rec.own_collective = True
        try:
            result = inner(*args, **kwargs)
        finally:
            self._rec.own_collective = False
        if copied is not None:
            self._guard.run(self._returned, copied, args, kwargs, result)
        return result

    # What the live hooks ask

    def _begins(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        unit = self._units.of_params(args[0])
        pg = self._groups.index(args[1])
        of_device = self._rec.clock.of_device
        copy_stream = next(internals.streams_of(args), None) if of_device else None
        self.begins(unit, unit.group(), bool(args[2]), pg, copy_stream)
        return self._swap(
            args, lambda inner: internals.CollectiveProxy(inner, self.call)
        )

    def _returned(self, copied: int, args: Any, kwargs: Any, result: Any) -> None:
        end = self._world.tick()
        size = tensor_bytes(internals.argument(args, kwargs, 0, _OUTPUTS))
        kept = None
        if result is not None:
            kept = (result, []) if self._rec.clock.of_device else noted(result)
        self.returned(copied, end, size, kept)

    def _wait(self, args: tuple[Any, ...]) -> int:
        """See [Note: Bracketed waits]. Returns where the copy-out starts."""
        result = args[0]
        unit = self._units.of_params(args[1])
        rec, world = self._rec, self._world
        work = result.all_gather_work
        waits = hasattr(work, "wait")
        if not waits and not rec.clock.of_device:
            return world.tick()
        start = self.wait_begins(unit)
        if result.all_gather_event is not None and rec.clock.of_device:
            stream = internals.current_stream(unit.group())
            self._guard.user_call(stream.wait_event, result.all_gather_event)
        if waits:
            self._guard.user_call(work.wait)
        end = world.tick()
        return world.tick() if self.waited(unit, start, end) else end

    def _copied_out(self, args: tuple[Any, ...], start: int) -> None:
        self.copied_out(self._units.of_params(args[1]), start)

    # What each moment means

    def begins(
        self, unit: Unit, group: Any, is_async: bool, pg: int, stream: Any = None
    ) -> None:
        """`foreach_all_gather` is called; it copies in on a stream."""
        world = self._world
        here = world.thread()
        if self._gathering is not None and self._thread != here:
            raise RuntimeError(
                "two threads of this process train at once, and a record cannot tell "
                "whose is what"
            )
        self._thread = here
        op = self._units.new_op(world, unit, group, is_async, pg)
        unit.pending = self._gathering = op
        self._copy_in = (stream, world.tick(stream))
        world.beat(kinds.ALL_GATHER, op.phase, op.unit, op.seq, op.group)

    def copied_in(self) -> int | None:
        """The collective is issued; None where it is no part of a gather."""
        op, world = self._gathering, self._world
        if op is None:
            return None
        copied = world.tick(self._copy_in[0])
        op.issued_ns = world.now_ns()
        op.start = world.tick() if self._rec.clock.of_device else op.issued_ns
        return copied

    def returned(
        self, copied: int, end: int, size: int, kept: tuple[Any, list[int]] | None
    ) -> None:
        """It has returned, of an asynchronous one with its work, see `noted`."""
        op, rec = self._gathering, self._rec
        assert op is not None
        op.size = size
        rec.spans.add(
            kinds.COPY_IN,
            lanes.COPY_IN,
            op.phase,
            op.flags & ~flag_bits.FIRST,
            op.micro_batch,
            op.unit,
            self._copy_in[1],
            copied,
            op=op.number,
            by_unit=op.by_unit,
        )
        if kept is not None:
            op.work, op.ended_ns = kept
            return
        op.end = end
        if rec.clock.of_device:
            self._units.gathered(op)
            return
        op.flags |= flag_bits.BLOCKING
        self._units.gathered(op)
        self._units.gather_waited(op, op.start, end)

    def ended(self) -> None:
        """`foreach_all_gather` is left."""
        self._gathering = None

    def wait_begins(self, unit: Unit) -> int:
        """Compute waits for it."""
        op = unit.pending
        if op is not None:
            self._world.beat(kinds.ALL_GATHER_WAIT, op.phase, op.unit, op.seq, op.group)
        return self._world.tick()

    def waited(self, unit: Unit, start: int, end: int) -> bool:
        """It has; whether the gather is one that was seen to be issued."""
        op = unit.pending
        if op is None:
            return False  # issued before recording started
        if op.end == NO_TIME:
            self._units.end_of(op, start, end)
        self._units.gather_waited(op, start, end)
        return True

    def copied_out(self, unit: Unit, start: int) -> None:
        """What was gathered is copied to where it is used."""
        op, rec = unit.pending, self._rec
        end = self._world.tick()
        rec.spans.add(
            kinds.COPY_OUT,
            lanes.COMPUTE,
            op.phase if op else phases.OTHER,
            op.flags & ~flag_bits.FIRST if op else 0,
            op.micro_batch if op else rec.micro_batch,
            unit.index,
            start,
            end,
            op=op.number if op else UNKNOWN,
        )
        unit.copied_out = end


_OUTPUTS = ("output_tensor", "output")


def noted(work: Any) -> tuple[Any, list[int]]:
    """A work, and where the backend's thread will note when a collective on the host
    is done.
    """
    ended_ns: list[int] = []
    if getattr(work, "fsdpdoctor_end_ns", None) is not None:
        return work, ended_ns
    try:
        future = work.get_future()
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        let_through(error)
        return work, ended_ns  # it has none; the end will be said to be estimated
    future.add_done_callback(lambda _: ended_ns.append(perf_counter_ns()))
    return work, ended_ns
