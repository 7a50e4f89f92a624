"""Whose the memory was that a device held at one moment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from fsdpdoctor.memory_snapshot.allocations import BEFORE, Allocations
from fsdpdoctor.memory_snapshot.buckets import Purposes
from fsdpdoctor.memory_snapshot.call_site import place, users_frame
from fsdpdoctor.memory_snapshot.purpose import Purpose
from fsdpdoctor.memory_snapshot.snapshot import History, Snapshot, Stack
from fsdpdoctor.memory_snapshot.snapshot_report import (
    BucketRow,
    Held,
    Holder,
    SiteRow,
    UnitRow,
)
from fsdpdoctor.memory_snapshot.unit_labels import (
    NO_RANGE_THEN,
    NO_RANGES,
    UnitLabels,
)

MOST_HOLDERS = 20
MOST_SITES = 50
MOST_FRAMES = 30

Key = TypeVar("Key")

UNKNOWN = "unknown"
"""In maps by bucket: what cannot be told."""


class Unit(NamedTuple):
    """A unit, and what told it."""

    name: str | None
    told_by: str | None  # "range", "metadata"


NO_UNIT = Unit(None, None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attributed:
    """A device's allocations with what each was for, and its unit where one is told."""

    snapshot: Snapshot
    history: History
    held: Allocations
    purposes: Purposes
    labels: UnitLabels

    def unit(self, row: int) -> Unit:
        """By FSDP2's ranges, else by the metadata that the user had set."""
        begin = int(self.held.begin[row])
        found = None
        if begin != BEFORE:
            time_us = int(self.history.time_us[begin])
            found = self.labels.unit_at(time_us, self.purposes.of(row).bucket)
        if found is not None:
            return Unit(found, "range")
        text = self.snapshot.texts[int(self.held.metadata[row])]
        return Unit(text, "metadata") if text else NO_UNIT

    def stack(self, row: int) -> Stack | None:
        """What an allocation was made under; None where no stack was recorded."""
        number = int(self.held.stack[row])
        return self.snapshot.stacks[number] if number >= 0 else None


def held_at(found: Attributed, event: int) -> Held:
    """What was held after an event, by bucket, unit, line and stack."""
    held, history = found.held, found.history
    rows = held.held_at(event)
    awaiting = rows[held.requested_end[rows] <= event]
    before = rows[held.begin[rows] == BEFORE]
    reserved = held.reserved_bytes
    numbers = rows.tolist()
    return Held(
        time_us=time_of(history, event),
        held_bytes=int(held.size_bytes[rows].sum()),
        awaiting_free_bytes=int(held.size_bytes[awaiting].sum()),
        before_bytes=int(held.size_bytes[before].sum()),
        reserved_bytes=None if reserved is None else int(reserved[event + 1]),
        buckets=_buckets(found, numbers),
        units=_units(found, numbers),
        sites=_sites(found, numbers),
        holders=_holders(found, numbers),
    )


def time_of(history: History, event: int) -> int | None:
    """When an event was, in microseconds since 1970."""
    if event < 0 or history.time_us[event] < 0:
        return None
    return int(history.time_us[event])


def bucket_key(purpose: Purpose) -> str:
    """The name in a map by bucket."""
    return UNKNOWN if purpose.bucket is None else purpose.bucket.value


def _buckets(found: Attributed, rows: Sequence[int]) -> tuple[BucketRow, ...]:
    held: Counter[Purpose] = Counter()
    count: Counter[Purpose] = Counter()
    for row in rows:
        purpose = found.purposes.of(row)
        held[purpose] += int(found.held.size_bytes[row])
        count[purpose] += 1
    return tuple(
        BucketRow(
            bucket=None if purpose.bucket is None else purpose.bucket.value,
            why=purpose.why or None,
            bytes=total,
            allocations=count[purpose],
        )
        for purpose, total in _largest_first(held.items())
    )


def _units(found: Attributed, rows: Sequence[int]) -> tuple[UnitRow, ...]:
    by_unit: defaultdict[Unit, Counter[str]] = defaultdict(Counter)
    for row in rows:
        bucket = bucket_key(found.purposes.of(row))
        by_unit[found.unit(row)][bucket] += int(found.held.size_bytes[row])
    why = NO_RANGE_THEN if len(found.labels.since_us) else NO_RANGES
    totals = [((unit, parts), parts.total()) for unit, parts in by_unit.items()]
    return tuple(
        UnitRow(
            unit=unit.name,
            told_by=unit.told_by,
            why=why if unit.name is None else None,
            bytes=total,
            buckets=dict(_largest_first(parts.items())),
        )
        for (unit, parts), total in sorted(totals, key=lambda one: -one[1])
    )


Site = tuple[str, str] | None
"""A line of the user's and its function."""


def site_of(stack: Stack | None) -> Site:
    """The innermost line of a stack that is the user's."""
    frame = None if stack is None else users_frame(stack)
    return None if frame is None else (place(frame), frame.function)


def _sites(found: Attributed, rows: Sequence[int]) -> tuple[SiteRow, ...]:
    by_site: defaultdict[Site, Counter[str]] = defaultdict(Counter)
    count: Counter[Site] = Counter()
    known: dict[int, Site] = {}
    for row in rows:
        number = int(found.held.stack[row])
        if number not in known:
            known[number] = site_of(found.stack(row))
        site = known[number]
        bucket = bucket_key(found.purposes.of(row))
        by_site[site][bucket] += int(found.held.size_bytes[row])
        count[site] += 1
    order = sorted(by_site.items(), key=lambda one: -one[1].total())
    return tuple(
        SiteRow(
            where=None if site is None else site[0],
            function=None if site is None else site[1],
            bytes=parts.total(),
            allocations=count[site],
            buckets=dict(_largest_first(parts.items())),
        )
        for site, parts in order[:MOST_SITES]
    )


def _holders(found: Attributed, rows: Sequence[int]) -> tuple[Holder, ...]:
    """Allocations of one stack, purpose and metadata count together."""
    by_stack: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row in rows:
        key = (
            int(found.held.stack[row]),
            int(found.purposes.kind[row]),
            int(found.held.metadata[row]),
        )
        by_stack[key].append(row)
    sizes = {
        key: int(found.held.size_bytes[np.array(mine)].sum())
        for key, mine in by_stack.items()
    }
    return tuple(
        _holder(found, by_stack[key], total)
        for key, total in _largest_first(sizes.items())[:MOST_HOLDERS]
    )


def _holder(found: Attributed, rows: Sequence[int], total: int) -> Holder:
    purpose = found.purposes.of(rows[0])
    stack = found.stack(rows[0])
    site = site_of(stack)
    units = dict.fromkeys(name for row in rows if (name := found.unit(row).name))
    return Holder(
        bytes=total,
        allocations=len(rows),
        bucket=None if purpose.bucket is None else purpose.bucket.value,
        why=purpose.why or None,
        units=tuple(units),
        where=None if site is None else site[0],
        stack=frames_of(stack),
        metadata=found.snapshot.texts[int(found.held.metadata[rows[0]])] or None,
    )


def frames_of(stack: Stack | None) -> tuple[str, ...]:
    """A stack as lines, innermost first; the rest of a long one is left out."""
    return tuple(
        f"{place(frame)} {frame.function}" for frame in (stack or ())[:MOST_FRAMES]
    )


def _largest_first(parts: Iterable[tuple[Key, int]]) -> list[tuple[Key, int]]:
    return sorted(parts, key=lambda one: -one[1])
