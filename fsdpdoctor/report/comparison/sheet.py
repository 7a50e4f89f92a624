"""The fair-benchmark sheet: a run's figures, each with its spread and its definition.

Two runs may be set beside each other by it, also of different trainers, because it says
what was measured: over which steps, of which rank, with what counted in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.detectors.judged_steps import judged_collectives
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import SECOND
from fsdpdoctor.report.comparison.times import Floats, StepMeans
from fsdpdoctor.schema import UNKNOWN, Kind, median, percentiles
from fsdpdoctor.storage.json_text import json_text

SHEET_VERSION = 1
"""Of the JSON."""

STABLE_STEPS = 3
STABLE_SHARE = 0.1
"""A run is stable from the first step on that begins so many in a row, each within so
much of the median judged one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. Low and high are the quartiles of its samples."""

    name: str
    unit: str  # "1/s", "share", "bytes", "ns"
    value: float | None  # the median; None: see `why_not`
    low: float | None
    high: float | None
    samples: int
    definition: str
    why_not: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """All figures of a run."""

    schema_version: int = SHEET_VERSION
    run: str
    world_size: int
    device: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user says, because a record does not."""

    tokens_per_step: float | None = None  # of one rank
    flops_per_step: float | None = None  # of one rank
    peak_flops: float | None = None  # of one device, per second


def sheet_of(name: str, m: Measures, given: Given) -> Sheet:
    """A run's sheet."""
    devices = {rank.header.device_name or rank.header.device for rank in m.ranks}
    return Sheet(
        run=name,
        world_size=m.run.world_size,
        device=", ".join(sorted(devices)),
        figures=(
            _step(m),
            _tokens(m, given),
            _utilisation(m, given),
            _memory(m),
            _gathers(m),
            *_checkpoints(m),
            *_start(m),
        ),
    )


def encode_sheets(sheets: Sequence[Sheet]) -> str:
    """One as itself, several as a list of them."""
    if len(sheets) == 1:
        return json_text(sheets[0])
    return json_text({"schema_version": SHEET_VERSION, "sheets": list(sheets)})


def _figure(
    name: str,
    unit: str,
    samples: Sequence[float] | Floats,
    definition: str,
    why_not: str,
) -> Figure:
    values = np.asarray(samples, dtype=np.float64)
    if not len(values):
        return Figure(
            name=name,
            unit=unit,
            value=None,
            low=None,
            high=None,
            samples=0,
            definition=definition,
            why_not=why_not,
        )
    low, high = percentiles(values, (25, 75))
    return Figure(
        name=name,
        unit=unit,
        value=float(median(values)),
        low=float(low),
        high=float(high),
        samples=len(values),
        definition=definition,
    )


_NO_STEP = "no step was judged"


def _by_step(m: Measures, amounts: Sequence[Int64s]) -> Floats:
    """Amounts of each rank's judged steps, as the mean over ranks of each step."""
    steps = (rank.judged_steps for rank in m.ranks)
    return StepMeans.of(m).mean(zip(steps, amounts, strict=True))


def _step_ns(m: Measures) -> Floats:
    return _by_step(m, [rank.steps.duration_ns[rank.judged] for rank in m.ranks])


def _step(m: Measures) -> Figure:
    return _figure(
        "step_time",
        "ns",
        _step_ns(m),
        "from the end of one optimizer step to the end of the next, mean over ranks; "
        "one sample a judged step (warm-up, outliers and the memory step left out)",
        _NO_STEP,
    )


def _tokens(m: Measures, given: Given) -> Figure:
    definition = (
        "tokens of one rank in a step / its duration, mean over ranks; one sample a "
        "judged step. Tokens: those of its root's inputs"
    )
    steps = _step_ns(m)
    if given.tokens_per_step is not None:
        tokens = np.full(len(steps), given.tokens_per_step)
        definition = definition.replace("those of its root's inputs", "as given")
    else:
        amounts = [rank.steps.tokens[rank.judged] for rank in m.ranks]
        known = all((amount != UNKNOWN).all() for amount in amounts)
        tokens = _by_step(m, amounts) if known else np.empty(0)
    rates = tokens / steps * SECOND if len(tokens) == len(steps) else np.empty(0)
    return _figure(
        "tokens_per_second_per_device",
        "1/s",
        rates,
        definition,
        "the inputs are no tokens: give --tokens" if len(steps) else _NO_STEP,
    )


def _utilisation(m: Measures, given: Given) -> Figure:
    flops, how = _flops(m, given)
    definition = (
        "model FLOPs of one rank in a step / (its duration x the device's peak); one "
        f"sample a judged step. FLOPs: {how}"
    )
    if flops is None or not given.peak_flops:
        missing = "--peak-tflops or --device" if flops is not None else "--flops"
        return _figure("mfu", "share", (), definition, f"give {missing}")
    peak = given.peak_flops
    definition += f"; peak: {peak / 1e12:g} TFLOP/s"
    share = flops / (_step_ns(m) / SECOND * peak)
    return _figure("mfu", "share", share, definition, _NO_STEP)


