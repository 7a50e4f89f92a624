"""A recording from attach to detach: puts hooks in, writes steps down, says how
it ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from fsdpdoctor.rank_end import RankEnd
from fsdpdoctor.recorder import border, phases
from fsdpdoctor.recorder.dynamo_skips import skip_ours
from fsdpdoctor.recorder.forks import see_forks
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.bypassed_hooks import bypassed_method
from fsdpdoctor.recorder.fsdp2.hook_context import HookContext
from fsdpdoctor.recorder.fsdp2.installed_hooks import FsdpHooks
from fsdpdoctor.recorder.fsdp2.param_group_hooks import UnitHooks
from fsdpdoctor.recorder.fsdp2.process_groups import Groups
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.host.collective_calls import CollectiveCalls
from fsdpdoctor.recorder.host.host_hooks import HostHooks
from fsdpdoctor.recorder.host.model_spec import ModelWatch, plain_device
from fsdpdoctor.recorder.host.plain_roots import PlainRoots
from fsdpdoctor.recorder.host.rank_ending import Noting, rank_end
from fsdpdoctor.recorder.host.replica_state import ReplicaWatch
from fsdpdoctor.recorder.host.stack_sampler import StackSampler
from fsdpdoctor.recorder.host.stall_watch import StallWatch
from fsdpdoctor.recorder.host.start_watch import StartWatch
from fsdpdoctor.recorder.memory.memory_step import MemoryWatch
from fsdpdoctor.recorder.own_threads import unsignalled
from fsdpdoctor.recorder.patching import ErrorBorder, unasked
from fsdpdoctor.recorder.rank_header import Headers, place
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.steps.pending_step import PendingStep, rest_of
from fsdpdoctor.recorder.steps.step_bounds import StepBounds
from fsdpdoctor.recorder.steps.steps import OWN_OPTIMIZER, Steps
from fsdpdoctor.recorder.steps.unsampled_steps import TimedSteps
from fsdpdoctor.recorder.storage.clocks import (
    HostClock,
    arrives,
    check_device,
    device_clock,
)
from fsdpdoctor.recorder.storage.disk_thread import DiskThread
from fsdpdoctor.recorder.storage.memory_samples import memory_of
from fsdpdoctor.recorder.storage.recording import BufferPosition, Recording
from fsdpdoctor.recorder.storage.size_limit import LimitedWriter, writer_of
from fsdpdoctor.run_writer import Heartbeat
from fsdpdoctor.schema import (
    COUNTER_DIRECT_METHODS,
    Phase,
    RankHeader,
    StepRecord,
)


class Session:
    """The one recording of this process."""

    def __init__(self, plan: RecordingConfig) -> None:
        self._plan = plan
        self._groups = Groups()
        self._names = internals.TorchSymbols()
        self._guard = ErrorBorder(self._stop)
        plan.folder.mkdir(parents=True, exist_ok=True)
        heartbeat = Heartbeat(plan.folder, place()[0])
        self._disk = DiskThread(self._flush)
        self._rec = Recording(HostClock(), self._guard, heartbeat)
        self._device: str | None = None  # of the units, once the first is seen
        self._units = Units(self._rec, self.device_seen)
        self._steps = Steps(self._rec, self._units, plan.sampling, self)
        self._memory = memory_of(device=False)
        self._unit_hooks = UnitHooks(
            self._rec, self._units, self._memory, self._units.live
        )
        self._model = ModelWatch(self._units, self._groups)
        self._replicas = ReplicaWatch(self._model, self._units)
        self._host = HostHooks(self._rec, self._steps, self._model)
        self._counted = MemoryWatch(
            self._rec, self._units, self._model, self._host.within, self._names
        )
        self._stacks = StackSampler(self._rec, self._host.within)
        self._roots = PlainRoots(self._rec, self._steps, self._model)
        context = HookContext(self._rec, self._units, self._groups, self._names)
        self._hooks = FsdpHooks(context)
        self._calls = CollectiveCalls(
            context, self._host.within, self._hooks.unless_own
        )
        self._pending: deque[PendingStep] = deque()
        self._timed = TimedSteps()
        self._ended = "running"
        self._end: RankEnd | None = None
        self.noting = Noting()
        self._ending = threading.Lock()
        self._warnings: list[str] = []
        self._attached = False
        self._signature: object = None  # of the model as it was described last
        self._samples: object = None  # of replicas and memory, in that description
        self._start = StartWatch(self._rec)
        watches = self._model, self._replicas, self._counted, self._start
        self._headers = Headers(
            plan, self._rec, self._units, self._groups, *watches, self._names
        )
        self._headers.write_run()
        self._last_header = self._on_disk = self._header()
        self._writer = writer_of(plan.folder, self._last_header, plan.max_bytes)
        self._stall_watch = StallWatch(
            self._rec, plan.folder, place()[0], plan.hang_after_s
        )

    def _flush(self) -> None:  # untraced: its own thread
        self._hooks.tick()
        self._rec.heartbeat.flush()

    @property
    def folder(self) -> Path:
        return self._plan.folder

    @property
    def trained(self) -> bool:
        """Whether anything was trained in this process."""
        return bool(self._rec.step or self._units.all)

    def warn(self, words: str) -> None:
        """Put a word into the record, with its next header."""
        self._warnings.append(words)

    # Lifecycle

    def attach(self) -> None:
        """Put the hooks in place and start the first step."""
        self._attached = True
        try:
            self._disk.start()
            self._warnings += [lack.words for lack in self._names.lacks]
            if self._names.found:
                self._hooks.build(self._unit_hooks, self._steps, self._host)
            else:
                self._warnings.append(internals.NO_FSDP2)
            self._host.attach()
            self._start.attach(self._names)
            self._roots.attach()
            self._hooks.install(self._rec.on)
            self._steps.begin()
            self._stall_watch.start()
            see_forks(self)
            skip_ours()
        except Exception as error:
            self._guard.fail(error)

    def detach(self, ended: str = "done", error: BaseException | None = None) -> None:
        """Write what is left, and take the hooks out. Later calls do nothing.

        `error` is what ended the script.
        """
        try:
            self._stall_watch.stop(moved_on=ended == "done")
        except Exception as failed:
            self._warnings.append(f"stalls are not told: {failed}")
        self._note_end(ended, error)
        if not self._attached:
            self._say_more(ended)
            return
        if self._ended == "running":
            self._ended = ended  # a signal from here on only follows from it
        try:
            self._steps.finish()
            self._note_bypass(error)
            self._drain(wait=True)
        except Exception as lost:
            self._warnings.append(f"the last step was lost: {lost}")
        self._remove_hooks()
        self.say_ended(ended)
        self._close()

    def _close(self) -> None:
        """On a full disk even this fails, and the script's result stands."""
        failed = self._guard.failed
        if not self._disk.finish():
            return  # the thread is still in the file
        self._disk.stop()
        for close in (
            self._rec.heartbeat.flush,
            self._rec.heartbeat.close,
            self._writer.close,
        ):
            try:
                unsignalled()(close)()
            except Exception as error:
                if not failed:  # else it has been said why
                    border.say(f"fsdpdoctor: the record has no end: {error}")
                failed = True

    def say_ended(self, ended: str, error: BaseException | None = None) -> None:
        """Put into the record how this rank ended: the first that is said holds."""
        if self._ended == "running":
            self._ended = ended
            with self.noting:
                self._note_end(ended, error)
        else:
            self.noting.wait()
        lost = self._disk.beat_error
        if lost is not None and lost not in self._warnings:
            self._warnings.append(lost)
        try:
            header = self._header()
        except Exception as failed:
            # The script may have torn down what the header describes.
            self._warnings.append(f"the units were last described before: {failed}")
            header = replace(
                self._last_header,
                ended=self._ended,
                end=self._end,
                warnings=tuple(self._warnings),
            )
        warnings = header.warnings
        # A full disk has room for no more than what is there already, and a word. A
        # signal's thread may write a header, too.
        with self._ending:
            for last, said in ((header, warnings), (self._on_disk, warnings[-1:])):
                try:
                    self._write_header(
                        replace(last, ended=self._ended, end=self._end, warnings=said)
                    )
                    return
                except Exception:
                    continue

    def _note_end(self, ended: str, error: BaseException | None) -> None:
        if self._end is None:
            with contextlib.suppress(Exception):  # the end comes, described or not
                self._hooks.catch_up_beside()
                position = self._stall_watch.position()
                self._end = rank_end(ended, error, position, self._rec.unix_ns())

    def _write_header(self, header: RankHeader) -> None:
        self._last_header = header
        self._disk.write(lambda: self._written(header))

    def _written(self, header: RankHeader) -> None:
        self._writer.write_header(header)
        self._on_disk = header

    def _note_bypass(self, error: BaseException | None) -> None:
        method = bypassed_method(error, self._names.module_class)
        if method is not None:
            name = self._rec.names.id(f"{COUNTER_DIRECT_METHODS}: {method}")
            self._rec.counters.add(name, perf_counter_ns(), 1)

    def _say_more(self, ended: str) -> None:
        """A rank whose recording had stopped has ended, of what stopped that too."""
        if self._ended.startswith("detached") and ended != "done":
            self._ended = "running"
            self.say_ended(ended)

    def step(self) -> None:
        """The user says that a step ends here."""
        if self._attached:
            self._guard.run(self._steps.step)

    def _stop(self, reason: str) -> None:
        """An error of ours: out of the way, at once."""
        if not self._attached:
            return
        self._remove_hooks()
        self._warnings.append(reason)
        self.say_ended(reason)
        self._close()
        self._pending.clear()
        self._rec.drop(self._rec.rows())

    def _remove_hooks(self) -> None:
        self._attached = False
        self._rec.on = False
        for remove in (
            self._counted.stop,
            self._start.detach,
            self._hooks.undo,
            self._host.detach,
            lambda: self._calls.turn(False),
            lambda: self._stacks.turn(False),
            self._roots.detach,
        ):
            try:
                remove()
            except Exception as error:
                self._warnings.append(f"some hooks are still in place: {error}")

    def forked(self) -> None:
        """A forked child is no rank: it takes the hooks out and writes nothing."""
        if self._attached:
            self._remove_hooks()

    def device_seen(self, device: str) -> None:
        """The units' device, or a plain model's, is known: it decides on the clock.

        Called before anything of a unit is marked; what was marked of the host
        before stays where it is, on the same axis.
        """
        if self._device is None:
            self._device = device
            if device == "cuda":
                self._use_device()
        check_device(device, self._device)

    def _use_device(self) -> None:
        self._rec.use(device_clock())
        self._memory = self._unit_hooks.memory = memory_of(device=True)
        self._rec.clock.rebase()
        self._host.turn(self._rec.on)
        self._headers.write_run()

    # Sink, see `steps`

    def turn(self, on: bool) -> None:
        """Swap the light hooks for the full ones, or back."""
        if not self._attached:
            return  # what had begun before the recording stopped ends after it
        self._rec.on = on
        self._hooks.install(self._rec.on)
        self._host.turn(on)
        self._calls.turn(on)
        self._stacks.turn(on)

    def step_ends(self) -> None:
        """A recorded step is about to end."""
        self._counted.boundary()

    def boundary(self) -> None:
        """A recorded step ends."""
        self._calls.boundary()
        self._host.count()
        self._memory.count(self._rec)

    def step_began(self) -> None:
        """The next step begins where this one ended."""
        self._stacks.edge()

    def pass_boundary(self, phase: Phase) -> None:
        """A root's forward begins or ends, or its backward ends."""
        self._stacks.edge(ends_pass=phase == phases.BACKWARD)
        self._counted.passed(phase)
        self._memory.sample_pass(self._rec, phase)

    def tree_known(self, root_state: Any) -> None:
        """Describe the units that FSDP2 has just initialised."""
        self._units.add_tree(root_state)
        self._model.add_root(root_state)
        self._replicas.before_first_step()
        self._roots.fsdp2_seen()
        self._hooks.tree_known(self._rec.on)
        self._describe()

    def root_forward(self, module: Any) -> None:
        """A micro-batch begins."""
        self._start.forward_began()
        if self._model.saw_root(module):
            self._replicas.before_first_step()
        if self._device is None and (device := plain_device(module)) is not None:
            self.device_seen(device)
        self._counted.root_forward(self._device)

    def step_recorded(
        self, bounds: StepBounds, rows: BufferPosition, of_pass: dict[int, int]
    ) -> None:
        """Keep a step until its device times are there; write those that are."""
        self._start.step_ended(bounds.end.host_ns)
        rec = self._rec
        timed, self._timed = self._timed, TimedSteps()
        self._pending.append(
            PendingStep(
                bounds=bounds,
                spans=rec.spans.detach(rows.spans, of_pass),
                memory=rec.memory.detach(rows.memory),
                counters=rec.counters.take(rows.counters),
                call_sites=rec.call_sites.take(rows.call_sites, rec.names),
                stack_samples=rec.stacks.take(rows.stacks, rec.names),
                timed=timed,
                names=rec.names.take_new(),
            )
        )
        self._replicas.step_recorded(bounds.step)
        self._drain(wait=False)
        self._describe()

    def step_timed(self, bounds: StepBounds) -> None:
        """Note an unrecorded step, to be written with the next recorded one."""
        self._start.step_ended(bounds.end.host_ns)
        self._timed.add(bounds)
        if self._timed.many_marked:
            self._drain(wait=False)
            if not self._pending:  # whose ticks come before
                self._timed.settle(self._rec.clock)

    # Writing

    def _drain(self, *, wait: bool) -> None:
        if wait and self._pending:
            self._await_device(self._pending[-1].bounds.end.tick)
        while self._pending:
            pending = self._pending[0]
            if not self._rec.clock.ready(pending.bounds.end.tick):
                return
            self._write_step(pending.record(self._rec.clock), pending.names)
            # One step back: spans that began in this one end in the next.
            self._rec.clock.release(pending.bounds.start.tick)
            self._pending.popleft()
        if wait and (self._timed or len(self._rec.counters)):
            self._write_rest()

    def _await_device(self, tick: int) -> None:
        if not arrives(self._rec.clock, tick):
            self._warnings.append(
                f"the device did not get to the end of {len(self._pending)} steps, "
                "which were lost"
            )

    def _write_step(self, record: StepRecord, names: list[str]) -> None:
        self._disk.write(lambda: self._writer.write_step(record, names))
        if isinstance(self._writer, LimitedWriter) and self._writer.is_full:
            self._disk.later(self._writer.thin)

    def _write_rest(self) -> None:
        """What came after the last recorded step: an empty, incomplete one."""
        timed, self._timed = self._timed, TimedSteps()
        self._write_step(rest_of(self._rec, timed), self._rec.names.take_new())

    def _describe(self) -> None:
        """Rewrite the rank's header where the effective tree has changed. Nobody waits
        for it: the next step comes after it on the disk.
        """
        before, self._signature = self._signature, self._model.signature()
        now = self._replicas.count, self._counted.spec is not None
        samples, self._samples = self._samples, now
        if (before, samples) != (self._signature, now):
            known = self._last_header if before == self._signature else None
            header = self._last_header = self._header(known)
            self._disk.later(lambda: self._written(header))

    def _header(self, before: RankHeader | None = None) -> RankHeader:
        own = [OWN_OPTIMIZER] if self._steps.own else ()
        warnings = (*self._warnings, *own, *self._host.lost)
        with unasked():
            return self._headers.of_rank(self._ended, warnings, self._end, before)
