"""Ranks what `run --autotune` may try: a process beside the training, which waits for
enough of the record, replays it, searches, leaves its answer in the run's folder, and
ends. See [Note: Beside the training].
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.cli.processes.beside import begin_beside
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.quantities import ms, signed_percent
from fsdpdoctor.recorder.autotune.ranking import RANKED, Candidate, Ranking
from fsdpdoctor.run import open_run
from fsdpdoctor.simulate.plans.forecast import code_of, replay_run
from fsdpdoctor.simulate.plans.in_place import IN_PLACE, InPlaceSearch
from fsdpdoctor.simulate.plans.predict import Prediction, Replay
from fsdpdoctor.simulate.plans.search import search
from fsdpdoctor.simulate.plans.settings import settings

ENOUGH_STEPS = 5
"""Judged ones, on each rank: a median of fewer may be that of a disturbed step."""

LOOK_S = 1.0
LONGEST_S = 120.0
"""Of searching. A model of a hundred units takes some ten seconds."""

OTHERS = 3
"""Changes that need a new start, of which those that promise most are named."""


def rank_candidates(folder: Path, pipe: int) -> None:
    """Wait, search, write. Without enough steps it ends with the training."""
    ended = begin_beside(folder, pipe)
    if ended is None:
        return
    ranking = _ranking(folder, ended)
    if ranking is not None:
        write_ranking(folder, ranking)


def write_ranking(folder: Path, ranking: Ranking) -> None:
    """Whole or not at all: it is read as soon as it is there."""
    path = folder / RANKED
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(ranking), indent=1) + "\n")
    new.replace(path)


def _ranking(folder: Path, ended: threading.Event) -> Ranking | None:
    while not ended.wait(LOOK_S):
        if (found := ranking_of(folder)) is not None:
            return found
    return None


def ranking_of(folder: Path) -> Ranking | None:
    """Of a run's record; None: there is too little of it yet."""
    try:
        run = open_run(folder)
        measures = measure(run)
    except FsdpDoctorError:
        return None  # the first record is being written
    judged = [len(rank.judged_steps) for rank in measures.ranks]
    if min(judged, default=0) < ENOUGH_STEPS:
        return None
    try:
        return ranked(replay_run(run, measures))
    except FsdpDoctorError as error:
        return Ranking(measured_ns=0, withheld=str(error))


def ranked(base: Replay) -> Ranking:
    """What promises most, of all that a running job can be told."""
    measured_ns = base.calibration.measured_ns
    if not base.usable:
        return Ranking(measured_ns=measured_ns, withheld=base.why_withheld)
    ends = time.monotonic() + LONGEST_S
    in_place = InPlaceSearch(
        base=base,
        room_bytes=_room_bytes(base),
        going_on=lambda: time.monotonic() < ends,
    )
    found = in_place.candidates()
    return Ranking(
        measured_ns=measured_ns,
        candidates=tuple(_candidate(base, one) for one in found),
        rungs=tuple(_candidate(base, one) for one in in_place.rungs()),
        others=tuple(_others(base, max((p.gain_ns for p in found), default=0))),
    )


def _room_bytes(base: Replay) -> int | None:
    """What the device has beyond the run's own peak; ranks ask their allocators, too,
    before anything is tried.
    """
    calibration = base.calibration
    device = calibration.constraints.device_bytes
    if device is None or calibration.step.resident_bytes <= 0:
        return None
    return max(device - base.outcome.peak_bytes, 0)


def _candidate(base: Replay, prediction: Prediction) -> Candidate:
    plan = prediction.plan
    return Candidate(
        summary=_summary(plan),
        plan=plan.changes,
        apply=settings(plan, prediction.step, base.calibration.constraints),
        code=code_of(base, prediction),
        step_ns=prediction.step_ns,
        bytes=max(prediction.memory_cost_bytes, 0),
    )


def _summary(plan: Plan) -> str:
    words = str(plan)
    return words if len(words) <= 160 else f"{words[:150]} ..."


def _others(base: Replay, best_ns: int) -> list[str]:
    """Changes that need a new start, or change numbers, and promise more."""
    found = [
        one
        for one in search(base, base.calibration.constraints.device_bytes)
        if not set(one.plan.changes) <= IN_PLACE and one.gain_ns > best_ns
    ]
    found.sort(key=lambda one: one.step_ns)
    measured_ns = base.calibration.measured_ns
    return [
        f"{one.plan}: {ms(one.step_ns)} a step predicted, "
        f"{signed_percent(-one.gain_ns / measured_ns)}"
        for one in found[:OTHERS]
    ]


if __name__ == "__main__":
    rank_candidates(Path(sys.argv[1]), int(sys.argv[2]))
