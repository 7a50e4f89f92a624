"""Comparison: what differs between two runs, beyond what their steps' noise explains.

Settings come first: two runs that were not set up alike are compared in vain. Then
figures, each with the noise that it had to exceed. Counts and bytes are exact, and
any difference of theirs counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import MIN_JUDGED_STEPS, RankMeasures
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.report.value import Report, UnitRow
from fsdpdoctor.schema import COLLECTIVE_KINDS, Phase
from fsdpdoctor.storage.json_text import json_text

COMPARISON_VERSION = 1
"""Of the JSON."""

SURE = 4.0
"""Standard errors that two medians must lie apart. Some hundred figures are compared
at once, so three (one in 370 by chance) would find something every time."""

MIN_SHARE_OF_STEP = 0.005
"""A figure that moved by less than this share of the step is not worth a line."""

MAD_TO_DEVIATION = 1.4826
"""Of a normal distribution; the median's standard error is 1.2533 times the mean's."""

MEDIAN_ERROR = 1.2533

Floats = npt.NDArray[np.float64]
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting or figure that is not the same in both runs."""

    kind: str  # "setting", "count", "time", "bytes"
    figure: str  # a JSON report's name for it
    unit: str | None
    a: Scalar
    b: Scalar
    change: float | None = None  # b - a, where they are numbers
    noise: float | None = None  # what the change had to exceed; None: it is exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs from run A to run B: settings, then figures, largest first."""

    schema_version: int = COMPARISON_VERSION
    a: str
    b: str
    step_time_ns: tuple[int | None, int | None]  # medians
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...]  # what one of the runs cannot tell, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One side of a comparison."""

    name: str
    measures: Measures
    report: Report


def compare(a: Subject, b: Subject) -> Comparison:
    """Settings that differ, then figures that differ beyond noise."""
    step = a.measures.median_step_ns, b.measures.median_step_ns
    longest = max((s for s in step if s is not None), default=0)
    times = sorted(
        _times(a.measures, b.measures, longest * MIN_SHARE_OF_STEP),
        key=lambda d: -abs(d.change or 0),
    )
    return Comparison(
        a=a.name,
        b=b.name,
        step_time_ns=step,
        differences=(
            *_settings(a.report, b.report),
            *_exact(a.report, b.report),
            *times,
        ),
        not_compared=tuple(_not_compared(a, b)),
    )


def encode_comparison(comparison: Comparison) -> str:
    """The comparison as JSON text."""
    return json_text(comparison)


def _not_compared(a: Subject, b: Subject) -> Iterator[str]:
    for side in (a, b):
        steps = len(side.report.health.judged_steps)
        if steps < MIN_JUDGED_STEPS:
            yield (
                f"times: {side.name} has {steps} steps to judge, "
                f"fewer than {MIN_JUDGED_STEPS} have no noise to tell"
            )
    known_a, known_b = _unit_rows(a.report), _unit_rows(b.report)
    if known_a and known_b and not known_a.keys() & known_b.keys():
        yield "units: the runs have no unit of the same name"


def _settings(a: Report, b: Report) -> Iterator[Difference]:
    for name in ("source", "world_size", "device", "device_name", "torch", "nccl"):
        yield from _unequal("setting", name, getattr(a.run, name), getattr(b.run, name))
    for name in ("wrapper", "model_class", "numel", "micro_batches", "tokens"):
        yield from _unequal("setting", name, getattr(a.run, name), getattr(b.run, name))
    ours, theirs = a.run.configuration, b.run.configuration
    for name in sorted({*ours, *theirs}):
        yield from _unequal("setting", name, ours.get(name), theirs.get(name))
    yield from _unequal("setting", "applied", a.run.applied, b.run.applied)
    units_a, units_b = _unit_rows(a), _unit_rows(b)
    yield from _unequal("setting", "units", len(units_a), len(units_b))
    for key in (key for key in units_a if key not in units_b):
        yield _only("setting", key, True, False)
    for key in (key for key in units_b if key not in units_a):
        yield _only("setting", key, False, True)
    for key in (key for key in units_a if key in units_b):
        mine, other = units_a[key].settings, units_b[key].settings
        for field in fields(mine):
            name = field.name
            yield from _unequal(
                "setting", name, getattr(mine, name), getattr(other, name), key
            )


def _only(kind: str, unit: str, in_a: bool, in_b: bool) -> Difference:
    return Difference(kind=kind, figure="unit", unit=unit, a=in_a, b=in_b)


