"""Simulate a step: how long it takes, what is exposed, what memory it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsdpdoctor.simulate.engine.opcodes import Program, durations
from fsdpdoctor.simulate.engine.schedule import bare_program
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.engine.timing import Clock, Exposed, Walk, blocking, streams

WARM_UP_STEPS = 1
"""With streams the host's lead carries over from step to step: a step is taken
after this many others. A host that waits itself has no lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one step comes to."""

    step_ns: int
    exposed: Exposed
    peak_bytes: int  # of everything: resident, FSDP2's, and the segments' own
    gathered_peak_bytes: int  # of unsharded parameters alone


def simulate(step: Step, plan: Program | None = None) -> Outcome:
    """One step, in the steady state.

    `plan` is the step's program where the caller has it already: it stays the same
    as long as only durations change.
    """
    plan = plan or bare_program(step)
    ns = durations(step)
    walks = walk(step, plan, ns, 1)
    start, last = walks[0][0], walks[-1][1]
    return Outcome(
        step_ns=last.end.compute_ns - start.compute_ns,
        exposed=last.exposed,
        peak_bytes=plan.peak_bytes,
        gathered_peak_bytes=plan.gathered_peak_bytes,
    )


def walk(
    step: Step, plan: Program, ns: Sequence[int], steps: int
) -> list[tuple[Clock, Walk]]:
    """Consecutive steps, each with the clock it began at, after warm-up."""
    run = blocking if step.blocking else streams
    clock, result = Clock(0, 0), []
    warm = 0 if step.blocking else WARM_UP_STEPS
    for at in range(warm + steps):
        walked = run(plan, ns, clock)
        if at >= warm:
            result.append((clock, walked))
        clock = walked.end
    return result
