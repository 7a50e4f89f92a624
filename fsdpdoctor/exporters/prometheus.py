"""A run in progress as Prometheus metrics: recent steps, and all collectives so far.

Gauges are of each rank's last `RECENT` judged steps, so that an alert hears of what is
now; `fsdpdoctor_run_step_seconds` is the median of the whole run, to hold them against.
Histograms count every recorded collective from the run's beginning, as Prometheus has
it. A figure that the record does not have is no metric: it is never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import UNKNOWN, Kind

RECENT = 20

NS = 1e-9

BOUNDS_S = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1.0)
"""Of histograms: from a small gather on one node to one that stops a step."""


def metrics_of(m: Measures) -> Iterator[Metric]:
    """All of them, of a run that may still go on."""
    yield from _steps(m)
    yield from _parts(m)
    yield from _memory(m)
    for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE):
        yield from _collectives(m, kind)
    yield _progress(m)


def _recent(rank: RankMeasures) -> Int64s:
    """Its last judged steps."""
    return rank.judged_steps[-RECENT:]


def _durations(rank: RankMeasures) -> Int64s:
    return rank.steps.duration_ns[rank.judged]


def _by_rank(
    name: str, words: str, rows: Sequence[tuple[RankMeasures, float]]
) -> GaugeMetricFamily:
    found = GaugeMetricFamily(name, words, labels=("rank",))
    for rank, value in rows:
        found.add_metric((str(rank.rank),), value)
    return found


def _steps(m: Measures) -> Iterator[Metric]:
    ranks = [rank for rank in m.ranks if len(rank.judged_steps)]
    yield _by_rank(
        "fsdpdoctor_step_seconds",
        f"Median of the last {RECENT} recorded steps",
        [(r, float(np.median(_durations(r)[-RECENT:])) * NS) for r in ranks],
    )
    yield _by_rank(
        "fsdpdoctor_run_step_seconds",
        "Median of all recorded steps",
        [(r, float(np.median(_durations(r))) * NS) for r in ranks],
    )
    done = CounterMetricFamily(
        "fsdpdoctor_steps", "Steps that a rank has ended", labels=("rank",)
    )
    for rank in m.ranks:
        if len(rank.steps.step):
            done.add_metric((str(rank.rank),), int(rank.steps.step[-1]) + 1)
    yield done


def _parts(m: Measures) -> Iterator[Metric]:
    """Mean over the recent steps of all ranks, so that parts add up to the step."""
    ranks = [rank for rank in m.ranks if len(rank.judged_steps)]
    steps = sum(len(_recent(rank)) for rank in ranks)
    if not steps:
        return
    budget = GaugeMetricFamily(
        "fsdpdoctor_budget_seconds",
        f"What the last {RECENT} recorded steps went to, mean per step",
        labels=("part",),
    )
    for part in ranks[0].budget_ns:
        total = sum(r.budget_ns[part][r.judged][-RECENT:].sum() for r in ranks)
        budget.add_metric((part,), float(total) * NS / steps)
    yield budget
    if not m.stalls_known:
        return
    exposed = GaugeMetricFamily(
        "fsdpdoctor_exposed_seconds",
        f"Compute waits for communication, by cause, mean of {RECENT} steps",
        labels=("cause",),
    )
    for cause in CAUSES:
        known = [rank for rank in ranks if cause in m.causes[rank.rank]]
        if len(known) == len(ranks):
            total = sum(
                m.causes[r.rank][cause][np.isin(r.stalls.step, _recent(r))].sum()
                for r in known
            )
            exposed.add_metric((cause,), float(total) * NS / steps)
    yield exposed


def _memory(m: Measures) -> Iterator[Metric]:
    for name, words, column in (
        ("allocated", "Most that tensors held", "peak_allocated_bytes"),
        ("reserved", "Most that the allocator held", "peak_reserved_bytes"),
        ("rss", "Resident memory at a step's end", "rss_bytes"),
    ):
        rows = []
        for rank in m.ranks:
            of_steps: Int64s = getattr(rank.steps, column)[-RECENT:]
            known = of_steps[of_steps != UNKNOWN]
            if len(known):
                rows.append((rank, float(known.max())))
        if rows:
            words = f"{words}, of the last {RECENT} recorded steps"
            yield _by_rank(f"fsdpdoctor_{name}_bytes", words, rows)


def _collectives(m: Measures, kind: Kind) -> Iterator[Metric]:
    found = HistogramMetricFamily(
        f"fsdpdoctor_{kind.key}_seconds",
        "From its start on this rank to its end, every recorded one",
        labels=("rank",),
    )
    for rank in m.ranks:
        rows = rank.collectives.rows(rank.collectives.kind == kind)
        if not len(rows):
            continue
        seconds = rows.duration_ns * NS
        counts = [(str(at), float((seconds <= at).sum())) for at in BOUNDS_S]
        counts.append(("+Inf", float(len(seconds))))
        found.add_metric((str(rank.rank),), counts, float(seconds.sum()))
    if found.samples:
        yield found


def _progress(m: Measures) -> Metric:
    """Of the last event, to be held against `time()`."""
    rows = [
        (r, (r.beats[-1].time_ns + r.header.unix_minus_clock_ns) * NS)
        for r in m.ranks
        if r.beats
    ]
    return _by_rank(
        "fsdpdoctor_last_progress_timestamp_seconds",
        "Unix time of its last event",
        rows,
    )
