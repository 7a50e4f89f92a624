"""The report's rows per unit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.report.models import places
from fsdpdoctor.report.value import (
    ByCause,
    KindTimes,
    PhaseCounts,
    PhaseTimes,
    UnitRow,
    UnitSettings,
)
from fsdpdoctor.schema import COLLECTIVE_KINDS, UNKNOWN, Evidence, Kind, Phase, UnitSpec

UnitKey = tuple[int, str]
"""A unit across ranks, whose own lists may differ (FD406): its tree and its FQN."""

_PHASES = (Phase.FORWARD, Phase.BACKWARD)

_UNIT_SUMS = (
    "all_gathers",
    "reduce_scatters",
    "all_reduces",
    "compute_ns",
    "recompute_ns",
)


@dataclass(slots=True)
class _Sums:
    """One unit's totals over all ranks and judged steps, in the making."""

    times: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    expected: dict[int, int] = field(default_factory=dict)
    exposed: dict[tuple[int, int], int] = field(
        default_factory=lambda: defaultdict(int)
    )
    causes: Counter[str] = field(default_factory=Counter)
    sizes: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    window_ns: int = 0
    peak_bytes: int = UNKNOWN
    activation_bytes: int = UNKNOWN


def unit_rows(m: Measures) -> tuple[UnitRow, ...]:
    """Every unit of the run, in the order of the ranks' lists."""
    specs: dict[UnitKey, tuple[UnitSpec, RankMeasures]] = {}
    sums: dict[UnitKey, _Sums] = defaultdict(_Sums)
    for rank in m.ranks:
        keys = [(unit.tree, unit.fqn) for unit in rank.units]
        for key, unit in zip(keys, rank.units, strict=True):
            specs.setdefault(key, (unit, rank))
        _add_rank(rank, keys, sums)
        _add_causes(rank, m.causes[rank.rank], keys, sums)
    per, place = _Denominators.of(m), places(m)
    return tuple(
        _row(unit, rank, sums[key], per, place[unit.model])
        for key, (unit, rank) in specs.items()
    )


def _add_rank(
    rank: RankMeasures, keys: Sequence[UnitKey], sums: dict[UnitKey, _Sums]
) -> None:
    times = rank.unit_times.rows(rank.in_judged(rank.unit_times.step))
    for phase in (Phase.OTHER, *_PHASES):
        here = times.rows(times.phase == phase)
        for name in _UNIT_SUMS:
            for unit, total in _sum_by(here.unit, getattr(here, name)):
                sums[keys[unit]].times[name, phase] += total
        known = here.rows(here.expected_all_gathers != UNKNOWN)
        for unit, total in _sum_by(known.unit, known.expected_all_gathers):
            expected = sums[keys[unit]].expected
            expected[phase] = expected.get(phase, 0) + total
    for unit, peak in zip(times.unit, times.peak_bytes, strict=True):
        mine = sums[keys[int(unit)]]
        mine.peak_bytes = max(mine.peak_bytes, int(peak))
    _add_memory(rank, keys, sums)
    stalls = rank.stalls.rows(
        rank.in_judged(rank.stalls.step) & (rank.stalls.unit != UNKNOWN)
    )
    for kind in COLLECTIVE_KINDS:
        for phase in (Phase.OTHER, *_PHASES):
            rows = stalls.rows((stalls.kind == kind) & (stalls.phase == phase))
            for unit, total in _sum_by(rows.unit, rows.duration_ns):
                sums[keys[unit]].exposed[kind, phase] += total
    windows = rank.windows.rows(rank.in_judged(rank.windows.step))
    for unit, total in _sum_by(windows.unit, windows.end_ns - windows.start_ns):
        sums[keys[unit]].window_ns += total
    moved = rank.collectives.rows(
        rank.in_judged(rank.collectives.step) & (rank.collectives.bytes != UNKNOWN)
    )
    ids = np.stack((moved.unit, moved.kind, moved.bytes), axis=1)
    distinct, times_seen = np.unique(ids, axis=0, return_counts=True)
    for (unit, kind, size), count in zip(
        distinct.tolist(), times_seen.tolist(), strict=True
    ):
        if unit != UNKNOWN:
            sums[keys[unit]].sizes[kind][size] += count


