"""All FSDP units of the process, and what the hook that runs now means."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from fsdpdoctor.recorder import flag_bits, kinds, lanes, phases
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.unit_state import Op, Reduction, Unit, Window
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.recorder.tape.worlds import Live, World
from fsdpdoctor.schema import (
    COUNTER_EXCEPTIONS,
    COUNTER_LEFT_OPEN,
    NO_TIME,
    UNKNOWN,
    Phase,
)

_ATTRIBUTE = "_fsdpdoctor_unit"
"""Where a parameter group holds its `Unit`: with the group it goes away."""


def gone() -> Any:
    """What a reference to nothing, or to what is no longer there, leads to."""
    return None


class Units:
    """All units of the process, and which hook is running now."""

    def __init__(
        self, recording: Recording, device_seen: Callable[[str], None]
    ) -> None:
        self._rec = recording
        self._device_seen = device_seen
        self.owner = object()  # of the units that are made here
        self.live = Live(recording)
        self.all: list[Unit] = []
        self.by_param: dict[int, Unit] = {}  # by the identity of an FSDPParam
        self._trees: weakref.WeakSet[Any] = weakref.WeakSet()
        self._reductions: dict[int, Reduction] = {}
        self._forwards: list[Unit] = []  # whose forward is open, outermost first
        self.order: list[int] = []  # as they first ran
        self.hook: Unit | None = None
        self.prefetch = flag_bits.NONE
        self.manual = False
        self.forward_state: Callable[[], Any] = gone
        self.backward_state: Callable[[], Any] = gone
        self.broken_off_step = UNKNOWN  # as `ModelSpec` has it
        self.grad = True  # of the root forward that runs, or ran last
        self.first = True  # no all-gather was issued in this step yet

    def of(self, group: Any) -> Unit:
        """A parameter group's unit; a new one where it is new."""
        if type(group) is Unit:
            return group  # as a row of the tape has it, see [Note: Two worlds]
        unit: Unit | None = getattr(group, _ATTRIBUTE, None)
        if unit is None or unit.owner is not self.owner:
            self._device_seen(group.device.type)
            unit = Unit(len(self.all), group, self.owner)
            self.all.append(unit)
            setattr(group, _ATTRIBUTE, unit)
            for param in group.fsdp_params:
                self.by_param[id(param)] = unit
        return unit

    def of_params(self, params: Any) -> Unit:
        """The unit of a list of FSDPParams."""
        return self.by_param[id(params[0])]

    def index_of_params(self, params: Any) -> int:
        """The index of their unit, UNKNOWN where it was not seen yet: one may be
        gathered by hand before the first forward.
        """
        unit = self.by_param.get(id(params[0]))
        return UNKNOWN if unit is None or unit.group() is None else unit.index

    @property
    def replicate(self) -> bool:
        """Whether gradients of any unit are all-reduced, too."""
        groups = (unit.group() for unit in self.all)
        return any(g is not None and internals.replicates(g) for g in groups)

    def first_of(self, state: Any) -> int:
        """The index of a state's first unit, UNKNOWN where it has none."""
        groups = internals.groups_of(state)
        return self.of(groups[0]).index if groups else UNKNOWN

    def unit_of_tree(self, state: Any) -> int:
        """The index of the first unit in a state's tree, UNKNOWN where it has none."""
        firsts = (self.first_of(one) for one in internals.all_states(state))
        return next((first for first in firsts if first != UNKNOWN), UNKNOWN)

    def sharded_params(self) -> Iterator[Any]:
        """One of each unit that has a gradient, as the optimizer knows it."""
        for unit in self.all:
            group = unit.group()
            params = () if group is None else group.fsdp_params
            sharded = (param.sharded_param for param in params)
            yield from islice((p for p in sharded if p.grad is not None), 1)

    def accumulates(self) -> bool:
        """Whether a unit holds gradients, reduced or not, to which others are added."""
        for unit in self.all:
            group = unit.group()
            if group is None:
                continue
            if getattr(group, "_partial_reduce_output", None) is not None:
                return True
            for param in group.fsdp_params:
                unsharded = getattr(param, "unsharded_accumulated_grad", None)
                if param.sharded_param.grad is not None or unsharded is not None:
                    return True
        return False

    def knows_tree(self, state: Any) -> bool:
        """Whether the state's tree was described."""
        return state._state_ctx in self._trees

    def add_tree(self, state: Any) -> None:
        """Number a tree's units in the order of its modules."""
        self._trees.add(state._state_ctx)
        for one in internals.all_states(state):
            for group in internals.groups_of(one):
                self.of(group)

    # What the hook that runs now means

    def forward_phase(self, world: World) -> tuple[Phase, int]:
        """The phase and flags of a forward that runs now."""
        if world.in_backward():
            return phases.BACKWARD, flag_bits.RECOMPUTE
        return phases.FORWARD, 0 if self.grad else flag_bits.NO_GRAD

    def phase_now(self, world: World, group: Any) -> Phase:
        """The phase that needs an unshard issued now.

        Recomputation is in FORWARD state, and it is backward that needs it.
        """
        if world.in_backward() or world.state(group) == "PRE_BACKWARD":
            return phases.BACKWARD
        return phases.FORWARD

    def issuer(self) -> tuple[int, int]:
        """Whose hook issues an unshard now, and the flags that follow from it."""
        flags = int(self.prefetch)
        if self.prefetch and self.hook is None:
            # FSDPState walks its prefetch list after its groups' own hooks.
            forward = self.prefetch == flag_bits.FORWARD_PREFETCH
            state = (self.forward_state if forward else self.backward_state)()
            return (UNKNOWN if state is None else self.first_of(state)), flags
        if self.hook is not None:
            return self.hook.index, flags
        return UNKNOWN, flags | (
            flag_bits.MANUAL if self.manual else flag_bits.RECOMPUTE
        )

    def new_op(
        self, world: World, unit: Unit, group: Any, async_op: bool, pg: int
    ) -> Op:
        """An unshard whose collective is issued now."""
        by_unit, flags = self.issuer()
        phase = self.phase_now(world, group)
        if world.in_backward() and world.state(group) == "FORWARD":
            flags |= flag_bits.RECOMPUTE
        if not self.grad and phase == phases.FORWARD:
            flags |= flag_bits.NO_GRAD
        if async_op:
            flags |= flag_bits.ASYNC_OP
        if self.first:
            flags |= flag_bits.FIRST
            self.first = False
        rec = self._rec
        return Op(
            number=rec.new_op(),
            unit=unit.index,
            phase=phase,
            flags=flags,
            micro_batch=rec.micro_batch,
            by_unit=by_unit,
            group=pg,
            seq=rec.new_seq(pg),
            issued_ns=world.now_ns(),
        )

    # Passes

    def began(self, unit: Unit, phase: Phase) -> None:
        """A unit's forward or backward starts: its window is used."""
        if phase == phases.FORWARD:
            self._forwards.append(unit)
            if not unit.ran:
                unit.ran = True
                self.order.append(unit.index)
        window = unit.window
        if window is None or window.used:
            return
        window.used = True
        if window.flags & flag_bits.MANUAL:
            self._rec.spans.learn_use(window.op, phase, self._rec.micro_batch)
            window.phase, window.micro_batch = phase, self._rec.micro_batch

    def finished_forward(self, unit: Unit) -> None:
        """A unit's forward has ended."""
        if unit in self._forwards:
            self._forwards.remove(unit)

    def in_forward(self, state: Any) -> bool:
        """Whether a forward of one of the state's units is open."""
        return any(
            self.of(group).forward is not None for group in internals.groups_of(state)
        )

    def abort_forwards(self, world: World) -> int:
        """End the forwards that an exception left open, and count it. How many."""
        rec = self._rec
        aborted = [unit for unit in self._forwards if unit.forward is not None]
        for unit in reversed(aborted):
            rec.spans.add(
                kinds.FORWARD,
                lanes.COMPUTE,
                phases.FORWARD,
                unit.forward_flags | flag_bits.ABORTED | flag_bits.END_ESTIMATED,
                rec.micro_batch,
                unit.index,
                unit.forward or 0,
                world.tick(),
            )
            unit.forward = None
        self._forwards.clear()
        if aborted:
            self._tally(world, COUNTER_EXCEPTIONS)
        return len(aborted)

    def root_forward_broke_off(self, world: World, state: Any) -> None:
        """A root's forward begins whose last one an exception ended. Say so, and
        whether FSDP2 has been left in it: units gathered, or that forward its root's.
        """
        if not self.abort_forwards(world):
            self._tally(world, COUNTER_EXCEPTIONS)
        in_it = state._state_ctx.iter_forward_root is state
        if (in_it and internals.can_reset(state)) or any(
            internals.is_unsharded(group) and not self._by_hand(group)
            for one in internals.all_states(state)
            for group in internals.groups_of(one)
        ):
            self._tally(world, COUNTER_LEFT_OPEN)

    def _by_hand(self, group: Any) -> bool:
        window = self.of(group).window
        return window is not None and window.flags & flag_bits.MANUAL != 0

    def _tally(self, world: World, counter: str) -> None:
        self._rec.counters.add(self._rec.names.id(counter), world.now_ns(), 1)

    def inside_forward(self) -> Unit | None:
        """The innermost unit whose forward is running."""
        self._rec.catch_up()
        return self._forwards[-1] if self._forwards else None

    def running(self, *, backward: bool) -> Unit | None:
        """The innermost unit whose forward, or backward, is running."""
        self._rec.catch_up()
        if self._forwards or not backward:
            return self.inside_forward()
        open_now = [unit for unit in self.all if unit.backward is not None]
        return max(open_now, key=lambda unit: unit.backward or 0, default=None)

    def recomputed(self, state: Any) -> None:
        """A state's forward ran again in its backward."""
        for group in internals.groups_of(state):
            self.of(group).checkpointed = True

    # Windows and reductions

    def close_window(self, unit: Unit, end: int, flags: int = 0) -> None:
        """The unit's parameters are freed."""
        window, unit.window = unit.window, None
        self._rec.live_bytes -= unit.bytes
        if window is None:
            return
        self._add_window(
            unit, window, end, flags | (0 if window.used else flag_bits.NEVER_USED)
        )

    def cut_windows(self, at: int) -> None:
        """End every window at a step's end, and begin it anew in the next."""
        for unit in self.all:
            window = unit.window
            if window is not None:
                self._add_window(unit, window, at, flag_bits.END_ESTIMATED)
                window.start, window.micro_batch = at, UNKNOWN

    def _add_window(self, unit: Unit, window: Window, end: int, flags: int) -> None:
        self._rec.spans.add(
            kinds.UNSHARDED,
            lanes.UNSHARDED,
            window.phase,
            window.flags | flags,
            window.micro_batch,
            unit.index,
            window.start,
            end,
            op=window.op,
            size=unit.bytes or UNKNOWN,
        )

    def resume(self, at: int) -> None:
        """Recording starts: see which units are unsharded already."""
        self._rec.live_bytes = 0
        self._forwards.clear()
        self._reductions.clear()
        self.hook, self.prefetch, self.manual = None, flag_bits.NONE, False
        for unit in self.all:
            unit.forget()
            group = unit.group()
            if group is None or not internals.is_unsharded(group):
                continue
            unit.bytes = unit.bytes or internals.unsharded_bytes(group)
            self._rec.live_bytes += unit.bytes
            unit.window = Window(
                op=self._rec.new_op(),
                phase=phases.OTHER,
                flags=0,
                micro_batch=UNKNOWN,
                start=at,
            )

    def remember(self, event: Any, reduction: Reduction) -> None:
        """What it is that an event stands for."""
        if event is not None:
            self._reductions[id(event)] = reduction

    def reduction_of(self, event: Any) -> Reduction | None:
        """What an event stands for."""
        return self._reductions.get(id(event))

    def forget_reductions(self) -> None:
        """Backward is over: nobody waits for its events any more."""
        self._reductions.clear()

    def waited(
        self, reduction: Reduction | None, unit: Unit, start: int, end: int
    ) -> None:
        """Compute waited for a reduction."""
        kind = reduction.kind if reduction else kinds.REDUCE_SCATTER
        self._rec.spans.add(
            kinds.ALL_REDUCE_WAIT
            if kind == kinds.ALL_REDUCE
            else kinds.REDUCE_SCATTER_WAIT,
            lanes.COMPUTE,
            phases.BACKWARD,
            0,
            self._rec.micro_batch,
            reduction.unit if reduction else UNKNOWN,
            start,
            end,
            op=reduction.op if reduction else UNKNOWN,
            by_unit=unit.index,
            group=reduction.group if reduction else UNKNOWN,
            seq=reduction.seq if reduction else UNKNOWN,
        )

    # Collectives that were issued

    def gathered(self, op: Op, more: int = 0) -> None:
        """Add the all-gather of an op whose start and end are known."""
        self._rec.spans.add(
            kinds.ALL_GATHER,
            lanes.ALL_GATHER,
            op.phase,
            op.flags | more,
            op.micro_batch,
            op.unit,
            op.start,
            op.end,
            op=op.number,
            by_unit=op.by_unit,
            issued=op.issued_ns,
            size=op.size,
            group=op.group,
            seq=op.seq,
        )

    def gather_waited(self, op: Op, start: int, end: int, more: int = 0) -> None:
        """Add the time that compute stood still for an all-gather."""
        self._rec.spans.add(
            kinds.ALL_GATHER_WAIT,
            lanes.COMPUTE,
            op.phase,
            op.flags | more,
            op.micro_batch,
            op.unit,
            start,
            end,
            op=op.number,
            by_unit=op.by_unit,
            issued=op.issued_ns,
            size=op.size,
            group=op.group,
            seq=op.seq,
        )

    def never_used(self, op: Op, waited_from: int, waited_to: int) -> None:
        """An unshard was issued and nobody used it: FSDP2 waits and drops it."""
        self._rec.spans.learn_flag(op.number, flag_bits.NEVER_USED)
        if op.end == NO_TIME:
            self.end_of(op, waited_from, waited_to)

    def end_of(self, op: Op, waited_from: int, waited_to: int) -> None:
        """Add an asynchronous all-gather once somebody has waited for it.

        The backend's thread notes the true end where it can; a modelled wire
        knows it. Else the end is at latest the end of the wait.
        """
        modelled = getattr(op.work, "fsdpdoctor_end_ns", None)
        if modelled is not None:
            op.end = int(modelled)
        elif op.ended_ns:
            op.end = op.ended_ns[0]
        estimated = 0
        if op.end == NO_TIME:
            op.end = waited_to
            estimated = flag_bits.END_ESTIMATED
        op.work = None
        self.gathered(op, estimated)
