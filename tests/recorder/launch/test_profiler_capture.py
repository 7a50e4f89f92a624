"""torch.profiler beside the record: both views of the same steps agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.analysis.timeline import Collectives, collectives_of
from fsdpdoctor.detectors import ALL
from fsdpdoctor.errors import UsageError
from fsdpdoctor.importers import import_run
from fsdpdoctor.recorder.launch.profiler_schedule import ProfilerSchedule, capture_of
from fsdpdoctor.recorder.storage.sampling import Adaptive, AroundProfiler, EveryStep
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.run import RankData, Run, in_memory, open_run
from fsdpdoctor.schema import Kind, StepRecord
from tests.rig.changed import replace
from tests.rig.ranks import TRAIN, run_python

RUN = ("-m", "fsdpdoctor", "run", "--no-report")
CAPTURED = [5, 6, 7, 8]
THRESHOLDS = {
    one.code: getattr(import_module(one.find.__module__), "WARNING_SHARE", 0.05)
    for one in ALL
}
"""The share of a step from which each detector speaks, where it has one."""


class Views(NamedTuple):
    """One training, recorded and traced: the same steps of the same ranks."""

    recorded: list[RankData]
    traced: list[RankData]
    headers: tuple[Run, Run]

    def reports(self) -> tuple[Report, Report]:
        """Of both."""
        recorded = in_memory(self.headers[0].header, self.recorded)
        traced = in_memory(self.headers[1].header, self.traced)
        return report_of(measure(recorded)), report_of(measure(traced))

    def steps(self) -> Iterator[tuple[RankData, StepRecord, RankData, StepRecord]]:
        """Each step of each rank, in both."""
        for a, b in zip(self.recorded, self.traced, strict=True):
            for one, other in zip(a.steps, b.steps, strict=True):
                yield a, one, b, other


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Views:
    """Two ranks over gloo, four steps of which torch.profiler records, too."""
    out = tmp_path_factory.mktemp("runs") / "run"
    job = ("--nproc-per-node", "2", "--kineto", "4", "--out", str(out))
    model = ("--hidden", "256", "--layers", "3", "--sequence", "64")
    run_python(*RUN, *job, str(TRAIN), "--steps", "11", *model).ok()
    recorded, traced = open_run(out), import_run([out / "kineto"])
    ours = [
        replace(data, steps=tuple(s for s in data.steps if s.step in CAPTURED))
        for data in recorded.load()
    ]
    return Views(ours, list(traced.load()), (recorded, traced))


def calls(data: RankData, step: StepRecord) -> tuple[Collectives, list[object]]:
    """A step's collectives, and what each is."""
    found = collectives_of(step.spans, step.step)
    kinds, phases = found.kind.tolist(), found.phase.tolist()
    units = [data.unit_name(unit) for unit in found.unit.tolist()]
    return found, list(zip(kinds, units, phases, strict=True))


@pytest.mark.ranks
def test_the_steps_are_the_same(views: Views) -> None:
    """Under one number, on every rank, and the record says that they were slowed."""
    for data in (*views.recorded, *views.traced):
        assert [step.step for step in data.steps] == CAPTURED
    (note,) = views.headers[0].header.notes
    assert note == (
        "torch.profiler was to run in steps 5 to 8 on rank 0, 1, which slows them; the "
        "traces that were taken are in kineto/"
    )


@pytest.mark.ranks
def test_starting_and_writing_are_in_no_recorded_step(views: Views) -> None:
    """The steps before and after the captured ones are left out of the record."""
    for data in views.headers[0].load():
        steps = {step.step for step in data.steps if step.complete}
        assert {4, 9} & steps == set()
        assert {3, *CAPTURED, 10} <= steps


@pytest.mark.ranks
def test_counts_and_order_are_equal(views: Views) -> None:
    """Every collective of every step: kind, unit, phase, in the same order."""
    for a, one, b, other in views.steps():
        ours, theirs = calls(a, one)[1], calls(b, other)[1]
        assert ours == theirs
        assert len(ours) == 11  # 4 units gathered, 3 again, 4 reduced


