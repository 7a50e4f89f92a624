"""What the What-if page asks of the simulator: a plan from its knobs, its prediction,
and the simulated step as a run that the timeline can show.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from fsdpdoctor.advice import Told, told_costs
from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.changes.plan import save_plan
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.run import in_memory
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.forecast import replay_run
from fsdpdoctor.simulate.plans.predict import Prediction, Replay
from fsdpdoctor.simulate.plans.search import search
from fsdpdoctor.simulate.plans.settings import settings
from fsdpdoctor_dashboard.data.rank_tracks import tracks_of
from fsdpdoctor_dashboard.data.run_registry import Entry, Library, OpenRun
from fsdpdoctor_dashboard.data.store import build_store

KEPT = 4
"""Replays kept at once, one per run that somebody looks at."""


@dataclass(slots=True)
class _Kept:
    """One run's replay, and what was searched from it."""

    replay: Replay | None = None
    found: list[Prediction] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    searching: threading.Lock = field(default_factory=threading.Lock)


class Replays:
    """Replays of open runs, made when first asked for."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def _of(self, run: OpenRun) -> _Kept:
        key = (run.id, run.revision)
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return kept

    def replay(self, run: OpenRun) -> Replay:
        """The run replayed as it was. Raises InputError where it cannot be."""
        kept = self._of(run)
        with kept.lock:
            if kept.replay is None:
                slowest = run.sketches.slowest
                kept.replay = replay_run(run.run, run.measures, slowest)
            return kept.replay

    def search(self, run: OpenRun) -> list[Prediction]:
        """The changes worth making, within the device's memory."""
        base = self.replay(run)
        kept = self._of(run)
        with kept.searching:  # a lock of its own: knobs answer meanwhile
            if kept.found is None:
                kept.found = search(base, base.calibration.constraints.device_bytes)
            return kept.found


def simulated_run(library: Library, run: OpenRun, step: Step, what: str) -> OpenRun:
    """Simulated steps as a run of the library, for the timeline to show."""
    name = f"{run.id}|{run.revision}|{what}|{step!r}"
    run_id = f"simulated-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    header = RunHeader(run_id=run_id, source="simulated", world_size=1)
    made = in_memory(header, [record(step)])
    measures = measure(made)
    # The simulator knows no models: its units are those of the run.
    store = build_store(tracks_of(made, measures, named=run.named), run_id)
    opened = OpenRun(
        entry=Entry(id=run_id, path=Path(run_id)),
        run=made,
        measures=measures,
        report=report_of(measures),
        store=store,
        label=what,
        finished=True,
    )
    library.add(opened)
    return opened


def told(base: Replay, report: Report) -> Told:
    """What a report's advice says that its changes cost in memory."""
    return told_costs(base, (one for row in report.findings for one in row.advice))


def plan_file(prediction: Prediction) -> str:
    """The plan as `run --apply` reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan = prediction.plan
        save_plan(plan, path, settings(plan, prediction.step))
        return path.read_text(encoding="utf-8")
