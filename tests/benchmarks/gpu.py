"""The recorder on one real GPU, as rank 0 of 8 on a wire of spinning kernels.

    python -m tests.benchmarks.gpu

Takes less than five minutes, prints a table, and writes it to gpu-results.md
beside this file. Without a CUDA device it says so and ends with status 0.

What is exposed is known by construction: a step's device time, less its blocks'
own spins, less what the same step needs besides when the wire takes no time, is
what the compute stream stood still for. Spins are timed by events of their own,
because a device's clock moves and with it their length.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

from fsdpdoctor.analysis.rank_measures import measure_rank
from fsdpdoctor.detectors.host_issue_bound import CAUGHT_UP_SHARE
from fsdpdoctor.network import NetworkModel
from fsdpdoctor.quantities import MS, US, ms, percent, size
from fsdpdoctor.recorder.storage.sampling import Adaptive, EveryStep, Sampling
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import ROOT, Kind
from tests.networks import uniform
from tests.rig.fake import Job, Truth, recording_to, train_fake

RESULTS = Path(__file__).with_name("gpu-results.md")

# The issue's tolerance for exposed time per step.
ALLOWED_SHARE = 0.03
ALLOWED_NS = 0.2 * MS

# The recorder's promise at default sampling, on a step that the host limits.
ALLOWED_OVERHEAD = 0.01

# The allocator hands out blocks in multiples of this.
BLOCK_BYTES = 512

WIRES = {"slow": uniform(100e6, 100 * US), "fast": uniform(800e6, 20 * US)}
"""A block's 1 MiB takes 9.3 ms and 1.2 ms: more, and less, than it computes."""

NO_WIRE = uniform(1e15, 0)

JOB = Job(
    wire=NO_WIRE,
    world_size=8,
    blocks=8,
    width=512,
    forward_ns=2 * MS,
    backward_ns=4 * MS,
    steps=8,
    device="cuda",
)

_cuda: Any = torch.cuda  # its stubs type half of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: what was measured, what it should be, whether it is."""

    check: str
    measured: str
    expected: str
    ok: bool


class StepEvents:
    """An event at each step's start, and the device's time between them."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def watch(self, model: nn.Module) -> None:
        """Note each forward's start on the compute stream."""
        model.register_forward_pre_hook(lambda *_: self._note())

    def _note(self) -> None:
        event = _cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def durations_ns(self) -> list[int]:
        """From each step's start to the next one's."""
        _cuda.synchronize()
        return [round(a.elapsed_time(b) * MS) for a, b in pairwise(self._events)]


def besides_spins_ns(job: Job, truth: Truth, durations: list[int]) -> list[int]:
    """Each step's device time that its blocks did not spin."""
    per_step = 2 * job.blocks
    spun = [round(start.elapsed_time(end) * MS) for start, end in truth.spins]
    return [
        length - sum(spun[step * per_step : (step + 1) * per_step])
        for step, length in enumerate(durations)
    ]


def record(job: Job, sampling: Sampling | None = None) -> tuple[RankData, list[int]]:
    """A recorded training, and its steps' device time besides spins."""
    events = StepEvents()
    with tempfile.TemporaryDirectory() as folder:
        truth = train_fake(
            job, lambda: recording_to(Path(folder), sampling), events.watch
        )
        rest = besides_spins_ns(job, truth, events.durations_ns())
        (source,) = open_run(Path(folder)).sources
        return source.load(), rest


def steady(values: list[int]) -> float:
    """The median after the first two steps, which initialise and warm up."""
    return statistics.median(values[2:])


def stalls_ns(data: RankData) -> list[int]:
    """What the recorder says was exposed, by step."""
    kinds = (Kind.ALL_GATHER_WAIT, Kind.REDUCE_SCATTER_WAIT)
    return [
        sum(int(s.spans.duration_ns[s.spans.kind == kind].sum()) for kind in kinds)
        for s in data.steps
    ]


def check_exposure() -> Iterator[Row]:
    """Measured stalls against the truth by construction."""
    _, rest = record(JOB)
    base_ns = steady(rest)
    for name, wire in WIRES.items():
        for depth in (0, 1, 2):
            yield _exposure(name, wire, depth, base_ns)


def _exposure(name: str, wire: NetworkModel, depth: int, base_ns: float) -> Row:
    data, rest = record(replace(JOB, wire=wire, depth=depth))
    expected = steady(rest) - base_ns
    measured = steady(stalls_ns(data))
    allowed = max(ALLOWED_SHARE * expected, ALLOWED_NS)
    return Row(
        check=f"exposed per step, {name} wire, prefetch depth {depth}",
        measured=ms(measured),
        expected=f"{ms(expected)} +- {ms(allowed)}",
        ok=abs(measured - expected) <= allowed,
    )


def _host_limited() -> Job:
    """24 units that compute next to nothing: the recorder's cost cannot hide."""
    return replace(JOB, blocks=24, width=64, forward_ns=0, backward_ns=0, steps=60)


