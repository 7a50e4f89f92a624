"""Ranks of traces that cannot be of one job, though they lie in one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.errors import InputError

APART_NS = 12 * 3600 * 10**9
"""Captures of one job begin within minutes, and clocks of hosts are set: half a day
apart they are of two runs. (17 s is the largest distance in a public report.)"""

SIGNS = 2
"""Of four (no step in common, other devices, clocks apart, another number of ranks)
that must hold: a job may have devices of two kinds, or hosts whose clocks were never
set."""


def refuse_two_jobs(ranks: Sequence[RankMeasures], where: Mapping[int, str]) -> None:
    """Raise InputError, with both jobs named, where ranks are of different jobs.

    `where` has the path of each rank's trace.
    """
    if not ranks:
        return
    jobs: list[list[RankMeasures]] = []
    for rank in ranks:
        own = next((job for job in jobs if _signs(job[0], rank) < SIGNS), None)
        if own is None:
            jobs.append([rank])
        else:
            own.append(rank)
    if len(jobs) < 2:
        return
    shown = "; ".join(_named(job, where) for job in jobs[:3])
    raise InputError(
        f"these traces are of {len(jobs)} jobs: {shown}. Give the traces of one job"
    )


def _signs(one: RankMeasures, other: RankMeasures) -> int:
    """How many signs say that two ranks are of different jobs."""
    steps = set(one.steps.step.tolist()), set(other.steps.step.tolist())
    names = one.header.device_name, other.header.device_name
    begins = _begin_ns(one), _begin_ns(other)
    return sum(
        (
            bool(steps[0] and steps[1] and not steps[0] & steps[1]),
            None not in names and names[0] != names[1],
            None not in begins and abs((begins[0] or 0) - (begins[1] or 0)) > APART_NS,
            one.header.world_size != other.header.world_size,
        )
    )


def _begin_ns(rank: RankMeasures) -> int | None:
    """When its capture began, as near as its rows tell."""
    found = [
        int(column.min())
        for column in (rank.steps.start_ns, rank.capture.start_ns)
        if len(column)
    ]
    return min(found, default=None)


def _span(numbers: Sequence[int]) -> str:
    first, last = min(numbers), max(numbers)
    return str(first) if first == last else f"{first}-{last}"


def _named(job: Sequence[RankMeasures], where: Mapping[int, str]) -> str:
    first = job[0]
    numbers = [rank.rank for rank in job]
    many = "ranks" if len(job) > 1 else "rank"
    facts = [f"{many} {_span(numbers)} ({where.get(first.rank, 'unknown')})"]
    if first.header.device_name:
        facts.append(f"on {first.header.device_name}")
    if len(first.steps):
        facts.append(f"steps {_span(first.steps.step.tolist())}")
    begin = _begin_ns(first)
    if begin is not None:
        when = datetime.fromtimestamp(begin / 1e9, UTC)
        facts.append(f"from {when:%Y-%m-%d %H:%M} UTC")
    return ", ".join(facts)
