"""Steps that are timed and not recorded: few bytes each, whatever their number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fsdpdoctor
from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder.steps.step_bounds import Moment, StepBounds
from fsdpdoctor.recorder.steps.unsampled_steps import SETTLE_STEPS, TimedSteps
from fsdpdoctor.recorder.storage.clocks import HostClock
from fsdpdoctor.report.diagnosis import report_from
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import UNKNOWN
from tests.recorder.rehearsed import job, sharded
from tests.recorder.storage.test_clocks import Device


def bounds(step: int, start: Moment, end: Moment) -> StepBounds:
    """A step between two moments."""
    return StepBounds(
        step=step,
        start=start,
        end=end,
        micro_batches=1,
        tokens=UNKNOWN,
        samples=UNKNOWN,
        cost_ns=0,
        complete=True,
    )


def test_settled_steps_need_no_events() -> None:
    """Ten thousand steps of 1 ms on a device: the events of one settling are made."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    timed = TimedSteps()
    start = Moment(host_ns=device.host_ns, tick=clock.tick())
    for step in range(10_000):
        device.host_ns += MS
        clock.rebase()
        end = Moment(host_ns=device.host_ns, tick=clock.tick())
        timed.add(bounds(step, start, end))
        if timed.many_marked:
            timed.settle(clock)
        start = end
    table = timed.table(clock)

    assert table.step.tolist() == list(range(10_000))
    assert np.abs(table.end_ns - table.start_ns - MS).max() < 100  # float32 ms
    assert (table.start_ns[1:] == table.end_ns[:-1]).all()
    assert device.made <= 2 * (SETTLE_STEPS + 4)


def test_a_device_that_is_behind_is_not_waited_for() -> None:
    """Its steps keep their ticks until it has got there."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    start = Moment(host_ns=device.host_ns, tick=clock.tick())
    device.host_ns += MS
    timed = TimedSteps()
    timed.add(bounds(0, start, Moment(host_ns=device.host_ns, tick=clock.tick())))
    device.done_until_ns = device.host_ns - 1

    timed.settle(clock)

    behind = timed.last
    device.done_until_ns = device.host_ns
    timed.settle(clock)

    assert behind is not None
    assert timed.last is None
    assert len(timed) == 1


def test_marks_that_are_times_stay_them() -> None:
    """On the host's clock."""
    timed = TimedSteps()
    timed.add(bounds(7, Moment(host_ns=1, tick=1), Moment(host_ns=5, tick=5)))

    timed.settle(HostClock())
    timed.add(bounds(8, Moment(host_ns=5, tick=5), Moment(host_ns=9, tick=9)))
    table = timed.table(HostClock())

    assert table.step.tolist() == [7, 8]
    assert table.start_ns.tolist() == [1, 5]
    assert table.end_ns.tolist() == [5, 9]


def test_every_step_after_the_recorded_ones_is_timed(tmp_path: Path) -> None:
    """Three are recorded; the 600 after them are known by their length."""
    with job(), fsdpdoctor.record(tmp_path / "run", steps="0:3"):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(603):
            model(torch.ones(2, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
    data = open_run(tmp_path / "run").sources[0].load()

    assert [step.step for step in data.steps] == [0, 1, 2]
    assert data.rest is not None
    assert data.rest.unrecorded.step.tolist() == list(range(3, 603))


@pytest.mark.parametrize("steps", [8, 20, 41])
def test_no_step_but_those_of_the_script(tmp_path: Path, steps: int) -> None:
    """Each once, recorded or timed: also after sampling thins out, and the loader's
    last look and an evaluation after training are no step that the run ended in.
    """
    with job(), fsdpdoctor.record(tmp_path / "run"):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.ones(2 * steps, 8)), batch_size=2)
        for (batch,) in loader:
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            model(batch)
    m = measure(open_run(tmp_path / "run"))
    (rank,) = m.ranks
    whole = rank.steps.step[rank.steps.complete == 1].tolist()
    health = report_from(m, (), ()).health

    assert sorted([*whole, *rank.unrecorded.step.tolist()]) == list(range(steps))
    aside = (*health.warm_up_steps, *health.outlier_steps)  # on a busy machine
    assert sorted((*aside, *health.judged_steps)) == whole
    assert health.incomplete_steps == ()
