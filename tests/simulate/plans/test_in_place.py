"""The best settings of a running job are found without trying them all."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.engine.simulate import Outcome, simulate
from fsdpdoctor.simulate.engine.step import CommCosts, Step
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.in_place import (
    DEPTHS,
    IN_PLACE,
    MIN_STEP,
    InPlaceSearch,
)
from fsdpdoctor.simulate.plans.predict import Replay, predict, replay
from tests.simulate import tried as trained
from tests.simulate.steps import step, wire

LAYERS = 4
WIRES = {"slow": 0.5e6, "even": 2e6, "fast": 8e6}


def base_of(one: Step) -> Replay:
    """A simulated run, replayed."""
    return replay(calibrate(record(one)))


def on(speed: str, **known: Any) -> Replay:
    """Four layers over a wire."""
    costs = wire(bytes_per_second=WIRES[speed])
    wires = CommCosts(all_gather=costs, reduce_scatter=costs)
    return base_of(step(LAYERS, wires=wires, **known))


def tried(base: Replay) -> list[tuple[Plan, Outcome]]:
    """Every depth for all units, every choice of units that stay gathered."""
    calibration = base.calibration
    names = [f"layers.{at}" for at in range(LAYERS)]
    more: list[dict[str, Any]] = [{}, {"max_input_buffers": 2}]
    if calibration.step.blocking:
        more = [{"unshard_async_op": True}]
    depths = (None, *DEPTHS)
    found = []
    for gathered, ahead, back, others in itertools.product(
        subsets(names), depths, depths, more
    ):
        plan = Plan(
            forward_prefetch=ahead,
            backward_prefetch=back,
            reshard_after_forward=dict.fromkeys(gathered, False),
            **others,
        )
        made = changed(plan, calibration.step, calibration.constraints)
        found.append((plan, simulate(made.step)))
    return found


def subsets(names: list[str]) -> list[tuple[str, ...]]:
    """All of them."""
    counts = range(len(names) + 1)
    return [one for n in counts for one in itertools.combinations(names, n)]


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("speed", WIRES)
def test_the_best_of_all_is_found(speed: str, blocking: bool) -> None:
    """To one percent, on a wire that is slow, even or fast."""
    base = on(speed, blocking=blocking)
    best = min(outcome.step_ns for _, outcome in tried(base))

    found = InPlaceSearch(base=base).candidates()

    steps = [simulate(p.step).step_ns for p in found]
    assert min([base.outcome.step_ns, *steps]) <= 1.01 * best
    assert min(steps, default=0) == next(iter(steps), 0)
    assert [p.step_ns for p in found] == sorted(p.step_ns for p in found)
    assert all(set(p.plan.changes) <= IN_PLACE for p in found)


@pytest.mark.parametrize("speed", WIRES)
@pytest.mark.parametrize("layers_of_room", [0, 1, 2])
def test_the_best_that_fits_is_found(speed: str, layers_of_room: int) -> None:
    """To two percent, of all that take no more than so much memory."""
    base = on(speed)
    room = layers_of_room * base.calibration.step.units[1].gathered_bytes(8)
    most = base.outcome.peak_bytes + room
    best = min(o.step_ns for _, o in tried(base) if o.peak_bytes <= most)

    found = InPlaceSearch(base=base, room_bytes=room).candidates()

    outcomes = [simulate(p.step) for p in found]
    assert all(outcome.peak_bytes <= most for outcome in outcomes)
    reached = min([base.outcome.step_ns, *(o.step_ns for o in outcomes)])
    assert reached <= 1.02 * best


def test_there_is_a_rung_for_each_room() -> None:
    """One unit more stays gathered each time; the best is one of them."""
    search = InPlaceSearch(base=on("slow"))
    best = search.candidates()[0]

    rungs = search.rungs()

    assert [one.step_ns for one in rungs] == sorted(one.step_ns for one in rungs)
    assert best.plan in [one.plan for one in rungs]
    rungs.sort(key=lambda one: len(one.plan.reshard_after_forward))
    kept = [set(one.plan.reshard_after_forward) for one in rungs]
    assert [len(one) for one in kept] == [1, 2, 3, 4]
    assert all(fewer < more for fewer, more in itertools.pairwise(kept))
    held = [one.memory_cost_bytes for one in rungs]
    assert held == sorted(held)


def test_what_pays_on_top_of_another_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two buffers of reductions are no gain of experts' as they are, but are where all
    of them stay gathered.
    """
    slow = replace(trained.STREAMS, wire="30MB/s@60us")
    monkeypatch.setattr(trained, "GROUNDS", {"slow": slow})
    base = trained.base("experts", "slow")
    every = {u.fqn: False for u in base.calibration.step.units if u.fqn != "<root>"}
    alone, both, all_ = (
        predict(base, plan).gain_ns
        for plan in (
            Plan(max_input_buffers=2),
            Plan(max_input_buffers=2, reshard_after_forward=every),
            Plan(reshard_after_forward=every),
        )
    )

    found = InPlaceSearch(base=base).candidates()[0]

    assert alone < 0.001 * base.calibration.measured_ns
    assert both > 1.1 * all_
    assert found.gain_ns >= both


def test_the_best_that_no_single_step_leads_to_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of uneven blocks all stay gathered with two buffers; without these half of them
    is better, and then buffers are no gain.
    """
    even = replace(trained.STREAMS, wire="60MB/s@60us")
    monkeypatch.setattr(trained, "GROUNDS", {"even": even})
    base = trained.base("uneven blocks", "even")
    every = {u.fqn: False for u in base.calibration.step.units if u.fqn != "<root>"}
    plan = Plan(backward_prefetch=2, max_input_buffers=2, reshard_after_forward=every)

    found = InPlaceSearch(base=base).candidates()[0]

    least_ns = MIN_STEP * base.calibration.measured_ns
    assert found.gain_ns >= predict(base, plan).gain_ns - least_ns


def test_what_torch_lacks_is_not_proposed() -> None:
    """Nor anything where nothing can be told."""
    base = on("slow")
    constraints = replace(
        base.calibration.constraints, available=("set_reshard_after_forward",)
    )
    known = replace(
        base, calibration=replace(base.calibration, constraints=constraints)
    )

    found = InPlaceSearch(base=known).candidates()

    assert found
    assert {name for p in found for name in p.plan.changes} == {"reshard_after_forward"}


def test_candidates_differ() -> None:
    """Of plans that come to the same one is tried."""
    found = InPlaceSearch(base=on("even", blocking=True)).candidates()
    steps = [p.step_ns for p in found]

    apart = [after - before for before, after in itertools.pairwise(steps)]
    assert all(gap > 0 for gap in apart)