def _add_memory(
    rank: RankMeasures, keys: Sequence[UnitKey], sums: dict[UnitKey, _Sums]
) -> None:
    """Of the memory step. What an allocator was asked goes before it."""
    memory = rank.header.memory
    for unit in memory.units if memory is not None else ():
        mine = sums[keys[unit.unit]]
        mine.activation_bytes = max(mine.activation_bytes, unit.activation_bytes)
        if Evidence.ALLOCATOR not in rank.evidence:
            peaks = unit.forward_peak_bytes, unit.backward_peak_bytes
            mine.peak_bytes = max(mine.peak_bytes, *peaks)


def _add_causes(
    rank: RankMeasures,
    causes: Mapping[str, Int64s],
    keys: Sequence[UnitKey],
    sums: dict[UnitKey, _Sums],
) -> None:
    stalls = rank.stalls
    judged = rank.in_judged(stalls.step)
    for cause, time_ns in causes.items():
        for unit, total in _sum_by(stalls.unit[judged], time_ns[judged]):
            sums[keys[unit]].causes[cause] += total


def _sum_by(unit: npt.NDArray[np.int32], amount: Int64s) -> Iterator[tuple[int, int]]:
    """Total amount of each unit that has a row."""
    known = unit != UNKNOWN
    units, at = np.unique(unit[known], return_inverse=True)
    totals = np.zeros(len(units), dtype=np.int64)
    np.add.at(totals, at, amount[known])
    yield from zip(units.tolist(), totals.tolist(), strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Denominators:
    """What totals are divided by, and which totals mean something."""

    steps: int
    micro_batches: int | None  # None: not known
    evidence: frozenset[Evidence]
    stalls_known: bool
    late_ranks_told: bool

    @classmethod
    def of(cls, m: Measures) -> _Denominators:
        return cls(
            steps=len(m.step_ns),
            micro_batches=micro_batches(m),
            evidence=m.evidence,
            stalls_known=m.stalls_known,
            late_ranks_told=m.late_ranks_told,
        )

    def time(self, total: int, known: bool = True) -> int | None:
        return round(total / self.steps) if known and self.steps else None

    def each_step(self, total: int) -> float | None:
        return total / self.steps if self.steps else None

    def count(self, total: int | None) -> float | None:
        if total is None or not self.micro_batches:
            return None
        return total / self.micro_batches


def micro_batches(m: Measures) -> int | None:
    """Of the judged steps of all ranks; None where one of them is not known."""
    every = all_known([rank.steps.micro_batches[rank.judged] for rank in m.ranks])
    return None if every is None else int(every.sum())


def all_known(parts: Sequence[Int64s]) -> Int64s | None:
    """Numbers of all ranks; None where there are none, or one is not known."""
    every = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    return every if len(every) and not (every == UNKNOWN).any() else None


def _row(
    unit: UnitSpec, rank: RankMeasures, s: _Sums, per: _Denominators, model: int
) -> UnitRow:
    computed = bool(per.evidence & {Evidence.STALLS, Evidence.KERNELS})
    forward, backward = _PHASES
    gathers = {phase: s.times["all_gathers", phase] for phase in _PHASES}
    return UnitRow(
        unit=unit.fqn,
        all_gathers=PhaseCounts(**{p.key: per.count(n) for p, n in gathers.items()}),
        all_gathers_per_step=PhaseCounts(
            **{p.key: per.each_step(n) for p, n in gathers.items()}
        ),
        expected_all_gathers=PhaseCounts(
            **{p.key: per.count(_expected(s, p)) for p in _PHASES}
        ),
        reduce_scatters=per.count(_over_phases(s, "reduce_scatters")),
        all_reduces=per.count(_over_phases(s, "all_reduces")),
        all_gather_bytes=_typical(s.sizes[Kind.ALL_GATHER]),
        reduce_scatter_bytes=_typical(s.sizes[Kind.REDUCE_SCATTER]),
        exposed_ns=PhaseTimes(
            **{
                phase.key: per.time(
                    sum(s.exposed[kind, phase] for kind in COLLECTIVE_KINDS),
                    per.stalls_known,
                )
                for phase in _PHASES
            }
        ),
        exposed_ns_by_kind=KindTimes(
            **{
                kind.key: per.time(
                    sum(ns for (k, _), ns in s.exposed.items() if k == kind),
                    per.stalls_known,
                )
                for kind in COLLECTIVE_KINDS
            }
        ),
        forward_ns=per.time(s.times["compute_ns", forward], computed),
        backward_ns=per.time(s.times["compute_ns", backward], computed),
        recompute_ns=per.time(_over_phases(s, "recompute_ns"), computed),
        peak_bytes=_known(s.peak_bytes),
        unsharded_ns=per.time(s.window_ns, Evidence.WINDOWS in per.evidence),
        module_class=unit.module_class,
        numel=_known(unit.numel),
        settings=_settings(unit, rank),
        model=model,
        exposed_ns_by_cause=_by_cause(s, per),
        activation_bytes=_known(s.activation_bytes),
    )


def _by_cause(s: _Sums, per: _Denominators) -> ByCause | None:
    if not per.stalls_known:
        return None
    times = {c: per.time(s.causes[c]) for c in CAUSES}
    return by_cause(per.evidence, times, told=per.late_ranks_told)


def by_cause(
    evidence: Collection[Evidence], ns: Mapping[str, int | None], *, told: bool
) -> ByCause:
    """Times by cause, None for a cause that the source cannot tell from another.

    `told`: whether late ranks are told from the wire.
    """
    issued = Evidence.ISSUE_TIMES in evidence
    return ByCause(
        host_late=ns["host_late"] if issued else None,
        queued=ns["queued"] if issued else None,
        straggler=ns["straggler"] if Evidence.RANKS in evidence else None,
        wire=ns["wire"] if told else None,
        tail=ns["tail"],
        wire_or_straggler=None if told else ns["wire"],
    )


def _expected(s: _Sums, phase: Phase) -> int | None:
    """A phase without a row, of a unit whose policy is known, expects nothing."""
    return s.expected.get(phase, 0) if s.expected else None


def _over_phases(s: _Sums, name: str) -> int:
    return sum(total for (n, _), total in s.times.items() if n == name)


def _typical(sizes: Counter[int]) -> int | None:
    """The size that occurred most often."""
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else None


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _settings(unit: UnitSpec, rank: RankMeasures) -> UnitSettings:
    groups = rank.header.groups
    shard = groups[unit.shard_group] if unit.shard_group != UNKNOWN else None
    return UnitSettings(
        reshard_after_forward=unit.reshard_after_forward,
        param_dtype=unit.param_dtype,
        reduce_dtype=unit.reduce_dtype,
        stored_dtype=unit.orig_dtype,
        offload=unit.offload,
        mesh=unit.mesh,
        shard_size=shard.size if shard is not None else None,
        forward_prefetch=_names(unit.forward_prefetch, rank),
        backward_prefetch=_names(unit.backward_prefetch, rank),
        reshard_after_backward=unit.reshard_after_backward,
        unshard_in_backward=unit.unshard_in_backward,
        unshard_async_op=unit.unshard_async_op,
        requires_gradient_sync=unit.requires_gradient_sync,
        requires_all_reduce=unit.requires_all_reduce,
        reduce_scatter_max_input_buffers=unit.reduce_scatter_max_input_buffers,
        separate_reduce_scatter_group=unit.separate_reduce_scatter_group,
        checkpointed=unit.checkpointed,
        compiled=unit.compiled,
    )


def _names(units: tuple[int, ...] | None, rank: RankMeasures) -> tuple[str, ...] | None:
    if units is None:
        return None
    return tuple(rank.unit_name(unit) or "?" for unit in units)
