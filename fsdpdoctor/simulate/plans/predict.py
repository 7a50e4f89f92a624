"""What a plan would give for a run: predictions, each with its error bar.

[Note: Error bars]
The replay of the run as it was shows what the simulator does not know. That rest is
taken to stay: a prediction is the simulated step plus it. The bar is the largest of
the replay's error, the spread of the measured steps and MIN_ERROR, as a share of the
measured or of the predicted step, whichever is longer: what is off by a share is off by
more in a longer step. On top comes the fit's own residual, on the exposed time that a
plan is said to change; where a run's collectives are all of one size, which no
replay can see, what the guess of their latency may change; with streams, what compute
may gain or lose because more or fewer collectives run beside it, and what it may gain
from narrower numbers. Where steps run different units the bar reaches from the usual
steps to the others. Groups on links that no collective of the run used, as inside a
host where all went between hosts, may be as slow as those that it used, or cost
nothing: the bar reaches to both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.quantities import signed_percent
from fsdpdoctor.simulate.calibration.calibrate import Calibration
from fsdpdoctor.simulate.engine.opcodes import GATHER, REDUCE, durations
from fsdpdoctor.simulate.engine.schedule import bare_program
from fsdpdoctor.simulate.engine.simulate import Outcome, simulate
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.plans.change_step import ChangedStep, changed, forbidden

MAX_REPLAY_ERROR = 0.10
"""Of the step: a replay that is off by more explains the run too badly to change it."""

MIN_ERROR = 0.01
"""Of the step. Runs of one job on a quiet machine differ by about as much."""

SLOWED = 0.15
"""Of the time in which collectives run beside compute. They hold some of a device's
multiprocessors meanwhile: NCCL's 16 channels are 12 % of an H100's, and more share its
memory's bandwidth. No single run shows by how much compute is slower for it."""

NARROWER = 16
"""How many times as fast compute may be on a device in a narrower dtype: an H100
multiplies float32 with 67 TFLOP/s and bfloat16 with 989. It depends on the model, and
a run of the wider one does not show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one plan gives."""

    plan: Plan
    step: Step  # as the plan makes it
    step_ns: int
    error_ns: int  # to either side, see [Note: Error bars]
    gain_ns: int  # against the measured step
    exposed_ns: Mapping[str, int]  # by kind of collective
    peak_bytes: int | None  # None: the run's own memory is not known
    memory_cost_bytes: int  # of parameters, buffers and gradients, at their peak
    gathered_peak_bytes: int
    assumptions: tuple[str, ...]
    forbidden: str | None  # why it should not be done, though it can be simulated
    sooner_ns: int = 0  # of `error_ns`, what can only make the step shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A run replayed as it was, and how far off that is."""

    calibration: Calibration
    outcome: Outcome
    hidden_ns: int  # how long collectives ran beside compute
    error: float  # signed share of the measured step
    lane_errors: Mapping[str, float]  # exposed time by kind, as shares of the step

    @property
    def usable(self) -> bool:
        """Whether predictions may be made from it."""
        return abs(self.error) <= MAX_REPLAY_ERROR

    @property
    def why_withheld(self) -> str:
        """The sentence for a user who asks for predictions that cannot be made."""
        measured = self.calibration.measured_ns
        return (
            f"the replay of this run is off by {signed_percent(self.error)} "
            f"({self.outcome.step_ns / 1e6:.1f} ms against {measured / 1e6:.1f} ms "
            f"measured), more than {MAX_REPLAY_ERROR:.0%}: predictions are withheld. "
            "Record more steps on a quieter machine, or with --every 1"
        )


def _outcome(step: Step) -> tuple[Outcome, int]:
    """A simulated step, and how long collectives ran in it unseen."""
    program = bare_program(step)
    outcome, ns = simulate(step, program), durations(step)
    wires = 0
    for op in program.ops:
        if op[0] == GATHER:
            wires += ns[op[4]]
        elif op[0] == REDUCE:
            wires += sum(ns[at] for at in (op[4], op[6]) if at >= 0)
    return outcome, wires - outcome.exposed.total_ns


def _slowed_share(step: Step) -> float:
    """Without streams nothing is computed beside a blocking collective."""
    return 0.0 if step.blocking else SLOWED


def _varying(calibration: Calibration) -> tuple[str, ...]:
    """What a reader must know of a run whose steps are not all alike."""
    if not calibration.unlike:
        return ()
    names = calibration.ran_at_times
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    what = f"run different units ({some} only at times)" if names else "are not alike"
    return (
        f"steps of this run {what}: the error reaches from the usual to the others",
    )


