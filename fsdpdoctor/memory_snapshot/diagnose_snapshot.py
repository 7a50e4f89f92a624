"""A Snapshot becomes a SnapshotReport."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fsdpdoctor.memory_snapshot.allocations import (
    BEFORE,
    Allocations,
    allocations_of,
)
from fsdpdoctor.memory_snapshot.attribution import (
    Attributed,
    frames_of,
    held_at,
    site_of,
    time_of,
)
from fsdpdoctor.memory_snapshot.buckets import purposes_of
from fsdpdoctor.memory_snapshot.columns import HistoryColumns
from fsdpdoctor.memory_snapshot.growth import growth_of, steps_of
from fsdpdoctor.memory_snapshot.pools import allocated_bytes, pools_of
from fsdpdoctor.memory_snapshot.purpose import NO_STACK, Purpose, purpose_of
from fsdpdoctor.memory_snapshot.read_snapshot import read_snapshot
from fsdpdoctor.memory_snapshot.snapshot import (
    Action,
    Segment,
    Snapshot,
)
from fsdpdoctor.memory_snapshot.snapshot_report import (
    DeviceReport,
    OutOfMemory,
    SnapshotReport,
)
from fsdpdoctor.memory_snapshot.unit_labels import UnitLabels, unit_labels
from fsdpdoctor.quantities import size

HOW_TO_RECORD = (
    "call torch.cuda.memory._record_memory_history(max_entries=100_000, "
    "global_record_annotations=True) before the model is built, train some steps, and "
    "then torch.cuda.memory._dump_snapshot(f'rank{rank}.pickle')"
)

NO_HISTORY = "no history was recorded: neither a peak nor stacks are known; "
STATE_ONLY = (
    "the history was not recorded (enabled='state'): what is held is known, its peak "
    "is not; "
)
WITHOUT_STACKS = "the history was recorded without stacks (context=None); "

_RANK = re.compile(r"rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)


def diagnose_snapshot(path: Path) -> SnapshotReport:
    """Read a file and say what it shows. Raises InputError."""
    return report_of_snapshot(read_snapshot(path))


def report_of_snapshot(snapshot: Snapshot) -> SnapshotReport:
    """What a snapshot shows."""
    history = _history_kind(snapshot)
    labels = unit_labels(snapshot.annotations)
    match = _RANK.search(snapshot.path.name)
    return SnapshotReport(
        path=str(snapshot.path),
        rank=None if match is None else int(match[1]),
        settings=snapshot.settings or None,
        history=history,
        devices=tuple(
            _device(snapshot, device, labels) for device in _devices_of(snapshot)
        ),
        notes=tuple(_notes(snapshot, history)),
    )


def _history_kind(snapshot: Snapshot) -> str:
    """What was recorded."""
    if any(len(one) for one in snapshot.histories):
        allocs = [one.stack[one.action == Action.ALLOC] for one in snapshot.histories]
        with_stacks = any((stacks >= 0).any() for stacks in allocs)
        return "all" if with_stacks else "without_stacks"
    return "state" if snapshot.stacks else "none"


def _notes(snapshot: Snapshot, history: str) -> Iterator[str]:
    told = {"none": NO_HISTORY, "state": STATE_ONLY, "without_stacks": WITHOUT_STACKS}
    if history in told:
        yield told[history] + HOW_TO_RECORD
    if snapshot.unknown_actions:
        words = ", ".join(snapshot.unknown_actions[:4])
        yield f"events of kinds that are not known here were left out: {words}"


def _devices_of(snapshot: Snapshot) -> list[int]:
    """Devices with segments or a history."""
    used = {segment.device for segment in snapshot.segments}
    used |= {at for at, one in enumerate(snapshot.histories) if len(one)}
    return sorted(used)


def _device(snapshot: Snapshot, device: int, labels: UnitLabels) -> DeviceReport:
    segments = [one for one in snapshot.segments if one.device == device]
    known = device < len(snapshot.histories)
    history = snapshot.histories[device] if known else HistoryColumns(0).history()
    held = allocations_of(history, segments)
    found = Attributed(
        snapshot=snapshot,
        history=history,
        held=held,
        purposes=purposes_of(held, snapshot.stacks),
        labels=labels,
    )
    steps = steps_of(found)
    growth, why = growth_of(found, steps)
    reserved, reserved_event = _highest_reserved(held)
    return DeviceReport(
        device=device,
        events=len(history),
        begin_time_us=time_of(history, 0 if len(history) else BEFORE),
        end_time_us=time_of(history, len(history) - 1),
        steps=None if steps.told_by is None else len(steps.ends),
        steps_by=steps.told_by,
        peak=held_at(found, held.peak_event) if len(history) else None,
        highest_reserved_bytes=reserved,
        highest_reserved_time_us=time_of(history, reserved_event),
        end=held_at(found, len(history) - 1),
        allocated_bytes=allocated_bytes(segments),
        pools=pools_of(segments),
        out_of_memory=tuple(_out_of_memory(found)),
        growth=growth,
        growth_why=why,
        notes=tuple(_device_notes(held, segments)),
    )


def _highest_reserved(held: Allocations) -> tuple[int | None, int]:
    if held.reserved_bytes is None:
        return None, BEFORE
    event = int(np.argmax(held.reserved_bytes)) - 1
    return int(held.reserved_bytes[event + 1]), event


def _out_of_memory(found: Attributed) -> Iterator[OutOfMemory]:
    history, held = found.history, found.held
    for event in np.flatnonzero(history.action == Action.OOM).tolist():
        number = int(history.stack[event])
        stack = found.snapshot.stacks[number] if number >= 0 else None
        purpose = Purpose(why=NO_STACK) if stack is None else purpose_of(stack)
        site = site_of(stack)
        reserved = held.reserved_bytes
        in_use = int(held.held_bytes[event + 1])
        had = None if reserved is None else int(reserved[event + 1])
        yield OutOfMemory(
            time_us=time_of(history, event),
            asked_bytes=int(history.size_bytes[event]),
            device_free_bytes=int(history.address[event]),
            held_bytes=in_use,
            reserved_bytes=had,
            unused_bytes=None if had is None else had - in_use,
            bucket=None if purpose.bucket is None else purpose.bucket.value,
            why=purpose.why or None,
            unit=found.labels.unit_at(int(history.time_us[event]), purpose.bucket),
            where=None if site is None else site[0],
            stack=frames_of(stack),
        )


def _device_notes(held: Allocations, segments: Sequence[Segment]) -> Iterator[str]:
    """Where the history and the segments contradict each other."""
    if held.lost_bytes:
        yield (
            f"the history ends with {size(held.lost_bytes)} held that no segment has: "
            "their ends were not recorded (skip_actions), and they count as held"
        )
    if held.unheld_bytes:
        yield (
            f"segments hold {size(held.unheld_bytes)} that the history has freed: they "
            "do not count as held"
        )
    if held.overfull:
        yield (
            f"the history holds up to {size(int(held.held_bytes.max()))}, more than "
            "there are segments for: what was reserved cannot be told"
        )
    if not segments and len(held.held_bytes) > 1:
        yield "there are no segments: what was there before the history is not known"
