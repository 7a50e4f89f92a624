"""Bytes that are held, by what they are for, and the most that was held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import NamedTuple

from fsdpdoctor.schema import UNKNOWN, Bucket, Phase


class Place(NamedTuple):
    """Where the training is."""

    bucket: Bucket  # what is made now is for this,
    owner: int  # and for this unit
    unit: int  # that runs, innermost
    phase: Phase


Share = tuple[Bucket, int]
"""A bucket, and whose it is."""


@dataclass(slots=True)
class _Held:
    share: Share
    size: int
    since: int  # the event that gave it this size


@dataclass(slots=True)
class Highest:
    """The most that was held."""

    bytes: int
    event: int
    time_ns: int
    place: Place
    parts: Counter[Share]


class LiveStorages:
    """All storages of a device, by a key of their own.

    What a storage is for is guessed from where it was made, and corrected once it is
    known: in the peak as well, if it was there already.
    """

    def __init__(self, place: Callable[[], Place]) -> None:
        self._place = place
        self._storages: dict[int, _Held] = {}
        self._events = 0
        self.parts: Counter[Share] = Counter()
        self.buckets: Counter[Bucket] = Counter()  # the same, whosever it is
        self.total = 0
        self.highest: Highest | None = None
        self.most: dict[tuple[int, Phase], int] = {}  # by unit and phase

    def start(self) -> None:
        """What is there is known: what is held from here on may be the most."""
        self.highest = Highest(-1, 0, 0, self._place(), Counter())
        self.entered()

    def size(self, key: int) -> int | None:
        """Of a storage; None: it was not seen."""
        held = self._storages.get(key)
        return None if held is None else held.size

    def saw(self, key: int, size: int) -> None:
        """A storage is there with so many bytes. One that grew is made anew."""
        held = self._storages.get(key)
        if held is not None and held.size == size:
            return
        place = self._place()
        self._events += 1
        if held is None:
            held = _Held((place.bucket, place.owner), 0, self._events)
            self._storages[key] = held
        elif size > held.size:
            self._add(held, -held.size)
            held.size, held.share = 0, (place.bucket, place.owner)
        self._add(held, size - held.size)
        held.size, held.since = size, self._events
        self._note(place)

    def gone(self, key: int) -> None:
        """A storage is there no more."""
        held = self._storages.pop(key, None)
        if held is not None:
            self._events += 1
            self._add(held, -held.size)

    def is_for(self, key: int, bucket: Bucket, unit: int = UNKNOWN) -> None:
        """What a storage turned out to be."""
        held, share = self._storages.get(key), (bucket, unit)
        if held is None or held.share == share:
            return
        highest = self.highest
        if highest is not None and held.since <= highest.event:
            highest.parts[held.share] -= held.size
            highest.parts[share] += held.size
        size = held.size
        self._add(held, -size)
        held.share = share
        self._add(held, size)

    def entered(self) -> None:
        """Another unit, or phase, holds from here on what is held."""
        self._note(self._place())

    def _add(self, held: _Held, size: int) -> None:
        share = held.share
        self.parts[share] += size
        self.buckets[share[0]] += size
        self.total += size

    def _note(self, place: Place) -> None:
        highest = self.highest
        if highest is None:
            return
        key = place.unit, place.phase
        if self.total > self.most.get(key, -1):
            self.most[key] = self.total
        if self.total > highest.bytes:
            self.highest = Highest(
                self.total,
                self._events,
                perf_counter_ns(),
                place,
                self.parts.copy(),
            )
