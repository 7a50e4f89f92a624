"""Tunes the job that it runs in, between two of its steps.

The training thread does three things where a pass begins: it learns what was decided,
sets attributes, and notes the time. All that asks or tells other ranks, or reads a
file, is done by a thread of its own. How ranks agree is told in `agreement`, and why no
number changes in `in_force`.
"""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fsdpdoctor.errors import PlanError
from fsdpdoctor.plan_file import settings_of
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.autotune.agreement import Proposer, Store, Voter
from fsdpdoctor.recorder.autotune.conductor import Conductor, over_key
from fsdpdoctor.recorder.autotune.decisions import Decision, What
from fsdpdoctor.recorder.autotune.in_force import InForce, ScriptChanged
from fsdpdoctor.recorder.autotune.memory_room import MemoryRoom
from fsdpdoctor.recorder.autotune.outcome import Outcome
from fsdpdoctor.recorder.autotune.passes import Passes
from fsdpdoctor.recorder.autotune.ranking import Candidate
from fsdpdoctor.recorder.autotune.step_lengths import StepLengths
from fsdpdoctor.recorder.changes.apply_plan import units_in
from fsdpdoctor.recorder.forward_frames import outermost_module
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.running_settings import (
    Change,
    changes_of,
    fingerprint,
)
from fsdpdoctor.recorder.own_threads import start_thread
from fsdpdoctor.recorder.patching import ErrorBorder
from fsdpdoctor.recorder.storage.settings_log import SettingsLog, TunedSampling

LOOK_EVERY_S = 0.1
"""How often a rank's thread asks the store: a millisecond's work of one core."""

END_WITHIN_S = 5.0
"""How long the end of the script may wait for that thread: one call of the store."""