def _flops(m: Measures, given: Given) -> tuple[float | None, str]:
    if given.flops_per_step is not None:
        return given.flops_per_step, "as given"
    counted = [
        memory.flops - memory.recomputed_flops
        for rank in m.ranks
        if (memory := rank.header.memory) is not None and memory.flops != UNKNOWN
    ]
    if not counted:
        return None, "not counted"
    return sum(counted) / len(counted), (
        "counted in the memory step by torch.utils.flop_counter's formulas, forward "
        "and backward, without recomputation; mean over ranks"
    )


def _memory(m: Measures) -> Figure:
    peaks = [rank.steps.peak_allocated_bytes[rank.judged] for rank in m.ranks]
    if peaks and all(len(p) and (p != UNKNOWN).all() for p in peaks):
        most: dict[int, int] = {}
        for rank, values in zip(m.ranks, peaks, strict=True):
            pairs = zip(rank.judged_steps.tolist(), values.tolist(), strict=True)
            for step, value in pairs:
                most[step] = max(most.get(step, 0), value)
        samples: list[float] = [float(v) for v in most.values()]
        how = "most allocated by the caching allocator in a judged step"
    else:
        samples = [
            float(memory.peak_bytes)
            for rank in m.ranks
            if (memory := rank.header.memory) is not None and memory.refused is None
        ]
        samples = [max(samples)] if samples else []
        how = "most held in the one step whose storages were counted"
    return _figure(
        "peak_memory",
        "bytes",
        samples,
        f"{how}, of the rank that held most; what is outside the allocator (context, "
        "communication buffers) is not in it",
        "neither an allocator was asked nor storages counted",
    )


def _gathers(m: Measures) -> Figure:
    gathers = (
        rows.rows(rows.kind == Kind.ALL_GATHER) for _, rows in judged_collectives(m)
    )
    known = any(len(rank.collectives) for rank in m.ranks)
    return _figure(
        "gather_time",
        "ns",
        StepMeans.of(m).mean((rows.step, rows.duration_ns) for rows in gathers)
        if known
        else (),
        "all FSDP2 all-gathers of a step from begin to end, hidden or not, with the "
        "wait for the last rank, mean over ranks; one sample a judged step",
        "no collective was seen",
    )


def _checkpoints(m: Measures) -> Iterator[Figure]:
    for name, kind, what, but in (
        ("save", Kind.CHECKPOINT_SAVE, "saved", ", what async_save does later not"),
        ("restore", Kind.CHECKPOINT_LOAD, "loaded", ""),
    ):
        by_call: dict[int, int] = {}
        for rank in m.ranks:
            rows = rank.host.rows(rank.host.kind == kind)
            for at, ns in enumerate(rows.duration_ns.tolist()):
                by_call[at] = max(by_call.get(at, 0), ns)
        yield _figure(
            f"checkpoint_{name}",
            "ns",
            [float(ns) for ns in by_call.values()],
            f"time in which the training stands in a call that {name}s{but}, of the "
            "rank that takes longest; one sample a call",
            f"no checkpoint was {what} in a recorded step",
        )


def _start(m: Measures) -> Iterator[Figure]:
    starts = [rank.header.start for rank in m.ranks]
    begun = [start.process_unix_ns for start in starts if start is not None]
    ends = [_step_ends(rank) for rank in m.ranks]
    known = len(begun) == len(ends) > 0 and all(len(steps) for steps in ends)
    typical = m.median_step_ns
    since = "from when the system made the process"
    yield _figure(
        "time_to_first_step",
        "ns",
        [float(start.total_ns) for start in starts if start is not None],
        f"{since} to the end of the first optimizer step; one sample a rank",
        "the process was not seen from its beginning",
    )
    stable = [_stable(steps, typical) for steps in ends] if known and typical else []
    pairs = zip(stable, begun, strict=True) if known and typical else ()
    yield _figure(
        "time_to_first_stable_step",
        "ns",
        [float(at - first) for at, first in pairs if at is not None],
        f"{since}, of a restarted job that of its last attempt, to the end of the "
        f"first of {STABLE_STEPS} steps in a row that are within {STABLE_SHARE:.0%} of "
        "the median judged one; one sample a rank",
        f"no {STABLE_STEPS} steps in a row are alike, or the process was not seen from "
        "its beginning",
    )


def _step_ends(rank: RankMeasures) -> list[tuple[int, int, int]]:
    """Each step's number, end in Unix time and duration, recorded or not."""
    offset = rank.header.unix_minus_clock_ns
    steps, others = rank.steps, rank.unrecorded
    rows = [
        row
        for table in (steps.rows(steps.complete == 1), others)
        for row in zip(
            table.step.tolist(),
            table.start_ns.tolist(),
            table.end_ns.tolist(),
            strict=True,
        )
    ]
    return [(step, end + offset, end - start) for step, start, end in sorted(rows)]


def _stable(steps: list[tuple[int, int, int]], typical: int) -> int | None:
    """When the first of some alike steps ended."""
    alike = [abs(ns - typical) <= STABLE_SHARE * typical for _, _, ns in steps]
    for at in range(len(steps) - STABLE_STEPS + 1):
        if all(alike[at : at + STABLE_STEPS]):
            return steps[at][1]
    return None
