"""Calibration: what a run took goes in, and its replay takes as long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fsdpdoctor.analysis.timeline import Collectives, timeline_of
from fsdpdoctor.errors import InputError
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Evidence, Kind, ModelSpec
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.calibration.comm_cost import FREE, fit_comm_cost
from fsdpdoctor.simulate.calibration.partition import shape_of
from fsdpdoctor.simulate.engine.simulate import simulate
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    CommCost,
    CommCosts,
    HostCosts,
    Mesh,
    MicroBatch,
    Step,
)
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.predict import replay
from fsdpdoctor.testing import draw, unit
from tests.simulate.steps import (
    MS,
    checkpointed,
    nested,
    prefetching,
    step,
    wire,
    with_units,
)

HOST = HostCosts(
    pre_forward_ns=20_000,
    unshard_ns=30_000,
    post_forward_ns=10_000,
    pre_backward_ns=15_000,
    post_backward_ns=25_000,
    reduce_ns=40_000,
    final_callback_ns=5_000,
)
COPIES: dict[str, Any] = {
    "copy_in_ns": 11_000,
    "copy_out_ns": 22_000,
    "reduce_copy_in_ns": 33_000,
}
SMALL = CommCosts(
    all_gather=wire(), reduce_scatter=wire(), post_forward=wire(50_000, 1e7)
)
HYBRID = CommCosts(all_gather=wire(), reduce_scatter=wire(), all_reduce=wire())
BOTH = (MicroBatch(sync=False), MicroBatch())

STEPS: dict[str, Step] = {
    "plain": step(),
    "prefetch": prefetching(step(), 2),
    "async": with_units(prefetching(step(), 1), unshard_async_op=True),
    "nested": nested(),
    "accumulation": step(
        micro_batches=BOTH, loss_ns=MS, before_ns=MS // 2, after_ns=3 * MS
    ),
    "input": step(micro_batches=BOTH, input_ns=MS // 10),
    "HSDP": step(mesh=Mesh(shard=4, replicate=2), wires=HYBRID),
    "reshard False": with_units(step(), reshard_after_forward=False),
    "reshard 2": with_units(step(wires=SMALL), reshard_after_forward=2),
    "reentrant": checkpointed(step(), Checkpoint.REENTRANT),
    "non-reentrant": checkpointed(step(), Checkpoint.NON_REENTRANT),
    "host": with_units(step(host=HOST), **COPIES),
}


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_a_simulated_run_is_replayed_exactly(name: str, blocking: bool) -> None:
    """The step, and what was exposed of each kind, to a thousandth of the step."""
    base = replace(STEPS[name], blocking=blocking)
    found = replay(calibrate(record(base)))

    assert abs(found.error) < 0.001
    assert max(abs(error) for error in found.lane_errors.values()) < 0.001
    assert found.outcome.gathered_peak_bytes == simulate(base).gathered_peak_bytes


def test_the_wire_is_found_again() -> None:
    """Two sizes of gathers lie on one line: latency and bandwidth."""
    base = step(wires=CommCosts(all_gather=wire(70_000, 2e6), reduce_scatter=wire()))

    found = calibrate(record(base)).step.wires.all_gather

    assert found.latency_ns == 70_000
    assert round(found.bytes_per_second) == 2_000_000


def collectives(sizes: list[int], durations: list[int]) -> Collectives:
    """Collectives one after the other, on one group."""
    start = np.cumsum([0, *durations[:-1]])
    return Collectives.build(
        len(sizes),
        step=0,
        kind=int(Kind.ALL_GATHER),
        unit=np.arange(len(sizes)),
        group=0,
        seq=np.arange(len(sizes)),
        bytes=sizes,
        start_ns=start,
        end_ns=start + durations,
    )


def test_one_size_has_no_latency_of_its_own() -> None:
    """All of it is called bandwidth, unless a latency is known from elsewhere."""
    rows = collectives([1000, 1000], [500, 500])
    fit = fit_comm_cost(rows, rows.duration_ns)
    told = fit_comm_cost(rows, rows.duration_ns, 100)

    assert fit.wire == CommCost(latency_ns=0, bytes_per_second=2e9)
    assert told.wire == CommCost(latency_ns=100, bytes_per_second=2.5e9)


def test_larger_and_faster_is_no_bandwidth() -> None:
    """Where size makes no difference, the whole is latency."""
    rows = collectives([1000, 2000], [500, 400])
    assert fit_comm_cost(rows, rows.duration_ns).wire == CommCost(
        latency_ns=450, bytes_per_second=FREE
    )


def test_no_line_below_zero() -> None:
    """A line that would cross below zero goes through it."""
    rows = collectives([1000, 2000], [100, 900])
    found = fit_comm_cost(rows, rows.duration_ns).wire

    # Least squares: sum of sizes squared over sum of sizes times durations.
    assert found.latency_ns == 0
    assert round(found.bytes_per_second) == round(5e6 / 1.9e6 * 1e9)


def test_units_of_one_size_keep_what_they_took() -> None:
    """What a unit's own gathers take beyond the fit stays with that unit."""
    base = step()
    slow = replace(base.units[2], gather_extra_ns=MS)
    base = replace(base, units=(*base.units[:2], slow, *base.units[3:]))
    found = replay(calibrate(record(replace(base, blocking=True))))

    assert abs(found.error) < 0.001


def test_models_beside_each_other_are_not_one_chain() -> None:
    """Their roots have no parameters, so that nothing stands around their blocks."""
    units = (unit("0", model=0), unit("0 [tree=1]", tree=1, model=1))
    spec = ModelSpec(wrapper="fsdp2", models=("Actor", "Critic"))
    data = draw("forward  01", units=units, model=spec)
    alone = draw("forward  0.", units=units, model=spec)

    with pytest.raises(InputError) as refused:
        shape_of(timeline_of(data, data.steps[0]))

    assert str(refused.value) == (
        "this run's models (Actor, Critic) have several FSDP2 roots: what-if replays "
        "one root's schedule"
    )
    assert shape_of(timeline_of(alone, alone.steps[0])).root == 0


def test_what_cannot_be_replayed_says_so() -> None:
    """Without stalls, or whole steps, there is an error and not a guess."""
    data = record(step())
    evidence = tuple(e for e in data.header.evidence if e is not Evidence.STALLS)
    blind = replace(data, header=replace(data.header, evidence=evidence))
    with pytest.raises(InputError, match="does not show stalls"):
        calibrate(blind)
    with pytest.raises(InputError, match="no whole step"):
        calibrate(RankData(header=data.header))
