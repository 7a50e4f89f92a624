"""Snapshots of a job's ranks side by side: who holds most, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fsdpdoctor.memory_snapshot.attribution import UNKNOWN
from fsdpdoctor.memory_snapshot.snapshot_report import (
    DeviceReport,
    Held,
    SnapshotReport,
)

MOST_DIFFERENCES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One file's most."""

    path: str
    rank: int | None
    held_bytes: int
    reserved_bytes: int | None
    time_us: int | None
    out_of_memory: int  # events


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of which the file with most holds more, or less, than that with least."""

    of: str  # "bucket", "unit", "line"
    name: str
    most_bytes: int
    least_bytes: int
    more_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotComparison:
    """All files, and the two that are furthest apart."""

    moment: str  # "peak"; "end": not every file has a history
    files: tuple[FileRow, ...]
    most: int  # number of a file
    least: int
    spread_bytes: int
    differences: tuple[Difference, ...]  # of each sort, largest first


def compare_ranks(reports: Sequence[SnapshotReport]) -> SnapshotComparison | None:
    """Hold files against each other; None of fewer than two with a device."""
    devices = [(one, one.main) for one in reports]
    known = [(one, device) for one, device in devices if device is not None]
    if len(known) < 2:
        return None
    by_peak = all(device.peak is not None for _, device in known)
    moments = [_moment(device, by_peak) for _, device in known]
    sizes = [held.held_bytes for held in moments]
    most, least = sizes.index(max(sizes)), sizes.index(min(sizes))
    return SnapshotComparison(
        moment="peak" if by_peak else "end",
        files=tuple(
            FileRow(
                path=report.path,
                rank=report.rank,
                held_bytes=held.held_bytes,
                reserved_bytes=held.reserved_bytes,
                time_us=held.time_us,
                out_of_memory=len(device.out_of_memory),
            )
            for (report, device), held in zip(known, moments, strict=True)
        ),
        most=most,
        least=least,
        spread_bytes=sizes[most] - sizes[least],
        differences=tuple(_differences(moments[most], moments[least])),
    )


def _moment(device: DeviceReport, by_peak: bool) -> Held:
    return device.peak if by_peak and device.peak is not None else device.end


def _differences(most: Held, least: Held) -> list[Difference]:
    parts: tuple[tuple[str, Callable[[Held], Mapping[str, int]]], ...] = (
        ("bucket", _by_bucket),
        ("unit", _by_unit),
        ("line", _by_line),
    )
    found = []
    for of, by in parts:
        here, there = by(most), by(least)
        rows = [
            Difference(
                of=of,
                name=name,
                most_bytes=here.get(name, 0),
                least_bytes=there.get(name, 0),
                more_bytes=here.get(name, 0) - there.get(name, 0),
            )
            for name in {**here, **there}
        ]
        rows = [row for row in rows if row.more_bytes]
        found += sorted(rows, key=lambda row: -abs(row.more_bytes))[:MOST_DIFFERENCES]
    return found


def _by_bucket(held: Held) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in held.buckets:
        key = row.bucket or UNKNOWN
        found[key] = found.get(key, 0) + row.bytes
    return found


def _by_unit(held: Held) -> dict[str, int]:
    return {row.unit: row.bytes for row in held.units if row.unit is not None}


def _by_line(held: Held) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in held.sites:
        if row.where is not None:
            found[row.where] = found.get(row.where, 0) + row.bytes
    return found