def _step_ns(job: Job, sampling: Callable[[], Sampling] | None) -> float:
    """Wall time per step after ten steps, without a wait for the device in between."""
    if sampling is None:
        truth = train_fake(job)
    else:
        with tempfile.TemporaryDirectory() as folder:
            truth = train_fake(job, lambda: recording_to(Path(folder), sampling()))
    return statistics.mean(end - start for start, end in truth.steps[10:])


def check_overhead() -> Iterator[Row]:
    """Interleaved runs: plain, default sampling, every step."""
    job = _host_limited()
    ways: dict[str, Callable[[], Sampling] | None] = {
        "plain": None,
        "default sampling": Adaptive,
        "every step": EveryStep,
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(5):
        for way, sampling in ways.items():
            times[way].append(_step_ns(job, sampling))
    plain = min(times["plain"])
    for way in ("default sampling", "every step"):
        share = min(times[way]) / plain - 1
        promised = way == "default sampling"
        yield Row(
            check=f"overhead, 24 units, host-limited step of {ms(plain)}, {way}",
            measured=percent(share),
            expected=f"<= {percent(ALLOWED_OVERHEAD)}" if promised else "(no promise)",
            ok=share <= ALLOWED_OVERHEAD or not promised,
        )


def check_memory() -> Iterator[Row]:
    """A unit's recorded bytes against what the allocator gives when it is gathered."""
    seen: dict[str, int] = {}

    def measure(model: nn.Module) -> None:
        for name, layer in model.named_children():
            for index, unit in enumerate(layer.children() if name == "layers" else ()):
                before = _allocated()
                unit.unshard()  # type: ignore[operator]
                seen[f"layers.{index}"] = _allocated() - before
                unit.reshard()  # type: ignore[operator]

    with tempfile.TemporaryDirectory() as folder:
        job = replace(JOB, steps=3)
        train_fake(job, lambda: recording_to(Path(folder)), measure)
        data = open_run(Path(folder)).sources[0].load()
    for unit in data.header.units:
        if unit.fqn == ROOT:
            continue
        slack = BLOCK_BYTES * max(len(unit.params), 1)
        yield Row(
            check=f"gathered bytes of {unit.fqn}",
            measured=size(unit.unsharded_bytes),
            expected=f"{size(seen[unit.fqn])} (allocator)",
            ok=0 <= seen[unit.fqn] - unit.unsharded_bytes <= slack,
        )


def _allocated() -> int:
    _cuda.synchronize()
    return int(torch.cuda.memory_allocated())


def check_losses() -> Iterator[Row]:
    """The same to the last bit, with and without recording."""
    job = replace(JOB, wire=WIRES["fast"], depth=1, micro_batches=2)
    plain = train_fake(job).losses
    with tempfile.TemporaryDirectory() as folder:
        recorded = train_fake(job, lambda: recording_to(Path(folder))).losses
    same = sum(a == b for a, b in zip(plain, recorded, strict=True))
    yield Row(
        check="losses bit-identical with recording",
        measured=f"{same} of {len(plain)}",
        expected="all",
        ok=same == len(plain),
    )


def check_host_lead() -> Iterator[Row]:
    """Passes at whose end the device had run dry, in a step that the host limits and
    in one that the device does.
    """
    for limited_by, job in (("host", _host_limited()), ("device", JOB)):
        data, _ = record(replace(job, steps=8), EveryStep())
        times = measure_rank(data).unit_times
        known = int(times.led_calls.sum())
        share = int(times.caught_up_calls.sum()) / known if known else 0.0
        by_host = limited_by == "host"
        yield Row(
            check=f"unit passes that ran dry, {limited_by}-limited step",
            measured=f"{percent(share)} of {known}",
            expected=f">= {percent(CAUGHT_UP_SHARE)}" if by_host else "0 %",
            ok=share >= CAUGHT_UP_SHARE if by_host else share == 0 and known > 0,
        )


CHECKS = (check_exposure, check_overhead, check_memory, check_losses, check_host_lead)


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = ["| check | measured | expected | |", "|---|---|---|---|"]
    for row in rows:
        verdict = "ok" if row.ok else "**FAILS**"
        lines.append(f"| {row.check} | {row.measured} | {row.expected} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    """Run the checks; 0 where all hold or there is no device."""
    parser = argparse.ArgumentParser(description="the recorder on one real GPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="write figures here")
    out: Path = parser.parse_args().out
    if not torch.cuda.is_available():
        click.echo("skipped: no CUDA device")
        return 0
    start = time.monotonic()
    rows: list[Row] = []
    for check in CHECKS:
        for row in check():
            rows.append(row)
            click.echo(f"{'ok   ' if row.ok else 'FAILS'} {row.check}: {row.measured}, "
                  f"expected {row.expected}")  # fmt: skip
    about = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {time.monotonic() - start:.0f} s. Made by "
        "`python -m tests.benchmarks.gpu`."
    )
    text = f"# The recorder on one GPU\n\n{about}\n\n{table(rows)}\n"
    out.write_text(text, encoding="utf-8")
    click.echo(f"\n{table(rows)}\n\n{about}\nwritten to {out}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
