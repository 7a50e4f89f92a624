"""Measured ranks in a file: each is read when something of it is looked at.

What a rank was measured to is half a megabyte of columns. Sent to another process, as
they were, those of thousands of ranks took gigabytes on both sides; from the file they
are mapped, and what holds them is small.

The file lies in the user's cache and is written as pickles, whose columns are apart.
They are read with the few classes that measures are made of: a file that somebody else
put there names no other, so runs no code.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload

import numpy as np

from fsdpdoctor.analysis.by_rank import ByRank
from fsdpdoctor.analysis.clock_alignment import Alignment, RankClock
from fsdpdoctor.analysis.measures import Measures, together
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import Evidence, RankHeader, RunHeader

MEASURES_VERSION = 1
"""Of the file. One of another version is made anew."""

_CONTENT = "measures.bin"
_ALIGNMENT = 8
_MODULES = ("fsdpdoctor.schema.", "fsdpdoctor.analysis.", "fsdpdoctor.rank_end")
_NUMPY = frozenset({"_frombuffer", "_reconstruct", "ndarray", "dtype", "scalar"})


class _Place(NamedTuple):
    """Where a rank is: its columns first, then its pickle."""

    at: int
    columns: tuple[int, ...]  # bytes of each
    length: int  # of the pickle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What the file says of all ranks; the last in it."""

    run: RunHeader
    ranks: tuple[int, ...]
    places: tuple[_Place, ...]
    shared: bytes  # a pickle: what several ranks say alike
    clocks: tuple[RankClock, ...]
    unsplit: int
    evidence: frozenset[Evidence]
    step_ns: Int64s
    stalls_known: bool
    missing_ranks: tuple[int, ...]
    warnings: tuple[str, ...]


def keep_measures(measures: Measures, folder: Path) -> None:
    """Write a run's measures into a folder, whole or not at all. Raises OSError."""
    new = folder / f".{_CONTENT}"
    try:
        with new.open("wb") as file:
            _write(measures, file)
        new.rename(folder / _CONTENT)
    finally:
        new.unlink(missing_ok=True)


def _write(measures: Measures, file: BinaryIO) -> None:
    shared = _Shared()
    places: list[_Place] = []
    for rank in measures.ranks:
        columns: list[bytes] = []
        pickled = shared.pickled(rank, columns)
        begin = file.tell()
        for part in (*columns, pickled):
            file.write(part)
            file.write(bytes(-len(part) % _ALIGNMENT))
        places.append(_Place(begin, tuple(map(len, columns)), len(pickled)))
    head = _Head(
        run=measures.run,
        ranks=measures.rank_numbers,
        places=tuple(places),
        shared=pickle.dumps(shared.values, protocol=5),
        clocks=tuple(measures.alignment.clocks.values()),
        unsplit=measures.alignment.unsplit,
        evidence=measures.evidence,
        step_ns=measures.step_ns,
        stalls_known=measures.stalls_known,
        missing_ranks=measures.missing_ranks,
        warnings=measures.warnings,
    )
    at = file.tell()
    file.write(pickle.dumps(head, protocol=5))
    file.write(np.array([at, MEASURES_VERSION], dtype="<i8").tobytes())


