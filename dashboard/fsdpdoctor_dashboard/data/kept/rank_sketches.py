"""What pages show of all ranks together, in a size that hardly grows with them.

A page that asks each of thousands of ranks for its columns takes as long as the
analysis. So this is made once, by who has measured them, and kept with the report.
Every figure is the one that the measures give.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.report.collective_times import SizeTimes, collective_times
from fsdpdoctor.report.collectives_ranks import waits_by_last
from fsdpdoctor.report.rank_lateness import Lateness, lateness, rank_budgets
from fsdpdoctor.report.value import Report
from fsdpdoctor.schema import Evidence, GroupSpec
from fsdpdoctor.simulate.plans.forecast import slowest_rank
from fsdpdoctor_dashboard.data.kept.collective_kinds import KindTimes, kinds_of

NOT_JUDGED = -1
"""Of a rank's step: it has none, or one that was set aside."""

MOST_WAITING = 128
"""Ranks that a matrix shows one by one: each is then four pixels high. Of more,
neighbours share a line, and only who is waited for most has a column."""

SHOWN_WAITING = 64
"""Lines and columns of the matrix then."""


class RankSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Every judged step of every rank; ranks of one host stand beside each other."""

    ranks: tuple[int, ...]
    hosts: tuple[str | None, ...]
    steps: tuple[int, ...]  # that some rank judged
    took_ns: list[list[int]]  # by rank: of each of `steps`, or NOT_JUDGED
    exposed_ns: list[list[int]]  # in which compute stood still
    middle_ns: float  # the median judged step of all ranks

    @property
    def most_judged(self) -> int:
        """The judged steps of the rank that has most."""
        return max(sum(ns != NOT_JUDGED for ns in row) for row in self.took_ns)


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Who waited for whom, in all judged steps together."""

    ranks: tuple[int, ...]
    together: int  # of `ranks`, in each line; the last may have fewer
    last: tuple[int, ...]  # by column: who was the last to arrive
    ns: list[list[int]]  # by line: of all its ranks


class Sketches(msgspec.Struct, frozen=True, kw_only=True):
    """All that pages ask of all ranks."""

    budgets: dict[int, dict[str, int]]  # by rank: its mean step, by part
    slowest: int | None  # who sets the pace of all; None: there is no rank
    late: tuple[Lateness, ...]  # who the others wait for most comes first
    steps: RankSteps
    waits: Waits | None  # None: ranks could not be matched
    sizes: list[SizeTimes]
    kinds: list[KindTimes]
    members: dict[str, tuple[int, ...]]  # of groups, where one role has several


def sketches_of(measures: Measures, report: Report) -> Sketches:
    """Those of a run."""
    budgets = rank_budgets(measures)
    return Sketches(
        budgets=budgets,
        slowest=slowest_rank(measures) if measures.ranks else None,
        late=lateness(budgets, report.ranks),
        steps=steps_of_ranks(measures),
        waits=waits_of(measures),
        sizes=collective_times(measures),
        kinds=kinds_of(measures),
        members=_members(measures),
    )


def steps_of_ranks(measures: Measures) -> RankSteps:
    """How long each judged step took, and how long compute stood still in it."""
    ordered = _hosts_together(measures.ranks)
    steps = sorted({int(s) for rank in ordered for s in rank.judged_steps})
    place = {step: at for at, step in enumerate(steps)}
    took = np.full((len(ordered), len(steps)), NOT_JUDGED, dtype=np.int64)
    exposed = took.copy()
    for at, rank in enumerate(ordered):
        columns = [place[int(step)] for step in rank.steps.step[rank.judged]]
        took[at, columns] = rank.steps.duration_ns[rank.judged]
        exposed[at, columns] = _exposed_by_step(rank)[rank.judged]
    judged = measures.step_ns
    return RankSteps(
        ranks=tuple(rank.rank for rank in ordered),
        hosts=tuple(rank.header.host for rank in ordered),
        steps=tuple(steps),
        took_ns=took.tolist(),
        exposed_ns=exposed.tolist(),
        middle_ns=float(np.median(judged)) if len(judged) else 0.0,
    )


def _hosts_together(ranks: Sequence[RankMeasures]) -> list[RankMeasures]:
    """Ranks of one host beside each other, in the order of their first ranks."""
    first: dict[str | None, int] = {}
    for rank in ranks:
        first.setdefault(rank.header.host, rank.rank)
    return sorted(ranks, key=lambda r: (first[r.header.host], r.rank))


def _exposed_by_step(rank: RankMeasures) -> Int64s:
    stalls = rank.stalls
    order = np.argsort(rank.steps.step)
    at = order[np.searchsorted(rank.steps.step[order], stalls.step)]
    totals = np.zeros(len(rank.steps), dtype=np.int64)
    np.add.at(totals, at, stalls.duration_ns)
    return totals


def waits_of(measures: Measures) -> Waits | None:
    """How long ranks waited, by who was the last to arrive."""
    if Evidence.RANKS not in measures.evidence:
        return None
    ranks = sorted(measures.rank_numbers)
    few = len(ranks) <= MOST_WAITING
    together = 1 if few else -(-len(ranks) // SHOWN_WAITING)
    line = {rank: at // together for at, rank in enumerate(ranks)}
    column = {rank: at for at, rank in enumerate(ranks)}
    total = np.zeros((line[ranks[-1]] + 1, len(ranks)), dtype=np.int64)
    for rank in measures.ranks:
        for other, ns in waits_by_last(measures, rank).items():
            if other in column:
                total[line[rank.rank], column[other]] += ns
    shown = np.arange(len(ranks))
    if not few:
        most = np.argsort(-total.sum(axis=0), kind="stable")[:SHOWN_WAITING]
        shown = np.sort(most)
    return Waits(
        ranks=tuple(ranks),
        together=together,
        last=tuple(ranks[at] for at in shown.tolist()),
        ns=total[:, shown].tolist(),
    )


def _members(measures: Measures) -> dict[str, tuple[int, ...]]:
    """The ranks of each group, where there are several of one role."""
    groups: dict[GroupSpec, None] = {}
    known: set[int] = set()  # ranks of a job have few different tuples of them
    for rank in measures.ranks:
        if id(rank.header.groups) not in known:
            known.add(id(rank.header.groups))
            groups.update(dict.fromkeys(rank.header.groups))
    named: dict[str | None, set[str]] = {}
    for spec in groups:
        named.setdefault(spec.role, set()).add(spec.name)
    return {spec.name: spec.ranks for spec in groups if len(named[spec.role]) > 1}
