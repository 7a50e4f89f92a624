"""What a memory snapshot shows: lines, and tables of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fsdpdoctor.memory_snapshot.snapshot_report import (
    DeviceReport,
    Held,
    OutOfMemory,
    SnapshotReport,
)
from fsdpdoctor.quantities import US, count, duration, size
from fsdpdoctor.renderers.formatting import unit_name, visible
from fsdpdoctor.renderers.reading.memory_words import bucket_words
from fsdpdoctor.renderers.snapshots.snapshot_tables import (
    CANNOT_TELL,
    MOST_PARTS,
    bucket_table,
    cut_table,
    growth_table,
    line_table,
    pool_table,
    unit_table,
)
from fsdpdoctor.renderers.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWords:
    """One device of one file, or files side by side."""

    headline: str
    facts: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    stacks: tuple[tuple[str, tuple[str, ...]], ...] = ()  # title, frames


def snapshot_words(
    report: SnapshotReport, most_rows: int | None
) -> tuple[SnapshotWords, ...]:
    """Each device of a file; of no table more rows than asked for."""
    name = visible(Path(report.path).name)
    several = len(report.devices) > 1
    if not report.devices:
        return (
            SnapshotWords(
                headline=f"{name}: the allocator had nothing",
                facts=(),
                tables=(),
                notes=tuple(map(visible, report.notes)),
            ),
        )
    return tuple(
        _device(
            f"{name}, device {device.device}" if several else name,
            report,
            device,
            most_rows,
        )
        for device in report.devices
    )


def _device(
    name: str, report: SnapshotReport, device: DeviceReport, most_rows: int | None
) -> SnapshotWords:
    held = device.end if device.peak is None else device.peak
    tables = [
        bucket_table(
            held, "At the peak" if device.peak else "As the snapshot was taken"
        ),
        unit_table(held),
        line_table(held),
        pool_table(device),
        growth_table(device),
    ]
    return SnapshotWords(
        headline=f"{name}: {_headline(device, held)}",
        facts=tuple(_facts(report, device)),
        tables=tuple(cut_table(table, most_rows) for table in tables if table.rows),
        notes=tuple(visible(note) for note in (*report.notes, *device.notes)),
        stacks=tuple(_holders(held)),
    )


def _headline(device: DeviceReport, held: Held) -> str:
    told = max((row for row in held.buckets if row.bucket), key=_bytes, default=None)
    most = "" if told is None else f", most of it {bucket_words(told.bucket or '')}"
    if told is not None and 2 * told.bytes < held.held_bytes:
        most = f", {bucket_words(told.bucket or '')} the largest part of it"
    reserved = held.reserved_bytes
    of = "" if reserved is None else f" of {size(reserved)} reserved"
    if device.peak is None:
        return f"{size(held.held_bytes)} held{of} as the snapshot was taken{most}"
    return f"at most {size(held.held_bytes)} held{of}{_when(device, held)}{most}"


def _bytes(row: object) -> int:
    found: int = getattr(row, "bytes", 0)
    return found


def _when(device: DeviceReport, held: Held) -> str:
    if held.time_us is None or device.begin_time_us is None:
        return ""
    after = duration((held.time_us - device.begin_time_us) * US)
    return f", {after} into the history"


def _facts(report: SnapshotReport, device: DeviceReport) -> Iterator[str]:
    if device.peak is not None:
        yield from _of_peak(device, device.peak)
    end = device.end
    yield (
        f"as the snapshot was taken: {size(end.held_bytes)} asked for and held, "
        f"{size(device.allocated_bytes)} allocated as rounded up"
        + (
            ""
            if end.reserved_bytes is None
            else f", {size(end.reserved_bytes)} reserved"
        )
    )
    for one in device.out_of_memory:
        yield _out_of_memory(one)
    held = end if device.peak is None else device.peak
    if held.units and all(row.unit is None for row in held.units):
        yield f"units cannot be told: {visible(held.units[0].why or '')}"
    if device.growth_why is not None:
        yield f"growth cannot be told: {visible(device.growth_why)}"
    elif not device.growth:
        yield "nothing grew in every step after the first"
    if report.settings:
        yield f"PYTORCH_CUDA_ALLOC_CONF={visible(report.settings)}"


def _of_peak(device: DeviceReport, peak: Held) -> Iterator[str]:
    steps = ""
    if device.steps is not None:
        steps = f", {count(device.steps, 'step')} by {device.steps_by}"
    yield f"peak at {clock(peak.time_us)}; {count(device.events, 'event')}{steps}"
    if peak.before_bytes:
        yield (
            f"{size(peak.before_bytes)} of the peak were allocated before the history "
            "began"
        )
    if peak.awaiting_free_bytes:
        yield (
            f"{size(peak.awaiting_free_bytes)} of the peak were freed, and still used "
            "by another stream"
        )
    if device.highest_reserved_bytes is not None:
        yield (
            f"reserved at most {size(device.highest_reserved_bytes)}, at "
            f"{clock(device.highest_reserved_time_us)}"
        )


def _out_of_memory(one: OutOfMemory) -> str:
    words = bucket_words(one.bucket) if one.bucket else None
    of = "" if words is None else f", {words}"
    unit = "" if one.unit is None else f" of {unit_name(one.unit)}"
    where = "" if one.where is None else f", at {visible(one.where)}"
    unused = (
        ""
        if one.unused_bytes is None
        else f", {size(one.unused_bytes)} reserved that nothing held"
    )
    return (
        f"OUT OF MEMORY: {size(one.asked_bytes)} asked for{of}{unit}{where}; the "
        f"device had {size(one.device_free_bytes)} free, {size(one.held_bytes)} were "
        f"held{unused} ({clock(one.time_us)})"
    )


def clock(time_us: int | None) -> str:
    """A time of day, in UTC; a time that is no date stays a number."""
    if time_us is None:
        return "a time that is not known"
    try:
        when = datetime.fromtimestamp(time_us / 1e6, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"
    return f"{when:%Y-%m-%d %H:%M:%S.%f} UTC"


def _holders(held: Held) -> Iterator[tuple[str, tuple[str, ...]]]:
    for one in held.holders:
        words = bucket_words(one.bucket) if one.bucket else CANNOT_TELL
        units = ", ".join(unit_name(unit) for unit in one.units[:MOST_PARTS])
        title = f"{size(one.bytes)} in {count(one.allocations, 'allocation')}: {words}"
        if units:
            title += f" of {units}"
        yield title, tuple(visible(line) for line in one.stack)