class _Shared:
    """What several ranks say alike is written once: units, groups, names."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._number: dict[int, int] = {}

    def pickled(self, rank: RankMeasures, columns: list[bytes]) -> bytes:
        """A rank without what it shares, and its columns apart."""
        for part in _alike(rank):
            if id(part) not in self._number:  # kept in `values`: the id is its own
                self._number[id(part)] = len(self.values)
                self.values.append(part)
        found = BytesIO()
        number = self._number

        class Pickler(pickle.Pickler):
            def persistent_id(self, part: object) -> int | None:
                return number.get(id(part))

        def apart(column: pickle.PickleBuffer) -> None:
            columns.append(column.raw().tobytes())

        Pickler(found, protocol=5, buffer_callback=apart).dump(rank)
        return found.getvalue()


def _alike(rank: RankMeasures) -> Iterator[object]:
    """What ranks that were put on one shelf hold as one object."""
    header: RankHeader = rank.header
    every = (header.units, header.groups, header.model, header.evidence)
    memory = header.memory
    more = () if memory is None else (memory.peak, memory.units)
    yield from (part for part in (*every, rank.names, *more) if part)


class _Unpickler(pickle.Unpickler):
    """Of the classes that measures are made of, and no others."""

    def __init__(
        self, content: bytes, columns: Iterable[memoryview], shared: Sequence[Any]
    ) -> None:
        super().__init__(BytesIO(content), buffers=columns)
        self._values = shared

    def persistent_load(self, pid: int) -> Any:
        return self._values[pid]

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in _NUMPY:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "frozenset"):
            return frozenset
        if f"{module}.".startswith(_MODULES) or module == __name__:
            found = super().find_class(module, name)
            if _is_value(found) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of measures")


def _is_value(found: object) -> bool:
    """Whether it is a class whose objects do nothing as they are made."""
    if not isinstance(found, type):
        return False
    return is_dataclass(found) or issubclass(found, (Enum, tuple, ByRank))


class KeptRanks(Sequence[RankMeasures]):
    """The ranks of a file: each is made when it is asked for."""

    def __init__(self, content: mmap.mmap, head: _Head) -> None:
        self._content = memoryview(content)
        self._places = head.places
        self._shared = _Unpickler(head.shared, (), ()).load()
        self._last: tuple[int, RankMeasures] | None = None

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> RankMeasures: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[RankMeasures, ...]: ...
    def __getitem__(self, at: int | slice) -> RankMeasures | tuple[RankMeasures, ...]:
        if isinstance(at, slice):
            return tuple(self[one] for one in range(*at.indices(len(self))))
        at = range(len(self))[at]
        last = self._last
        if last is None or last[0] != at:
            last = self._last = at, self._made(at)
        return last[1]

    def _made(self, at: int) -> RankMeasures:
        begin, lengths, length = self._places[at]
        columns = []
        for size in lengths:
            columns.append(self._content[begin : begin + size])
            begin += size + -size % _ALIGNMENT
        pickled = bytes(self._content[begin : begin + length])
        found: RankMeasures = _Unpickler(pickled, columns, self._shared).load()
        return found


class _Opened(NamedTuple):
    head: _Head
    ranks: KeptRanks


def _open(folder: Path) -> _Opened | None:
    try:
        with (folder / _CONTENT).open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        at, version = np.frombuffer(content[-16:], dtype="<i8").tolist()
        if version != MEASURES_VERSION:
            return None
        head: _Head = _Unpickler(content[at:-16], (), ()).load()
        return _Opened(head, KeptRanks(content, head))
    except (OSError, ValueError, EOFError, pickle.UnpicklingError):
        return None  # not there, half written, or of another version


def open_measures(folder: Path) -> Measures | None:
    """A folder's measures, of which a rank is read when it is asked for. None where
    there are none that this version reads.
    """
    found = _open(folder)
    if found is None:
        return None
    head, ranks = found
    place = {rank: at for at, rank in enumerate(head.ranks)}
    whole = _Whole(folder)
    clocks = {clock.rank: clock for clock in head.clocks}
    measures = Measures(
        run=head.run,
        ranks=ranks,
        alignment=Alignment(
            clocks=clocks,
            last_arrival_ns=ByRank(place, lambda r: whole.alignment.last_arrival_ns[r]),
            last_rank=ByRank(place, lambda r: whole.alignment.last_rank[r]),
            others=ByRank(place, lambda r: whole.alignment.others[r]),
            unsplit=head.unsplit,
        ),
        causes=ByRank(place, lambda rank: whole.measures.causes[rank]),
        missing_ranks=head.missing_ranks,
        warnings=head.warnings,
    )
    # What all ranks together tell is known without reading them.
    vars(measures).update(
        evidence=head.evidence,
        step_ns=head.step_ns,
        stalls_known=head.stalls_known,
        rank_places=place,
    )
    return measures


def read_measures(folder: Path) -> Measures | None:
    """The same with all ranks at once, for who asks much of all of them: the columns
    stay mapped.
    """
    found = _open(folder)
    if found is None:
        return None
    head, ranks = found
    return together(
        head.run,
        ranks,
        missing_ranks=head.missing_ranks,
        warnings=head.warnings,
    )


class _Whole:
    """Measures of all ranks at once, where one page or another needs them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: Measures | None = None

    @property
    def measures(self) -> Measures:
        if self._found is None:
            self._found = read_measures(self._folder)
        if self._found is None:
            raise OSError(f"{self._folder} was there just now and cannot be read")
        return self._found

    @property
    def alignment(self) -> Alignment:
        return self.measures.alignment
