"""Replay errors, and predictions against truth: two tables by one command.

    python -m tests.benchmarks.whatif

It prints them and writes `whatif-results.md` beside this file. On the modelled wire
compute is sleeps and time is virtual, so that those rows are the same on every
machine; each change is predicted from one record of the job as it was, then made for
real: real FSDP2, recorded. The rows of two gloo processes are of this machine.
"""

# ruff: noqa: T201 - it prints tables

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.changes.plan import Plan, save_plan
from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.run import open_run
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.plans.forecast import replay_run
from fsdpdoctor.simulate.plans.predict import Replay, predict, replay
from fsdpdoctor.simulate.plans.settings import settings
from tests.rig.changed import replace
from tests.rig.ranks import TRAIN, run_python
from tests.simulate.jobs import APART, CHANGES, WIRES, base, job, measured, recorded

RESULTS = Path(__file__).with_name("whatif-results.md")

REPLAYED = ("none", "prefetch 2", "reshard False", "accumulate", "HSDP")
"""Of CHANGES: each is recorded, then replayed as it was."""

WORLDS = (8, 64)

GLOO = ("none", "prefetch", "checkpoint", "accumulate-once")
"""Ways to train the small Llama of the tests, on two processes over gloo."""


ASYNCHRONOUS = Plan(backward_prefetch=1, unshard_async_op=True)
"""Allowed where activations are recomputed, too."""


BLOCKING = (
    "Where every collective blocks the host, a step is the sum of its parts, and the "
    "replay is exact by how it is fitted; the asynchronous rows are not."
)


@dataclass(slots=True)
class Table:
    """Rows of Markdown, and what is said below them."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    below: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        for row in (self.head, ("---",) * len(self.head), *self.rows):
            yield f"| {' | '.join(row)} |"
        yield from ("", *self.below)


def replays() -> Table:
    """How far off the simulator is on a run as it was."""
    table = Table(("run", "measured step", "replayed", "off by", "worst lane"))
    modelled: list[float] = []
    for world in WORLDS:
        for wire in WIRES:
            for name in REPLAYED:
                given = {"world_size": world, **CHANGES[name].job}
                found = replay(calibrate(recorded(replace(job(wire), **given))))
                modelled.append(abs(found.error))
                what = f"{world} ranks, {wire / 1e6:.0f} MB/s, {name}"
                table.rows.append(_replayed(what, found))
    real = []
    for fault, found in gloo_runs():
        real.append(abs(found.error))
        table.rows.append(_replayed(f"2 gloo processes, {fault}", found))
    limits = ", to be at most 3 %.", ", to be at most 10 %. "
    table.below = [
        f"Worst on the modelled wire: {max(modelled):.3%} of the step{limits[0]}",
        f"Worst on two gloo processes: {max(real):.1%}{limits[1]}{BLOCKING}",
    ]
    return table


def _replayed(what: str, found: Replay) -> tuple[str, ...]:
    worst = max(found.lane_errors.values(), key=abs)
    return (
        what,
        ms(found.calibration.measured_ns),
        ms(found.outcome.step_ns),
        f"{found.error:+.3%}",
        f"{worst:+.3%}",
    )


def gloo_runs() -> Iterator[tuple[str, Replay]]:
    """Each of GLOO as it is, then with asynchronous gathers by `run --apply`."""
    with TemporaryDirectory() as folder:
        for fault in GLOO:
            found = gloo(Path(folder) / fault, fault)
            yield fault, found
            made = predict(found, ASYNCHRONOUS)
            plan = Path(folder) / f"{fault}.json"
            save_plan(ASYNCHRONOUS, plan, settings(ASYNCHRONOUS, made.step))
            changed = Path(folder) / f"{fault}-changed"
            yield f"{fault}, asynchronous", gloo(changed, fault, "--apply", str(plan))


def gloo(folder: Path, fault: str, *options: str) -> Replay:
    """Record two processes of this machine, and replay them."""
    run_python(
        *("-m", "fsdpdoctor", "run", "--nproc-per-node", "2", "--no-report"),
        *("--out", str(folder), "--every", "1", *options),
        *(str(TRAIN), "--fault", fault, "--steps", "24"),
    ).ok()
    run = open_run(folder)
    return replay_run(run, measure(run))


def predictions() -> Table:
    """What each change was said to give, and gave."""
    table = Table(
        ("wire", "change", "predicted step", "measured", "off by", "gathered peak")
    )
    errors: list[float] = []
    exact = right = pairs = 0
    for wire in WIRES:
        steps: list[tuple[int, int]] = []
        for name, change in CHANGES.items():
            prediction = predict(base(wire), change.plan)
            step_ns, gathered = measured(wire, name)
            errors.append(prediction.step_ns / step_ns - 1)
            steps.append((prediction.step_ns, step_ns))
            same = prediction.gathered_peak_bytes == gathered
            exact += same
            table.rows.append(
                (
                    f"{wire / 1e6:.0f} MB/s",
                    name,
                    ms(prediction.step_ns),
                    ms(step_ns),
                    f"{errors[-1]:+.3%}",
                    "exact" if same else f"{prediction.gathered_peak_bytes - gathered}",
                )
            )
        for (p, a), (q, b) in combinations(steps, 2):
            if abs(a - b) > APART * min(a, b):
                pairs += 1
                right += (p < q) == (a < b)
    worst = max(errors, key=abs)
    more = f"differ by more than {percent(APART)}; to be at least 95 %."
    table.below = [
        f"Worst prediction: {worst:+.3%} of the step, to be within 5 %.",
        f"Order right in {right} of {pairs} pairs that {more}",
        f"Peak of gathered parameters exact in {exact} of {len(errors)}.",
    ]
    return table


def main() -> None:
    """Print the tables, and write them."""
    load = os.getloadavg()[0]
    lines = [
        "# Replays and predictions of the simulator",
        "",
        "    python -m tests.benchmarks.whatif",
        "",
        f"{os.cpu_count()} cores, load {load:.0f}: it moves the gloo rows only.",
        "",
        "## Replay: the run as it was",
        "",
        *replays().lines(),
        "",
        "## Prediction: the run after a change",
        "",
        *predictions().lines(),
    ]
    text = "\n".join(lines) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
