"""A recorded step until it can be written."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from fsdpdoctor.recorder.fsdp2 import unit_specs
from fsdpdoctor.recorder.steps.step_bounds import Moment, StepBounds
from fsdpdoctor.recorder.steps.unsampled_steps import TimedSteps
from fsdpdoctor.recorder.storage.clocks import Clock
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.recorder.storage.step_buffer import Columns, spans_of
from fsdpdoctor.schema import (
    UNKNOWN,
    CallSites,
    MemorySamples,
    StackSamples,
    StepRecord,
)


@dataclass(slots=True, kw_only=True)
class PendingStep:
    """A recorded step whose device times are not all there yet."""

    bounds: StepBounds
    spans: Columns
    memory: Any
    counters: Any
    call_sites: CallSites
    stack_samples: StackSamples
    timed: TimedSteps
    names: list[str]

    def record(self, clock: Clock) -> StepRecord:
        """The step as it is written, once its device times are there."""
        bounds, resolve = self.bounds, clock.resolve
        return StepRecord(
            step=bounds.step,
            start_ns=unit_specs.one_time(resolve, bounds.start.tick),
            end_ns=unit_specs.one_time(resolve, bounds.end.tick),
            host_start_ns=bounds.start.host_ns,
            host_end_ns=bounds.end.host_ns,
            micro_batches=bounds.micro_batches,
            tokens=bounds.tokens,
            samples=bounds.samples,
            recorder_ns=bounds.cost_ns,
            complete=bounds.complete,
            spans=spans_of(self.spans, resolve),
            memory=MemorySamples(
                **(self.memory | {"time_ns": resolve(self.memory["time_ns"])})
            ),
            counters=self.counters,
            call_sites=self.call_sites,
            stack_samples=self.stack_samples,
            unrecorded=self.timed.table(clock),
        )


def rest_of(rec: Recording, timed: TimedSteps) -> StepRecord:
    """What came after the last recorded step: an empty, incomplete one."""
    now = perf_counter_ns()
    end = timed.last.end if timed.last else Moment(host_ns=now, tick=now)
    at = unit_specs.one_time(rec.clock.resolve, end.tick)
    return StepRecord(
        step=rec.step + 1,
        start_ns=at,
        end_ns=at,
        host_start_ns=end.host_ns,
        host_end_ns=end.host_ns,
        micro_batches=UNKNOWN,
        complete=False,
        counters=rec.counters.take(len(rec.counters)),
        unrecorded=timed.table(rec.clock),
    )
