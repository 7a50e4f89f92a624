"""Replay error and predictions against truth, on a modelled wire.

One command prints the table:

    python -m tests.benchmarks.whatif [--blocks N] [--quick]

For each wire one run is recorded and replayed; then every change is predicted from
it, made for real, recorded and timed the same way. Compute is sleeps, so that the
machine's noise decides little; runs are repeated in turns, and of each kind the
fastest few steps count: those least disturbed by others.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import fsdpdoctor
from fsdpdoctor.quantities import MS, ms, percent
from fsdpdoctor.recorder.wire import uniform
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.simulate.calibrate import Calibration, calibrate
from fsdpdoctor.simulate.changes import changed
from fsdpdoctor.simulate.outcome import simulate
from fsdpdoctor.simulate.plan import Plan
from tests.rig.fake import Job, train_fake

WIRES = (10e6, 30e6, 100e6)
"""Bytes per second: gathers that take much longer than a block's forward, about as
long, and much less."""

LATENCY_NS = 200_000
FORWARD_NS, BACKWARD_NS = 8 * MS, 16 * MS
STEPS = 8
APART = 0.03
"""Steps that differ by less are as good as equal: their order is no mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A plan, and what makes the same of the job."""

    name: str
    plan: Plan
    job: Mapping[str, Any]


def prefetch(depth: int) -> Change:
    """Asynchronous unshards, explicit lists in both directions."""
    return Change(
        name=f"prefetch {depth}",
        plan=Plan(
            forward_prefetch=depth, backward_prefetch=depth, unshard_async_op=True
        ),
        job={"depth": depth, "unshard_async_op": True},
    )


CHANGES = (
    Change(name="none", plan=Plan(), job={}),
    *(prefetch(depth) for depth in (0, 1, 2, 4)),
    Change(
        name="reshard False",
        plan=Plan(reshard_after_forward={"*": False}),
        job={"reshard_after_forward": False},
    ),
    Change(
        name="reshard 2",
        plan=Plan(reshard_after_forward={"*": 2}),
        job={"reshard_after_forward": 2},
    ),
    Change(name="HSDP 2 x 4", plan=Plan(replicate=2), job={"replicas": 2}),
    Change(name="world size 64", plan=Plan(world_size=64), job={"world_size": 64}),
    Change(
        name="3 micro-batches",
        plan=Plan(micro_batches=3, accumulation="last"),
        job={"micro_batches": 3, "reduce_each": False},
    ),
)


def recorded(job: Job) -> RankData:
    """Train, recorded."""
    with tempfile.TemporaryDirectory() as folder:
        train_fake(job, recording=lambda: fsdpdoctor.record(folder, every=1))
        (run,) = [path.parent for path in Path(folder).rglob("run.json")]
        return quiet(open_run(run).sources[0].load())


QUIET_STEPS = 3
"""Of each run; as many as measures want to judge."""


def quiet(data: RankData) -> RankData:
    """Only the steps that were least disturbed, past the warm-up."""
    steps = sorted(data.steps[2:], key=lambda record: record.duration_ns)
    kept = sorted(steps[:QUIET_STEPS], key=lambda record: record.step)
    return replace(data, steps=tuple(kept))


def step_ns(data: RankData) -> int:
    """The median step."""
    return int(np.median([record.duration_ns for record in data.steps]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One change on one wire."""

    wire: float
    name: str
    predicted_ns: int
    measured_ns: int

    @property
    def error(self) -> float:
        """Signed share of the truth."""
        return self.predicted_ns / self.measured_ns - 1


def rows_of(wire: float, blocks: int, repeats: int) -> tuple[float, list[Row]]:
    """Replay error, and every change, on one wire."""
    base = Job(
        wire=uniform(wire, latency_ns=LATENCY_NS),
        blocks=blocks,
        width=128,
        forward_ns=FORWARD_NS,
        backward_ns=BACKWARD_NS,
        steps=STEPS,
    )
    calibrations: list[Calibration] = []
    measured = dict.fromkeys((change.name for change in CHANGES), 1 << 62)
    for _ in range(repeats):
        calibrations.append(calibrate(recorded(base)))
        for change in CHANGES:
            took = step_ns(recorded(replace(base, **change.job)))
            measured[change.name] = min(measured[change.name], took)
    replays = [simulate(c.step).step_ns / c.measured_ns - 1 for c in calibrations]
    best = min(calibrations, key=lambda c: c.measured_ns)
    rows = [
        Row(
            wire=wire,
            name=change.name,
            predicted_ns=simulate(
                changed(change.plan, best.step, best.facts).step
            ).step_ns,
            measured_ns=measured[change.name],
        )
        for change in CHANGES
    ]
    return max(replays, key=abs), rows


def ranked_right(rows: list[Row]) -> tuple[int, int]:
    """Pairs on one wire that differ, and those whose order was predicted."""
    pairs = [
        (a, b)
        for a, b in combinations(rows, 2)
        if a.wire == b.wire
        and abs(a.measured_ns - b.measured_ns)
        > APART * min(a.measured_ns, b.measured_ns)
    ]
    right = sum(
        (a.predicted_ns < b.predicted_ns) == (a.measured_ns < b.measured_ns)
        for a, b in pairs
    )
    return right, len(pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="one wire, one repeat")
    given = parser.parse_args()
    every: list[Row] = []
    for wire in WIRES[1:2] if given.quick else WIRES:
        replay, rows = rows_of(wire, given.blocks, 1 if given.quick else 3)
        print(f"\n{wire / 1e6:.0f} MB/s: replay off by {percent(replay)} at worst")  # noqa: T201
        for row in rows:
            print(  # noqa: T201
                f"  {row.name:<16} predicted {ms(row.predicted_ns):>9}"
                f"  measured {ms(row.measured_ns):>9}  {row.error:+.1%}"
            )
        every += rows
    right, pairs = ranked_right(every)
    worst = max(every, key=lambda row: abs(row.error))
    print(  # noqa: T201
        f"\nworst prediction {worst.error:+.1%} ({worst.name}, "
        f"{worst.wire / 1e6:.0f} MB/s); order right in {right} of {pairs} pairs "
        f"that differ by more than {percent(APART)}"
    )


if __name__ == "__main__":
    main()