def replay(calibration: Calibration) -> Replay:
    """Simulate a run as it was."""
    outcome, hidden_ns = _outcome(calibration.step)
    measured = max(calibration.measured_ns, 1)
    return Replay(
        calibration=calibration,
        outcome=outcome,
        hidden_ns=hidden_ns,
        error=outcome.step_ns / measured - 1,
        lane_errors={
            kind: (by_kind - calibration.exposed_ns[kind]) / measured
            for kind, by_kind in exposed_by_kind(outcome).items()
        },
    )


def exposed_by_kind(outcome: Outcome) -> dict[str, int]:
    """Exposed time, by the names that reports use."""
    exposed = outcome.exposed
    return {
        "all_gather": exposed.all_gather_ns,
        "reduce_scatter": exposed.reduce_scatter_ns,
        "all_reduce": exposed.all_reduce_ns,
    }


def predict(base: Replay, plan: Plan) -> Prediction:
    """The run under a plan. Raises UsageError where the plan does not fit it."""
    calibration = base.calibration
    made = changed(plan, calibration.step, calibration.constraints)
    outcome, hidden_ns = _outcome(made.step)
    unexplained = calibration.measured_ns - base.outcome.step_ns
    step_ns = outcome.step_ns + unexplained
    exposed = exposed_by_kind(outcome)
    known = calibration.step.resident_bytes > 0
    sooner_ns = _sooner_ns(calibration.step, made.step, outcome)
    return Prediction(
        plan=plan,
        step=made.step,
        step_ns=step_ns,
        error_ns=_error_ns(base, exposed, step_ns)
        + _guessed_ns(base, plan, outcome)
        + _unseen_ns(made, outcome)
        + round(_slowed_share(made.step) * abs(hidden_ns - base.hidden_ns))
        + sooner_ns,
        gain_ns=calibration.measured_ns - step_ns,
        exposed_ns=exposed,
        peak_bytes=outcome.peak_bytes if known else None,
        memory_cost_bytes=outcome.peak_bytes - base.outcome.peak_bytes,
        gathered_peak_bytes=outcome.gathered_peak_bytes,
        assumptions=(*made.assumptions, *_varying(calibration)),
        forbidden=forbidden(plan, calibration.step),
        sooner_ns=sooner_ns,
    )


def _sooner_ns(before: Step, after: Step, outcome: Outcome) -> int:
    """How much shorter the changed step may be than it is said to be, for compute in
    narrower numbers.
    """
    now, then = (max(u.gather_itemsize for u in s.units) for s in (before, after))
    if after.blocking or then >= now:
        return 0
    times = ("forward_ns", "backward_ns", "recompute_ns")
    segments = tuple(
        replace(one, **{name: getattr(one, name) // NARROWER for name in times})
        for one in after.segments
    )
    fastest = simulate(replace(after, segments=segments))
    return max(outcome.step_ns - fastest.step_ns, 0)


def _error_ns(base: Replay, exposed: Mapping[str, int], step_ns: int) -> int:
    calibration = base.calibration
    share = max(abs(base.error), calibration.spread, calibration.unlike, MIN_ERROR)
    total = share * max(calibration.measured_ns, step_ns)
    before = exposed_by_kind(base.outcome)
    for kind, fit in calibration.fits.items():
        if kind in before:
            total += fit.residual_share * abs(exposed[kind] - before[kind])
    return round(total)


def _guessed_ns(base: Replay, plan: Plan, outcome: Outcome) -> int:
    """How far the step may be off because a wire's latency is a guess.

    It lies between none and half of what a collective takes, see `fit_comm_cost`: the
    plan is simulated with both.
    """
    calibration = base.calibration
    guesses: Any = {
        kind: fit.guesses for kind, fit in calibration.fits.items() if fit.guesses
    }
    worst = 0
    for end in range(2 if guesses else 0):
        wires = replace(
            calibration.step.wires, **{kind: one[end] for kind, one in guesses.items()}
        )
        step = replace(calibration.step, wires=wires)
        other = simulate(changed(plan, step, calibration.constraints).step)
        worst = max(worst, abs(other.step_ns - outcome.step_ns))
    return worst


FREE_BYTES_PER_SECOND = 1e15


def _unseen_ns(made: ChangedStep, outcome: Outcome) -> int:
    """How far the step may be off because it uses links that the run did not."""
    worst = 0
    for end in range(2 if made.unseen else 0):
        wires = made.step.wires
        for kind, times in made.unseen.items():
            wire = getattr(wires, kind)
            rate = FREE_BYTES_PER_SECOND if end else wire.bytes_per_second / times
            wires = replace(wires, **{kind: replace(wire, bytes_per_second=rate)})
        other = simulate(replace(made.step, wires=wires))
        worst = max(worst, abs(other.step_ns - outcome.step_ns))
    return worst