@pytest.mark.ranks
def test_times_of_all_gathers_agree(views: Views) -> None:
    """Per unit and rank within 5 %, in the step that was disturbed least.

    Each view reads the clock outside the other's reading, so that a process that
    lost the processor between the two is in one of them alone, for milliseconds of
    a collective that takes one.
    """
    ratios: dict[tuple[int, str | None], list[float]] = defaultdict(list)
    for a, one, b, other in views.steps():
        ours, theirs = calls(a, one)[0], calls(b, other)[0]
        for i, kind in enumerate(ours.kind.tolist()):
            if kind == Kind.ALL_GATHER:
                unit = a.unit_name(int(ours.unit[i]))
                ratio = theirs.duration_ns[i] / ours.duration_ns[i]
                ratios[a.rank, unit].append(ratio)

    least = {which: min(abs(r - 1) for r in found) for which, found in ratios.items()}
    assert len(least) == 8
    assert all(off <= 0.05 for off in least.values()), ratios


@pytest.mark.ranks
def test_both_views_find_the_same(views: Views) -> None:
    """What either finds at twice its threshold, the other finds, if it can judge it.

    What costs less is near the threshold, and may stand on both sides. So may FD401:
    in four steps, with more busy processes than cores, who is late is chance, and its
    test of chance may come out on either side of its threshold.
    """
    reports = views.reports()
    unjudged = {one.code for report in reports for one in report.not_judged}

    def found(report: Report, times: float) -> set[tuple[str, str | None]]:
        step_ns = report.step_time_ns.median
        assert step_ns is not None
        return {
            (one.code, one.phase)
            for one in report.findings
            if one.code not in unjudged
            and one.code != "FD401"
            and (one.cost_ns_per_step or 0) >= times * THRESHOLDS[one.code] * step_ns
        }

    ours, theirs = reports
    assert found(ours, 2) - found(theirs, 0) == set()
    assert found(theirs, 2) - found(ours, 0) == set()
    assert ("FD102", "backward") in found(ours, 0)


SCRIPT = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model = fully_shard(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters())
def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""

AROUND = """
with torch.profiler.profile() as mine:
    train(4)
print(len([e for e in mine.events() if e.name == "aten::mm"]))
"""

WITHIN = """
train(3)
with torch.profiler.profile() as mine:
    train(2)
print(len([e for e in mine.events() if e.name == "aten::mm"]))
"""

CUT = """
train(3)
model(torch.ones(2, 4))
print(4)
"""

WHOLE = """
train(3)
print(4)
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (AROUND, "the script's own profiler is running"),
        (WITHIN, "the script started a profiler of its own"),
        (CUT, "the script ended within step 3"),
        (WHOLE, None),
    ],
)
def test_the_script_comes_first(script: str, said: str | None, tmp_path: Path) -> None:
    """Its own profiler sees all that it would; half a step is not written as a whole
    one. Then there is no trace of ours, one sentence says so, and training goes on.
    """
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + script)
    alone = run_python(str(path)).ok()
    options = ("--kineto", "3", "--steps", "1:9", "--out", str(tmp_path / "run"))
    done = run_python(*RUN, *options, str(path)).ok()

    assert done.stdout == alone.stdout
    assert int(done.stdout) >= 2
    sentence = f"took no torch.profiler trace, training goes on: {said}"
    assert (sentence in done.stderr) == (said is not None)
    assert (tmp_path / "run" / "kineto").exists() == (said is None)
    if said is None:
        (data,) = import_run([tmp_path / "run" / "kineto"]).load()
        assert [step.step for step in data.steps] == [1, 2]


def test_what_is_asked_for() -> None:
    """The defaults are few steps and ranks; a step is needed to start the profiler."""
    assert capture_of(2, None, None) == ProfilerSchedule(first=5, count=2, ranks=(0, 1))
    assert capture_of(1, "7,3,3", "20:40") == ProfilerSchedule(
        first=20, count=1, ranks=(3, 7)
    )
    assert capture_of(1, None, "0:4").first == 1
    assert capture_of(1, None, ":4").first == 5
    for ranks in ("", "a", "1,", "-1", "0-3", "9" * 5000):
        with pytest.raises(UsageError, match=r"--kineto-ranks is .* expected ranks"):
            capture_of(1, ranks, None)
    with pytest.raises(UsageError, match="--kineto is 0, expected 1 or more"):
        capture_of(0, None, None)


def test_sampling_beside_a_capture() -> None:
    """Captured steps are recorded, their neighbours are not, others are as before."""
    sampling = AroundProfiler(EveryStep(4), range(6, 8))

    assert [step for step in range(14) if sampling.records(step)] == [0, 4, 6, 7, 12]
    assert (sampling.every, AroundProfiler(Adaptive(), range(6, 8)).every) == (4, 1)