_NOTHING: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What an autotuner is told."""

    folder: Path  # of the run
    store: Store
    rank: int
    world_size: int  # ranks that there are: of a rehearsal one
    sampling: TunedSampling
    log: SettingsLog
    minutes: float | None = None
    before: Candidate | None = None  # what was kept before the launcher's restart


class Autotuner:
    """One rank's part, from `attach` to `close`."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        # At the first error what was agreed on is followed all the same, or this rank
        # would go back to other settings than the others.
        self._first = ErrorBorder(self._end_later, "trying settings")
        self._passes = Passes(
            self, self._first, ErrorBorder(self._failed, "autotuning")
        )
        self._voter = Voter(setup.store, setup.rank, self._prepare)
        self._in_force = InForce()
        self._prepared: dict[int, Sequence[Change]] = {}
        self._kept: Sequence[Change] = _NOTHING
        self._kept_words: str | None = None
        self._due: Decision | None = None  # to begin with this pass
        self._tried: Decision | None = None
        self._trying: Sequence[Change] = _NOTHING
        self._root: Any = None  # a weak reference, once there is one
        self._states: list[dict[frozenset[str], Any]] = []
        self._model = ""
        self._pass = 0
        self._step = -1
        self._lengths: StepLengths | None = None
        self._room = MemoryRoom(None)
        self._conductor: Conductor | None = None
        self._ends = time.monotonic() + 60 * (setup.minutes or float("inf"))
        self._closing = False
        self._thread_ended = threading.Event()
        self._thread_ended.set()
        self._outcome = Outcome(setup.folder, self._say)

    @property
    def searches(self) -> bool:
        """Whether this rank needs candidates."""
        return self._setup.rank == 0 and self._setup.before is None

    def attach(self) -> None:
        """Wait for a model."""
        names = internals.TorchSymbols()
        if not names.found:
            self._say(internals.NO_FSDP2)
            return
        self._passes.attach(names)

    def close(self) -> None:
        """The training has ended: put back what was there, and say what was kept."""
        self._closing = True
        for end in (
            self._passes.detach,
            partial(self._thread_ended.wait, END_WITHIN_S),
            self._in_force.put_back,
            partial(self._setup.log.uses, None, self._setup.sampling.step),
            self._sum_up,
        ):
            border.last_words(partial(self._finish, end))

    def _finish(self, end: Callable[[], object]) -> None:
        try:
            end()
        except Exception as error:
            border.say(f"fsdpdoctor: tuning did not end well: {border.describe(error)}")
            end()

    def _sum_up(self) -> None:
        if self._setup.rank == 0:
            tuning = None if self._conductor is None else self._conductor.tuning
            self._outcome.close(tuning, self._voter.retired)

    def _say(self, words: str) -> None:
        if self._setup.rank == 0:
            border.say(f"fsdpdoctor: autotune: {words}")

    # The training thread

    def pass_begins(self, root: Any) -> None:
        """A root's forward with gradients begins: nothing of it has run."""
        if self._root is None:
            self._meet(root)
        if self._root() is not root or self._closing:
            return
        self._due = self._reached(self._pass) or self._due
        if self._due is not None:
            self._begin(self._due)
            self._due = None
        self._switch(self._pass)
        this_pass, self._pass = self._pass, self._pass + 1
        if not self._voter.over:
            self._first.run(self._measure, this_pass)
        elif self._tried is None and not self._kept:
            self._passes.detach()  # nothing is set, nothing will be

    def _reached(self, this_pass: int) -> Decision | None:
        retired = self._voter.retired
        decision = self._voter.reached(this_pass)
        if decision is None and self._voter.retired is not retired:
            # Of this rank alone, which may not be the one that speaks.
            rank, why = self._setup.rank, self._voter.retired
            border.say(f"fsdpdoctor: autotune: rank {rank}: {why}")
        return decision

    def _measure(self, this_pass: int) -> None:
        step = self._setup.sampling.step
        if step != self._step:
            self._step = step
            self._room.look()
            assert self._lengths is not None
            self._lengths.begins(this_pass)

    def _end_later(self, reason: str) -> None:
        self._voter.retire(reason)

    def no_grad_begins(self, state: Any) -> None:
        """A forward without gradients begins, of a root or of a part alone."""
        root = None if self._root is None else self._root()
        if root is not None and state._state_ctx is root._state_ctx:
            self._use(_NOTHING)

    def optimizer_begins(self) -> None:
        """An optimizer is about to change parameters."""
        self._in_force.optimizer_begins()

    def _meet(self, root: Any) -> None:
        self._states = [units_in(root._modules[0])]
        outer = outermost_module()
        if outer is not None and outer is not root._modules[0]:
            # Where a model has several trees, units are named within the model.
            self._states.append(units_in(outer))
        names = sorted(",".join(sorted(name)) for name in self._states[0])
        self._model = hashlib.sha256("|".join(names).encode()).hexdigest()[:16]
        groups = [g for s in internals.all_states(root) for g in internals.groups_of(s)]
        device = groups[0].device if groups else None
        if device is not None and device.type == "cuda":
            self._room = MemoryRoom(device.index or 0)
        self._lengths = StepLengths(on_device=self._room.of_device)
        if self._setup.rank == 0:
            self._conductor = self._conducting(self._lengths)
        self._root = weakref.ref(root)
        self._thread_ended.clear()
        try:
            start_thread(self._carry)
        except RuntimeError:  # no more threads to be had
            self._thread_ended.set()
            self._voter.retire("no thread could be started")

    def _conducting(self, lengths: StepLengths) -> Conductor:
        setup = self._setup
        return Conductor(
            store=setup.store,
            proposer=Proposer(setup.store, setup.world_size, self._voter),
            voter=self._voter,
            lengths=lengths,
            folder=setup.folder,
            model=self._model,
            say=self._say,
            in_time=lambda: time.monotonic() < self._ends,
            kept=self._outcome.kept,
            before=setup.before,
        )

    def _begin(self, decision: Decision) -> None:
        changes = self._prepared[decision.number]
        self._tried = None
        if decision.what is What.KEEP:
            self._kept, self._kept_words = changes, decision.words
            self._setup.sampling.changed()
        elif decision.what is What.TRY:
            self._tried, self._trying = decision, changes

    def _switch(self, this_pass: int) -> None:
        tried = self._tried
        if tried is not None and this_pass >= tried.end_pass:
            self._tried = tried = None
        on = tried is not None and tried.tries(this_pass)
        self._setup.sampling.trying = tried is not None or self._voter.waits
        if not self._use(self._trying if on else self._kept):
            return
        words = tried.words if on and tried is not None else self._kept_words
        self._setup.log.uses(words, self._setup.sampling.step, trial=on)

    def _use(self, changes: Sequence[Change]) -> bool:
        try:
            self._in_force.use(changes)
        except ScriptChanged as changed:
            self._end(str(changed))
            return False
        return True

    def _end(self, why: str) -> None:
        self._tried, self._kept, self._kept_words = None, _NOTHING, None
        self._setup.log.uses(None, self._setup.sampling.step)
        self._voter.retire(why)

    def _failed(self, reason: str) -> None:
        """An error of ours: out of the way, at once."""
        self._passes.detach()
        self._in_force.put_back()
        self._end(reason)

    # The thread beside it

    def _carry(self) -> None:  # untraced: its own thread
        try:
            while not self._closing and not self._voter.over:
                try:
                    self._look()
                    self._outcome.store_answers()
                except (RuntimeError, OSError) as error:  # the store's, done or not
                    self._outcome.store_fails(error)
                    time.sleep(LOOK_EVERY_S / 10)  # where it fails at once
                except Exception as error:
                    self._voter.retire(border.describe(error))
                    return
                if not self._voter.waits_for_store():
                    time.sleep(LOOK_EVERY_S)
        finally:
            self._thread_ended.set()

    def _look(self) -> None:  # untraced: its own thread
        self._voter.hear()
        tried = self._tried
        if tried is not None and self._room.over:
            rank = self._setup.rank
            self._setup.store.put_first(
                over_key(tried.number), f"memory got short on rank {rank}"
            )
        conductor = self._conductor
        if conductor is not None and (tuning := conductor.look()) is not None:
            self._outcome.over(tuning, conductor.others)

    def _prepare(self, decision: Decision) -> str:  # untraced: its own thread
        """Make it ready, and say what it comes to. Raises PlanError where it cannot be
        done here.
        """
        if decision.model != self._model:
            raise PlanError("it holds another model than rank 0")
        changes: Sequence[Change] = _NOTHING
        if decision.what is not What.BACK:
            changes = self._changes(decision)
            self._room.need(decision.bytes)
        # The one before it may have begun, and not been looked up yet.
        before = self._prepared.get(decision.number - 1, _NOTHING)
        self._prepared = {decision.number - 1: before, decision.number: changes}
        return fingerprint(changes, self._root())

    def _changes(
        self, decision: Decision
    ) -> Sequence[Change]:  # untraced: its own thread
        settings = settings_of(decision.settings)
        root = self._root()
        wanted = {frozenset(name) for name in settings.named}
        for states in self._states:
            if wanted <= set(states):
                return changes_of(settings, root, states)
        return changes_of(settings, root, self._states[0])
