"""Reads what hooks in C have written down, and has it mean what it means.

[Note: The tape] A hook in C writes its name, the time, and what was so, see `worlds`.
That is read by whoever looks at, or changes, what it would have changed
(`Recording.catch_up`), at the latest where a pass ends; and by the thread that writes
the heartbeat, where nobody has while it slept once: so what that tells is at most a
tenth of a second old. One reads at a time.
"""

from __future__ import annotations

from _thread import RLock, get_ident
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from fsdpdoctor.recorder import flag_bits, kinds
from fsdpdoctor.recorder.brackets import PASS_BY
from fsdpdoctor.recorder.fsdp2.all_gather_hooks import GatherHooks
from fsdpdoctor.recorder.fsdp2.reduce_hooks import ReductionHooks
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.fsdp2.unsampled_hooks import LightHooks
from fsdpdoctor.recorder.patching import ErrorBorder, Function
from fsdpdoctor.recorder.tape import facts as bits
from fsdpdoctor.recorder.tape.extension import Row, Tape
from fsdpdoctor.recorder.tape.worlds import Taped
from fsdpdoctor.schema import UNKNOWN

_FAILED = RuntimeError("the call was left by an error of theirs")
"""Stands for it: what it was is asked by nobody."""


class Replay:
    """The reader of one tape."""

    def __init__(self, world: Taped, guard: ErrorBorder) -> None:
        self.world = world
        self._guard = guard
        self._tape: Tape | None = None
        self._rows: deque[Row] = deque()
        self._lock = RLock()
        self._reads = 0  # the thread that does
        self._beside_ns = 0  # taken on a thread of ours, and not counted yet
        self._read_times = self._read_before = 0
        self._error: Exception | None = None  # of ours, on a thread of ours
        self._tokens: dict[int, Any] = {}  # by call: what its beginning has left
        # By code: a beginning, an end, and what has a meaning of its own.
        self._befores: dict[int, Function] = {}
        self._afters: dict[int, Function] = {}
        self._others: dict[int, Callable[[Row], None]] = {}

    def reads(self, tape: Tape) -> None:
        """The tape that there is, from here on."""
        self._tape = tape

    # What codes mean

    def bracket(
        self, code: int, before: Function, after: Function | None = None
    ) -> None:
        """A method's beginning and end, as `brackets.bracket` has them."""
        self._befores[code + bits.BEGINS] = before
        if after is not None:
            self._afters[code + bits.ENDS] = after

    def begun(self, code: int, kind: int, phase: int) -> None:
        """A unit's own compute has begun, with the end of a hook."""
        world = self.world

        def ends(row: Row) -> None:
            if not row[3] & bits.FAILED:
                world.beat(kind, phase, row[4].index)

        self._others[code + bits.ENDS] = ends

    def counts(self, code: int, kind: int, hooks: LightHooks) -> None:
        """A collective is issued, of which no more is asked."""
        world = self.world

        def issued(row: Row) -> None:
            unit = row[4]
            hooks.counted(world, kind, UNKNOWN if unit is None else unit.index, row[5])

        self._others[code] = issued

    def prefetches(self, code: int, units: Units) -> None:
        """`_prefetch_unshard`."""

        def begins(row: Row) -> None:
            forward = row[3] & bits.FORWARD_PREFETCH
            units.prefetch = (
                flag_bits.FORWARD_PREFETCH if forward else flag_bits.BACKWARD_PREFETCH
            )

        def ends(row: Row) -> None:
            units.prefetch = flag_bits.NONE

        self._others |= {code + bits.BEGINS: begins, code + bits.ENDS: ends}

    def states(self, forward: int, backward: int, units: Units) -> None:
        """States whose forward, or backward, comes next."""

        def of_forward(row: Row) -> None:
            units.forward_state = row[4]

        def of_backward(row: Row) -> None:
            units.backward_state = row[4]

        self._others |= {forward: of_forward, backward: of_backward}

    def gathers(self, code: int, copy_out: int, hooks: GatherHooks) -> None:
        """`foreach_all_gather` and `foreach_all_gather_copy_out`."""
        world, tokens = self.world, self._tokens

        def begins(row: Row) -> None:
            _, _, _, facts, unit, group, thread = row
            world.thread_id = thread
            hooks.begins(unit, unit, facts & bits.ASYNC != 0, group)

        def calls(row: Row) -> None:
            tokens[row[1]] = hooks.copied_in()

        def returned(row: Row) -> None:
            copied = tokens.pop(row[1], None)
            if copied is not None and not row[3] & bits.FAILED:
                hooks.returned(copied, row[2], row[6], row[4])

        def ends(row: Row) -> None:
            tokens.pop(row[1], None)
            hooks.ended()

        def waits(row: Row) -> None:
            tokens[row[1]] = hooks.wait_begins(row[4])

        def waited(row: Row) -> None:
            start = tokens.pop(row[1], None)
            if start is not None:
                hooks.waited(row[4], start, row[2])

        def copies(row: Row) -> None:
            tokens[row[1]] = row[2]

        def copied_out(row: Row) -> None:
            start = tokens.pop(row[1], None)
            if start is not None and not row[3] & bits.FAILED:
                hooks.copied_out(row[4], start)

        self._others |= {
            code + bits.BEGINS: begins,
            code + bits.CALLS: calls,
            code + bits.RETURNED: returned,
            code + bits.ENDS: ends,
            copy_out + bits.CALLS: waits,
            copy_out + bits.RETURNED: waited,
            copy_out + bits.BEGINS: copies,
            copy_out + bits.ENDS: copied_out,
        }

    def reductions(self, code: int, hooks: ReductionHooks) -> None:
        """`foreach_reduce`."""
        begun: dict[int, int] = {}
        issued: dict[int, Any] = {}

        def begins(row: Row) -> None:
            begun.clear()
            issued.clear()
            begun[row[1]] = row[2]
            hooks.begins(row[4])

        def allocates(row: Row) -> None:
            hooks.allocates()

        def calls(row: Row) -> None:
            issued[row[1]] = hooks.issues(kinds.REDUCE_SCATTER, row[5], row[6])

        def returned(row: Row) -> None:
            reduction = issued.pop(row[1], None)
            if reduction is not None and not row[3] & bits.FAILED:
                hooks.ended(reduction)

        def ends(row: Row) -> None:
            entered = begun.pop(row[1], None)
            if entered is not None:
                failed = row[3] & (bits.FAILED | bits.NO_RESULT)
                hooks.reduced(entered, None if failed else row)

        self._others |= {
            code + bits.BEGINS: begins,
            code + bits.ALLOCATES: allocates,
            code + bits.CALLS: calls,
            code + bits.RETURNED: returned,
            code + bits.ENDS: ends,
        }

    # Reading

    def catch_up(self) -> None:
        """Read all that there is, on a thread that trains, within one of our hooks."""
        tape = self._tape
        if tape is None or not (tape or self._rows or self._reads or self._error):
            return
        if self._reads == get_ident() or self._guard.failed:
            return  # a signal handler of the script's, in the midst of it
        try:
            with self._lock:  # whoever reads now is done then
                self._read(tape)
            error, self._error = self._error, None
            if error is not None:
                raise error
        except Exception as error:
            tape.off = False  # what is theirs is raised again, and ends nothing
            self._guard.fail(error)
            tape.off = True
        finally:
            beside, self._beside_ns = self._beside_ns, 0
            self._guard.cost_ns += tape.take_cost() + beside

    def catch_up_beside(self) -> None:
        """The same on a thread of ours, or as the process ends; whoever reads now is
        left to it. It costs least where much is read in one go.
        """
        tape = self._tape
        if tape is None or tape.off or not tape or self._reads == get_ident():
            return
        if not self._lock.acquire(False):
            return
        entered = perf_counter_ns()
        try:
            self._read(tape)
        except Exception as error:  # told on a thread that trains
            tape.off = True
            self._error = error
        finally:
            self._lock.release()
            self._beside_ns += perf_counter_ns() - entered

    def tick(self) -> None:  # untraced: its own thread
        """The heartbeat's thread has woken: what nobody has read since it did so before
        is read now.
        """
        before, self._read_before = self._read_before, self._read_times
        if before == self._read_times:
            self.catch_up_beside()

    def start_anew(self) -> None:
        """Hooks are put in place: what was left by the last ones is of no step."""
        tape = self._tape
        if tape is None:
            return
        with self._lock:
            tape.take()
            self._rows.clear()
            self._tokens.clear()
            tape.off = self._guard.failed or self._error is not None

    def _read(self, tape: Tape) -> None:
        self._reads = get_ident()  # before any row is taken: nobody goes on without
        self._read_times += 1
        world, rows, tokens = self.world, self._rows, self._tokens
        befores, afters, others = self._befores, self._afters, self._others
        try:
            rows.extend(tape.take())
            while rows:
                row = rows.popleft()  # first: an error of a signal's leaves the others
                code = row[0]
                world.time_ns = row[2]
                world.facts = row[3]
                before = befores.get(code)
                if before is not None:
                    token = before(row[4])
                    if token is not PASS_BY:
                        tokens[row[1]] = token
                    continue
                after = afters.get(code)
                if after is not None:
                    token = tokens.pop(row[1], PASS_BY)
                    if token is not PASS_BY:
                        after(token, _FAILED if row[3] & bits.FAILED else None)
                    continue
                other = others.get(code)
                if other is not None:
                    other(row)
            failed = tape.take_error()
            if failed is not None:
                raise failed
        finally:
            self._reads = 0
