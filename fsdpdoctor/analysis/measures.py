"""Measures: the numbers that detectors, reports and the simulator share.

`measure_rank` reduces one rank to small tables; `measure` brings the ranks together:
clocks, last arrivals, and the five causes of every stall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fsdpdoctor.analysis.by_rank import ByRank, LastOf
from fsdpdoctor.analysis.clock_alignment import Alignment, RankCollectives, align
from fsdpdoctor.analysis.overlap import Overlap
from fsdpdoctor.analysis.rank_measures import RankMeasures, agreed, measure_rank
from fsdpdoctor.analysis.rank_shelf import RankShelf, given_back, tables_of
from fsdpdoctor.analysis.stall_causes import split_stalls
from fsdpdoctor.analysis.step_budget import PARTS
from fsdpdoctor.analysis.two_jobs import refuse_two_jobs
from fsdpdoctor.errors import InputError
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.run import RankSource, Run
from fsdpdoctor.schema import NOT_CAPTURED, Evidence, Kind, RunHeader, UnitSpec, median

if TYPE_CHECKING:
    from concurrent.futures import Executor

MODELLED_SOURCES = ("rehearsal", "simulated")
"""Sources in which one rank stands for all: no other is ever late."""

TRACE_SOURCES = ("kineto", "nsys")
"""Sources whose ranks are files that somebody put together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Measures:
    """A whole run, measured."""

    run: RunHeader
    ranks: Sequence[RankMeasures]  # a tuple, or from a file a rank at a time
    alignment: Alignment
    causes: Mapping[int, Mapping[str, Int64s]]  # by rank, by cause: [len(stalls)]
    missing_ranks: tuple[int, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @cached_property
    def evidence(self) -> frozenset[Evidence]:
        """What every rank can show, and RANKS where collectives of judged steps were
        matched. One without a step, as a rank that hands out data, does not take it
        from the others.
        """
        every = [(rank.evidence, len(rank.steps) > 0) for rank in self.ranks]
        trained = [evidence for evidence, steps in every if steps]
        shown = trained or [evidence for evidence, _ in every]
        if not shown:
            return frozenset()
        common = frozenset.intersection(*shown)
        met = Evidence.KERNELS in common or self._judged_together
        if self.alignment.matched and met:
            return common | {Evidence.RANKS}
        return common - {Evidence.RANKS}

    @cached_property
    def _judged_together(self) -> bool:
        """Whether most judged steps were recorded by two ranks at least: where the
        others' records break off before, who was late cannot be told in them.
        """
        recorded: Counter[int] = Counter()
        judged: Counter[int] = Counter()
        for rank in self.ranks:
            recorded.update(rank.steps.step.tolist())
            judged.update(rank.judged_steps.tolist())
        together = sum(n for step, n in judged.items() if recorded[step] > 1)
        return 2 * together >= judged.total()

    def of(self, rank: int) -> RankMeasures:
        """One rank's. Raises KeyError where it left none."""
        return self.ranks[self.rank_places[rank]]

    @cached_property
    def rank_places(self) -> dict[int, int]:
        """Where each rank is in `ranks`."""
        return {rank.rank: at for at, rank in enumerate(self.ranks)}

    @property
    def rank_numbers(self) -> tuple[int, ...]:
        return tuple(self.rank_places)

    @property
    def units(self) -> tuple[UnitSpec, ...]:
        """The units of the first rank; the others' must not differ (FD406)."""
        return self.ranks[0].units if self.ranks else ()

    @cached_property
    def step_ns(self) -> Int64s:
        """[judged steps of all ranks] durations."""
        parts = [rank.steps.duration_ns[rank.judged] for rank in self.ranks]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    @property
    def median_step_ns(self) -> int | None:
        """None where there is no whole step."""
        return int(median(self.step_ns)) if len(self.step_ns) else None

    def exposed_ns_per_step(
        self, kind: Kind | None = None, cause: str | None = None
    ) -> int | None:
        """Mean over judged steps and ranks, so that parts add up to the whole.

        None where stalls were not measured or there is no whole step.
        """
        if not self.stalls_known or not len(self.step_ns):
            return None
        total = 0
        for rank in self.ranks:
            stalls = rank.stalls
            time_ns = (
                stalls.duration_ns if cause is None else self.causes[rank.rank][cause]
            )
            rows = rank.in_judged(stalls.step)
            if kind is not None:
                rows &= stalls.kind == kind
            total += int(time_ns[rows].sum())
        return round(total / len(self.step_ns))

    @cached_property
    def stalls_known(self) -> bool:
        """Whether exposed time was measured, or can be derived from kernels."""
        if any(NOT_CAPTURED in rank.header.health for rank in self.ranks):
            return False
        return bool(self.evidence & {Evidence.STALLS, Evidence.KERNELS})

    @cached_property
    def late_ranks_told(self) -> bool:
        """Whether waiting for a late rank is told from the wire: ranks were matched, or
        no other rank can be late.
        """
        alone = self.run.world_size < 2 or self.run.source in MODELLED_SOURCES
        return alone or Evidence.RANKS in self.evidence

    def budget_ns_per_step(self) -> dict[str, int]:
        """The mean step, part by part; the parts add up to the mean step."""
        steps = len(self.step_ns)
        if not steps:
            return {}
        totals = {
            part: sum(
                int(rank.budget_ns[part][rank.judged].sum()) for rank in self.ranks
            )
            for part in PARTS
        }
        mean = {part: total // steps for part, total in totals.items()}
        # What whole nanoseconds lose is given to the part that is the rest anyway.
        mean["other"] += int(self.step_ns.sum()) // steps - sum(mean.values())
        return mean

    def overlap_share(self, kind: str) -> float | None:
        """All ranks together; None where compute or communication was not measured."""
        return self.overlap(kind).share if self.stalls_known else None

    def overlap(self, kind: str) -> Overlap:
        """All ranks together."""
        parts = [rank.overlap[kind] for rank in self.ranks]
        return Overlap(
            communication_ns=sum(p.communication_ns for p in parts),
            overlapped_ns=sum(p.overlapped_ns for p in parts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A rank whose record cannot be read, and why."""

    rank: int
    reason: str


def measure_source(source: RankSource) -> RankMeasures | Unreadable:
    """Load one rank and measure it: what a worker process runs.

    One damaged rank does not cost the others: it comes back as `Unreadable`.
    """
    try:
        return measure_rank(source.load())
    except InputError as error:
        return Unreadable(rank=source.rank, reason=str(error))


def measure(
    run: Run,
    executor: Executor | None = None,
    on_rank: Callable[[int], None] = lambda rank: None,
) -> Measures:
    """Measure every rank, one after the other or through an executor.

    `on_rank` is called with each rank that is done, in order. Raises InputError
    where no rank can be read.
    """
    mapped: Iterable[RankMeasures | Unreadable]
    if executor is None:
        mapped = map(measure_source, run.sources)
    else:
        mapped = executor.map(measure_source, run.sources)
    shelf = RankShelf()
    failed: list[Unreadable] = []
    for result in mapped:
        if isinstance(result, Unreadable):
            failed.append(result)
        else:
            shelf.put(result)
        on_rank(result.rank)
    ranks = shelf.take()
    if failed and not ranks:
        raise InputError(failed[0].reason)
    if run.header.source in TRACE_SOURCES:
        refuse_two_jobs(ranks, {one.rank: one.where for one in run.sources})
    return reduce(
        run.header,
        ranks,
        missing_ranks=(*run.missing_ranks, *(f.rank for f in failed)),
        warnings=(*run.warnings, *(f"rank {f.rank}: {f.reason}" for f in failed)),
    )


def reduce(
    header: RunHeader,
    ranks: Sequence[RankMeasures],
    *,
    missing_ranks: tuple[int, ...] = (),
    warnings: tuple[str, ...] = (),
) -> Measures:
    """Bring measured ranks together."""
    ranks = given_back(sorted(ranks, key=lambda rank: rank.rank), tables_of)
    return together(
        header, agreed(ranks), missing_ranks=missing_ranks, warnings=warnings
    )


def together(
    header: RunHeader,
    agreed_ranks: Iterable[RankMeasures],
    *,
    missing_ranks: tuple[int, ...] = (),
    warnings: tuple[str, ...] = (),
) -> Measures:
    """The same for ranks that judge the same steps: those of `Measures.ranks`."""
    ordered = given_back(agreed_ranks, tables_of)
    alignment = align(
        given_back(
            [
                RankCollectives(
                    header=rank.header,
                    collectives=rank.collectives,
                    others=rank.other_collectives,
                )
                for rank in ordered
            ],
            lambda rank: (rank.collectives, rank.others),
        )
    )
    by_rank = {rank.rank: rank for rank in ordered}

    def causes_of(rank: int) -> Mapping[str, Int64s]:
        one = by_rank[rank]
        last_ns = alignment.last_arrival_ns[rank]
        return split_stalls(one.collectives, one.stalls, last_ns)

    return Measures(
        run=_on_their_device(header, ordered),
        ranks=ordered,
        alignment=alignment,
        causes=ByRank(by_rank, LastOf(causes_of)),
        missing_ranks=missing_ranks,
        warnings=warnings,
    )


def _on_their_device(header: RunHeader, ranks: Sequence[RankMeasures]) -> RunHeader:
    """The run's header with the device that its ranks show: a trace's head may name
    none, and there are kernels in it.
    """
    shown = {rank.header.device for rank in ranks} - {"cpu"}
    if header.source not in TRACE_SOURCES or header.device != "cpu" or not shown:
        return header
    return replace(header, device=min(shown))