def _unequal(
    kind: str, figure: str, a: object, b: object, unit: str | None = None
) -> Iterator[Difference]:
    if a == b:
        return
    both = isinstance(a, int | float) and isinstance(b, int | float)
    yield Difference(
        kind=kind,
        figure=figure,
        unit=unit,
        a=_scalar(a),
        b=_scalar(b),
        change=float(b) - float(a) if both and kind != "setting" else None,  # type: ignore[arg-type]
    )


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Sequence):
        return ", ".join(map(str, value))
    return str(value)


def _unit_rows(report: Report) -> Mapping[str, UnitRow]:
    return {row.unit: row for row in report.units}


_EXACT = {
    "all_gathers.forward": "count",
    "all_gathers.backward": "count",
    "reduce_scatters": "count",
    "all_reduces": "count",
    "all_gather_bytes": "bytes",
    "reduce_scatter_bytes": "bytes",
    "peak_bytes": "bytes",
}


def _exact(a: Report, b: Report) -> Iterator[Difference]:
    units_a, units_b = _unit_rows(a), _unit_rows(b)
    for name in (name for name in units_a if name in units_b):
        for figure, kind in _EXACT.items():
            mine: object = units_a[name]
            other: object = units_b[name]
            for part in figure.split("."):
                mine, other = getattr(mine, part), getattr(other, part)
            if mine is not None and other is not None:
                yield from _unequal(kind, figure, mine, other, name)


def _times(a: Measures, b: Measures, smallest_ns: float) -> Iterator[Difference]:
    samples_a, samples_b = _samples(a), _samples(b)
    for key in (key for key in samples_a if key in samples_b):
        mine, other = samples_a[key], samples_b[key]
        if min(len(mine), len(other)) < MIN_JUDGED_STEPS:
            continue
        middle_a, middle_b = float(np.median(mine)), float(np.median(other))
        noise = max(
            SURE * math.hypot(_error(mine), _error(other)),
            smallest_ns,
        )
        if abs(middle_b - middle_a) > noise:
            figure, unit = key
            yield Difference(
                kind="time",
                figure=figure,
                unit=unit,
                a=round(middle_a),
                b=round(middle_b),
                change=round(middle_b - middle_a),
                noise=round(noise),
            )


def _error(samples: Floats) -> float:
    """The standard error of a median, from the spread about it."""
    spread = float(np.median(np.abs(samples - np.median(samples))))
    return MEDIAN_ERROR * MAD_TO_DEVIATION * spread / math.sqrt(len(samples))


def _samples(m: Measures) -> dict[tuple[str, str | None], Floats]:
    """By figure and unit: one value per judged step, the mean over its ranks."""
    sums: dict[tuple[str, str | None], Floats] = {}
    steps = np.array(sorted({int(s) for r in m.ranks for s in r.judged_steps}))
    ranks = np.zeros(len(steps))
    for rank in m.ranks:
        at = np.searchsorted(steps, rank.judged_steps)
        ranks[at] += 1
        for key, step, amount in _rank_samples(rank, m.stalls_known):
            here = sums.setdefault(key, np.zeros(len(steps)))
            np.add.at(here, np.searchsorted(steps, step), amount)
    return {key: total / ranks for key, total in sums.items()}


def _rank_samples(
    rank: RankMeasures, stalls_known: bool
) -> Iterator[tuple[tuple[str, str | None], Int64s, Int64s]]:
    """Figures of one rank: (figure, unit), the steps of its amounts, the amounts."""
    judged = rank.judged_steps
    yield ("step_time_ns", None), judged, rank.steps.duration_ns[rank.judged]
    for part, amount in rank.budget_ns.items():
        yield (f"budget_ns_per_step.{part}", None), judged, amount[rank.judged]
    stalls = rank.stalls.rows(rank.in_judged(rank.stalls.step))
    times = rank.unit_times.rows(rank.in_judged(rank.unit_times.step))
    for index, unit in enumerate(rank.units):
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            word = phase.key
            rows = times.rows((times.unit == index) & (times.phase == phase))
            yield (f"{word}_ns", unit.fqn), rows.step, rows.compute_ns
            if not stalls_known:
                continue
            mine = stalls.rows((stalls.unit == index) & (stalls.phase == phase))
            for kind in COLLECTIVE_KINDS:
                waits = mine.rows(mine.kind == kind)
                figure = f"exposed_ns.{word}.{kind.key}"
                yield (figure, unit.fqn), waits.step, waits.duration_ns
