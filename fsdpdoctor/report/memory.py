"""What the step whose storages were counted held, on the rank that held most."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.schema import UNKNOWN, MemoryStep, Phase


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the peak."""

    bucket: str  # a `Bucket`
    unit: str | None  # None: of no unit
    bytes: int


class UnitPeak(msgspec.Struct, frozen=True, kw_only=True):
    """One unit in that step."""

    unit: str
    forward_peak_bytes: int | None  # held by all, while its forward ran
    backward_peak_bytes: int | None
    activation_bytes: int | None  # its own, that its forward left behind


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step's memory. `not_counted` says why, and then nothing else is known."""

    step: int
    rank: int  # that held most
    ranks: int  # that were counted
    not_counted: str | None = None
    peak_bytes: int | None = None
    peak_unit: str | None = None  # that ran then; None: none of the model's
    peak_phase: str | None = None
    parts: tuple[MemoryPart, ...] = ()  # of the peak, largest first
    units: tuple[UnitPeak, ...] = ()


def memory_row(m: Measures) -> MemoryRow | None:
    """None where nobody counted."""
    told = [(r, r.header.memory) for r in m.ranks if r.header.memory is not None]
    counted = [(r, step) for r, step in told if step.refused is None]
    if not counted:
        return _refused(told)
    rank, step = max(counted, key=lambda one: (one[1].peak_bytes, -one[0].rank))
    return of_rank(rank, step, len(counted))


def of_rank(rank: RankMeasures, step: MemoryStep, ranks: int = 1) -> MemoryRow:
    """What one rank counted, of so many that did."""
    return MemoryRow(
        step=step.step,
        rank=rank.rank,
        ranks=ranks,
        peak_bytes=step.peak_bytes,
        peak_unit=rank.unit_name(step.peak_unit),
        peak_phase=Phase(step.peak_phase).key,
        parts=tuple(
            MemoryPart(
                bucket=share.bucket,
                unit=rank.unit_name(share.unit),
                bytes=share.bytes,
            )
            for share in step.peak
        ),
        units=tuple(
            UnitPeak(
                unit=rank.unit_name(unit.unit) or "?",
                forward_peak_bytes=known(unit.forward_peak_bytes),
                backward_peak_bytes=known(unit.backward_peak_bytes),
                activation_bytes=known(unit.activation_bytes),
            )
            for unit in step.units
        ),
    )


def _refused(told: Iterable[tuple[RankMeasures, MemoryStep]]) -> MemoryRow | None:
    for rank, step in told:
        return MemoryRow(
            step=step.step, rank=rank.rank, ranks=0, not_counted=step.refused
        )
    return None


def known(value: int) -> int | None:
    """None where the source does not say."""
    return None if value == UNKNOWN else value
