"""What a tuning keeps, against the best of all settings that a running job can be told.

    python -m tests.benchmarks.autotune [--write] [--kinds A,B] [--machines blocking]

Eight kinds of model on three speeds of link: real FSDP2 on a modelled wire of eight
ranks, in virtual time. Each job tunes itself, from the record and the search to what
is kept; then the settings are measured in the same place: each choice of units that
stay gathered (of more than six units 64 choices, by chance), each depth of prefetch
forward and backward, and what else there is. Where the host waits for collectives
itself that is all of them; on a modelled device with streams, where a step takes longer
to make, those 30 that the simulator has for the fastest and 70 others by chance.

Prints a table, and with --write writes it to `autotune-results.md` beside this file;
ends with 1 where what was kept is more than a percent from the best. Takes 15
minutes of one core, and no quiet one.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import fsdpdoctor
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.quantities import ms
from fsdpdoctor.simulate.engine.simulate import simulate
from fsdpdoctor.simulate.plans.predict import Replay
from fsdpdoctor.simulate.plans.settings import settings
from tests.recorder.autotune.modelled import (
    Looking,
    changes_in,
    measured_in_place,
    one_thread_tuning,
)
from tests.simulate import tried
from tests.simulate.in_place_grid import grid
from tests.simulate.kinds import KINDS
from tests.simulate.networks import Place

RESULTS = Path(__file__).with_name("autotune-results.md")

WIRES = {
    "blocking": ("10MB/s@200us", "30MB/s@200us", "90MB/s@200us"),
    "streams": ("20MB/s@60us", "60MB/s@60us", "200MB/s@60us"),
}
"""A slow one, one that takes about as long as compute, and a fast one."""

TUNED = (
    *("decoder", "uneven blocks", "experts", "two towers", "adapters"),
    *("checkpointed", "inner unit in the middle", "frozen trunk"),
)

FASTEST, OTHERS = 30, 70
"""Settings that are measured on a device with streams."""

MOST_STEPS = 3000
"""Of a tuning: eight candidates take 2,056 at most."""

WITHIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a tuning came to."""

    apply: dict[str, Any]
    steps: int  # until it was over


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind on one link."""

    machine: str
    kind: str
    wire: str
    as_it_is_ns: int
    best_ns: int
    kept_ns: int
    measured: int  # settings
    steps: int

    @property
    def off(self) -> float:
        """How much longer a step is than under the best settings."""
        return self.kept_ns / self.best_ns - 1

    @property
    def line(self) -> str:
        """Of the table."""
        cells = (
            *(self.machine, self.kind, self.wire.partition("@")[0]),
            *(ms(self.as_it_is_ns), ms(self.best_ns), ms(self.kept_ns)),
            *(f"{self.off:+.2%}", f"{self.measured:,}", str(self.steps)),
        )
        return f"| {' | '.join(cells)} |"


def step_of(kind: str, place: Place) -> tuple[Any, Callable[[], None]]:
    """A model, and a step of its training."""
    said = KINDS[kind]
    model = said.build(place)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=1e-6)
    numbers = itertools.count()

    def step() -> None:
        said.each_step(model, next(numbers))
        model(said.inputs(place.device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if place.device == "cuda":
            # As who reads a loss: a modelled device has no queue that gets full, and
            # a host that never waits would be ahead of it by all that it has to do.
            torch.cuda.synchronize()

    return model, step


def tuned(kind: str, ground: tried.Ground) -> Kept:
    """Train until nothing more is tried."""
    with (
        TemporaryDirectory() as folder,
        one_thread_tuning(),
        tried.machine(ground, ground.wire, tried.WORLD, 1),
        fsdpdoctor.record(f"{folder}/run", every=1, autotune=True),
    ):
        _, step = step_of(kind, ground.place)
        steps = 0
        while not Looking.now.over:
            step()
            steps += 1
            assert steps < MOST_STEPS, f"{kind} is tuned for ever"
        assert not Looking.now.failed
        return Kept(apply=Looking.now.apply, steps=steps)


def chosen(base: Replay) -> list[Plan]:
    """The plans that are measured."""
    plans = list(grid(base))
    if base.calibration.step.blocking:
        return [plan for plan, _ in plans]
    plans.sort(key=lambda one: simulate(one[1]).step_ns)
    left = plans[FASTEST:]
    some = random.Random(1).sample(left, min(OTHERS, len(left)))
    return [plan for plan, _ in (*plans[:FASTEST], *some)]


def row(machine: str, kind: str, wire: str) -> Row:
    """Tune, then measure."""
    ground = replace(tried.GROUNDS[machine], wire=wire)
    kept = tuned(kind, ground)
    base = tried.replayed(KINDS[kind], ground)
    calibration = base.calibration
    applied = [
        settings(plan, made, calibration.constraints)
        for plan, made in _made(base, chosen(base))
    ]
    with tried.machine(ground, wire, tried.WORLD, 1):
        model, step = step_of(kind, ground.place)
        step()
        step()
        nothing: dict[str, Any] = {"units": {}}
        told = changes_in(model, [nothing, kept.apply or nothing, *applied])
        on_device = ground.device == "cuda"
        as_it_is, ours, *others = measured_in_place(step, told, on_device=on_device)
    return Row(
        machine=machine,
        kind=kind,
        wire=wire,
        as_it_is_ns=as_it_is,
        best_ns=min(as_it_is, *others),
        kept_ns=ours,
        measured=len(others) + 1,
        steps=kept.steps,
    )


def _made(base: Replay, plans: Sequence[Plan]) -> list[tuple[Plan, Any]]:
    wanted = {str(plan) for plan in plans}
    return [one for one in grid(base) if str(one[0]) in wanted]


HEAD = """# What a tuning keeps

    python -m tests.benchmarks.autotune --write

Real FSDP2 on a modelled wire of eight ranks, in virtual time: the same on every
machine. "Best" is the shortest step of all settings measured, "steps" how many the job
trained until nothing more was tried. What is kept may be shorter than the best: single
units may be told another depth, which the settings measured are not.

"""

COLUMNS = (
    *("machine", "model", "link", "as it is", "best", "kept", "from the best"),
    *("settings measured", "steps"),
)


def page(rows: Sequence[Row]) -> str:
    """The table, and what it comes to."""
    near = sum(one.off <= WITHIN for one in rows)
    worst = max(rows, key=lambda one: one.off)
    link = worst.wire.partition("@")[0]
    lines = [
        f"Within {WITHIN:.0%} of the best: {near} of {len(rows)}.",
        f"Furthest from it: {worst.kind} at {link}, {worst.off:+.2%}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(one.line for one in rows),
    ]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Tune, try everything, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(TUNED))
    parser.add_argument("--machines", default=",".join(WIRES))
    parser.add_argument("--write", action="store_true", help="the results page")
    args = parser.parse_args()
    rows = []
    for machine in args.machines.split(","):
        for kind, wire in itertools.product(args.kinds.split(","), WIRES[machine]):
            rows.append(row(machine, kind, wire))
            print(rows[-1].line, flush=True)
    text = page(rows)
    if args.write:
        RESULTS.write_text(text)
    print(text)
    raise SystemExit(0 if all(one.off <= WITHIN for one in rows) else 1)


if __name__ == "__main__":
    main()
