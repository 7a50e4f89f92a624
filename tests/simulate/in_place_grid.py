"""All that a running job can be told: each depth of prefetch, each choice of units."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.plans.change_step import changed, forbidden, recomputes
from fsdpdoctor.simulate.plans.in_place import BUFFERS, DEPTHS
from fsdpdoctor.simulate.plans.predict import Replay

MOST_SUBSETS = 64
"""Of units that stay gathered: all of six units, else so many by chance."""


def grid(base: Replay) -> Iterator[tuple[Plan, Step]]:
    """Plans, and the step that each makes; none twice, none that is forbidden."""
    calibration = base.calibration
    step = calibration.step
    depths = (None, *DEPTHS)
    ahead = (None,) if recomputes(step) else depths
    for gathered, forward, back, others in itertools.product(
        _subsets(step), ahead, depths, _others(step)
    ):
        plan = Plan(
            forward_prefetch=forward,
            backward_prefetch=back,
            reshard_after_forward=dict.fromkeys(gathered, False),
            **others,
        )
        if not plan.changes or forbidden(plan, step) is not None:
            continue
        try:
            yield plan, changed(plan, step, calibration.constraints).step
        except FsdpDoctorError:
            continue


def _subsets(step: Step) -> list[tuple[str, ...]]:
    """Of the units that are freed after forward."""
    units = [
        unit.fqn
        for at, unit in enumerate(step.units)
        if at not in step.root.units and unit.reshard_after_forward is True
    ]
    if 2 ** len(units) <= MOST_SUBSETS:
        counts = range(len(units) + 1)
        return [one for n in counts for one in itertools.combinations(units, n)]
    chance = random.Random(0)
    found = {(), tuple(units)}
    while len(found) < MOST_SUBSETS:
        found.add(tuple(unit for unit in units if chance.random() < 0.5))
    return sorted(found)


def _others(step: Step) -> list[dict[str, Any]]:
    """What there is beside: unshards that do not block, buffers of reductions."""
    if step.blocking:
        return [{}, {"unshard_async_op": True}]
    return [{}, *({"max_input_buffers": many} for many in BUFFERS)]
