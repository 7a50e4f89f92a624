"""How many steps are simulated in a second, on one core.

One command:

    python -m tests.benchmarks.simulate

A model of 34 units (a root and 33 blocks), each figure the best of several rounds
in processor time. `new plan` works out FSDP2's schedule anew, as a search must;
`same plan` only has other durations, as for another wire.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import time
from collections.abc import Callable

from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.engine.opcodes import durations
from fsdpdoctor.simulate.engine.schedule import program
from fsdpdoctor.simulate.engine.simulate import simulate, walk
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.predict import replay
from fsdpdoctor.simulate.plans.search import search
from tests.simulate.steps import prefetching, step

BLOCKS = 33
ROUNDS, TIMES = 15, 20


def per_second(call: Callable[[], object]) -> float:
    """How often it can be called in a second of processor time, at best."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(TIMES):
            call()
        best = min(best, time.process_time() - start)
    return TIMES / best


def figures(one: Step) -> None:
    """Print the figures of one step."""
    plan, ns = program(one), durations(one)
    steps = len(walk(one, plan, ns, 1)) + (0 if one.blocking else 1)
    anew = per_second(lambda: simulate(one))
    again = per_second(lambda: simulate(one, plan))
    print(f"{len(one.units)} units, {len(plan.ops)} operations in a step")
    print(f"  new plan   {anew:8,.0f} predictions/s")
    print(f"  same plan  {again:8,.0f} predictions/s, {steps * again:,.0f} steps/s")
    base = replay(calibrate(record(one)))
    start = time.process_time()
    found = search(base)
    took = time.process_time() - start
    print(f"  search     {took:8.2f} s, {len(found)} plans on the front")


def main() -> None:
    """Print the table."""
    for name, blocking in (("streams", False), ("blocking host", True)):
        print(f"{name}: ", end="")
        figures(prefetching(step(BLOCKS, blocking=blocking), 1))


if __name__ == "__main__":
    main()
