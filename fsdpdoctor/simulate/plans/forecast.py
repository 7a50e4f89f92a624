"""From a run to its replay and predictions: what `whatif` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.stall_causes import CAUSES, split_stalls
from fsdpdoctor.analysis.timeline import timeline_of
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.errors import InputError
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.network import noted_wire
from fsdpdoctor.run import Run
from fsdpdoctor.schema import NO_TIME
from fsdpdoctor.simulate.calibration.calibrate import calibrate, check_evidence
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.plan_code import plan_code
from fsdpdoctor.simulate.plans.predict import (
    Prediction,
    Replay,
    exposed_by_kind,
    predict,
    replay,
)
from fsdpdoctor.storage.json_text import json_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A run replayed, and what was predicted from it."""

    base: Replay
    predictions: tuple[Prediction, ...]

    @property
    def withheld(self) -> str | None:
        """Why there are no predictions."""
        return None if self.base.usable else self.base.why_withheld


def replay_run(run: Run, measures: Measures, slowest: int | None = None) -> Replay:
    """Replay the rank that the others wait for: `slowest`, where that is known already.
    Raises InputError where none can be.
    """
    if not measures.ranks:
        raise InputError("no rank's record can be read: there is nothing to replay")
    rank = slowest_rank(measures) if slowest is None else slowest
    known = measures.of(rank)
    check_evidence(known.evidence)  # before a trace is read once more
    source = next(s for s in run.sources if s.rank == rank)
    calibration = calibrate(source.load(), known)
    constraints = replace(
        calibration.constraints,
        available=run.header.available or None,
        units=known.units,
        world_size=run.header.world_size,
        network=noted_wire(run.header.notes),
    )
    return replay(replace(calibration, constraints=constraints))


def slowest_rank(measures: Measures) -> int:
    """The rank that waits least for others: it sets the pace of all. One without a
    judged step, whose record breaks off early, cannot be replayed.
    """
    judged = [rank.rank for rank in measures.ranks if len(rank.judged_steps)]
    waits = {
        rank: int(measures.causes[rank]["straggler"].sum())
        for rank in judged or measures.rank_numbers
    }
    return min(waits, key=lambda rank: (waits[rank], rank))


def forecast(base: Replay, plans: Sequence[Plan]) -> Forecast:
    """Predict each plan, unless the replay is too far off. Raises UsageError."""
    predictions = [predict(base, plan) for plan in plans] if base.usable else []
    return Forecast(base=base, predictions=tuple(predictions))


def exposed_by_cause(step: Step) -> dict[str, int]:
    """A simulated step's exposed time, split as the analyzer splits it."""
    data = record(step, 1)
    line = timeline_of(data, data.steps[0])
    unknown: Int64s = line.collectives.start_ns * 0 + NO_TIME
    parts = split_stalls(line.collectives, line.stalls, unknown)
    return {cause: int(parts[cause].sum()) for cause in CAUSES}


def encode_forecast(found: Forecast, dialect: str = "fully_shard") -> str:
    """The JSON of `whatif --json`, its code in one of `frameworks.DIALECTS`."""
    base = found.base
    calibration, outcome = base.calibration, base.outcome
    known = calibration.step.resident_bytes > 0
    content: dict[str, Any] = {
        "schema_version": 1,
        "replay_error": base.error,
        "replay_error_by_lane": dict(base.lane_errors),
        "withheld": found.withheld,
        "baseline": {
            "rank": calibration.rank,
            "steps": calibration.steps,
            "measured_step_ns": calibration.measured_ns,
            "step_ns": outcome.step_ns,
            "exposed_ns": exposed_by_kind(outcome),
            "measured_exposed_ns": dict(calibration.exposed_ns),
            "peak_bytes": outcome.peak_bytes if known else None,
            "gathered_peak_bytes": outcome.gathered_peak_bytes,
            "wires": {
                kind: {
                    "latency_ns": fit.wire.latency_ns,
                    "bytes_per_second": fit.wire.bytes_per_second,
                    "residual_share": fit.residual_share,
                    "collectives": fit.count,
                    "sizes": fit.sizes,
                }
                for kind, fit in calibration.fits.items()
            },
        },
        "predictions": [_prediction(p, dialect, base) for p in found.predictions],
    }
    return json_text(content, indent=2)


def _prediction(p: Prediction, dialect: str, base: Replay) -> Mapping[str, Any]:
    return {
        "plan": p.plan.changes,
        "summary": str(p.plan),
        "step_ns": p.step_ns,
        "error_ns": p.error_ns,
        "gain_ns": p.gain_ns,
        "exposed_ns": {**p.exposed_ns, "by_cause": exposed_by_cause(p.step)},
        "peak_bytes": p.peak_bytes,
        "memory_cost_bytes": p.memory_cost_bytes,
        "gathered_peak_bytes": p.gathered_peak_bytes,
        "assumptions": list(p.assumptions),
        "forbidden": p.forbidden,
        "code": code_of(base, p, dialect),
    }


def code_of(base: Replay, p: Prediction, dialect: str = "fully_shard") -> str:
    """The lines that make a prediction's plan true for the run it was made from."""
    known = base.calibration
    return plan_code(p.plan, known.step, p.step, known.constraints, dialect)
