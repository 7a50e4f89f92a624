"""The marks of a whole run, as few plain columns that can be mapped into memory.

[Note: Exact at every zoom]
Each series carries the running total of its marks' lengths. The busy time up to
any moment is then one binary search, and that of any stretch a difference: whole
nanoseconds, at every level, without a mark ever being merged with its neighbour
in the record. Level-of-detail tiles (see `tiles`) are made from these totals on
request; what a level shows adds up to what the analysis says by construction,
and a tile costs the same for 10 thousand spans and for 10 million.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from fsdpdoctor import version
from fsdpdoctor_dashboard.data.kept.store_files import (
    KEPT_STORES,
    STORE_VERSION,
    Mapped,
    cache_folder,
    forget_oldest,
    map_store,
    saving,
    section_of,
)
from fsdpdoctor_dashboard.data.rank_series import (
    TABLES,
    Area,
    RankPart,
    RankTable,
    Series,
    part_of,
)
from fsdpdoctor_dashboard.data.slices import (
    Marks,
    RankFacts,
    RankNames,
    Track,
    marks_of,
)

__all__ = [
    "KEPT_STORES",
    "STORE_VERSION",
    "Area",
    "RankTable",
    "Series",
    "Store",
    "build_store",
    "cache_folder",
    "fingerprint_of",
    "forget_oldest",
    "open_store",
    "save_store",
]


class Store:
    """All ranks' marks, spans and memory samples, read-only."""

    def __init__(
        self,
        *,
        fingerprint: str,
        origin_ns: int,
        series: Sequence[Series],
        tables: Mapping[str, Mapping[int, RankTable]],
        names: Mapping[int, RankNames],
        facts: Mapping[int, RankFacts],
    ) -> None:
        self.fingerprint = fingerprint
        self.origin_ns = origin_ns
        self.spans = tables["spans"]
        self.exposed = tables["exposed"]
        self.memory = tables["memory"]
        self.names = names
        self.facts = facts
        self.ranks = tuple(sorted(self.spans))
        of_rank: dict[int, list[Series]] = {rank: [] for rank in self.ranks}
        for one in sorted(series, key=lambda s: (s.rank, s.series)):
            of_rank[one.rank].append(one)
        self._of_rank: Mapping[int, Sequence[Series]] = of_rank
        ends = [int(s.start[-1]) + int(s.length[-1]) for s in series if len(s.start)]
        self.end = max(ends, default=1)

    @classmethod
    def mapped(cls, found: Mapped) -> Store:
        """The store in a folder, of which nothing is read before it is asked for."""
        store = cls(
            fingerprint=found.fingerprint,
            origin_ns=found.origin_ns,
            series=(),
            tables={name: _OfParts(found.parts, name) for name in TABLES},
            names=found.names,
            facts=found.facts,
        )
        store._of_rank = _SeriesOf(found.parts)
        store.end = found.end
        return store

    def series(self, rank: int) -> Sequence[Series]:
        """The series of a rank, in the order of SERIES."""
        return self._of_rank.get(rank, [])

    def one(self, rank: int, series: int) -> Series | None:
        """One series, None where the rank has no such mark."""
        return next((s for s in self.series(rank) if s.series == series), None)

    def area(self, t0: int, t1: int, ranks: Iterable[int]) -> list[Area]:
        """What each series of some ranks did within `[t0, t1)`."""
        return [s.area(t0, t1) for rank in ranks for s in self.series(rank)]


class _OfParts(Mapping[int, RankTable]):
    """One table of every rank, looked up when it is asked for."""

    def __init__(self, parts: Mapping[int, RankPart], name: str) -> None:
        self._parts = parts
        self._name = name

    def __getitem__(self, rank: int) -> RankTable:
        return self._parts[rank].tables[self._name]

    def __contains__(self, rank: object) -> bool:
        return rank in self._parts  # without opening it

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class _SeriesOf(Mapping[int, Sequence[Series]]):
    """The series of every rank, looked up when they are asked for."""

    def __init__(self, parts: Mapping[int, RankPart]) -> None:
        self._parts = parts

    def __getitem__(self, rank: int) -> Sequence[Series]:
        return self._parts[rank].series

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def build_store(tracks: Iterable[Track], fingerprint: str) -> Store:
    """The store of some ranks, in memory."""
    found: dict[int, tuple[Track, Mapping[int, Marks]]] = {}
    for track in tracks:
        found[track.rank] = track, marks_of(track)
    firsts = [
        int(marks.starts_ns[0])
        for _, of_rank in found.values()
        for marks in of_rank.values()
        if len(marks.starts_ns)
    ]
    origin = min(firsts, default=0)
    parts = {
        rank: part_of(track, marks, origin) for rank, (track, marks) in found.items()
    }
    return Store(
        fingerprint=fingerprint,
        origin_ns=origin,
        series=[series for part in parts.values() for series in part.series],
        tables={
            name: {rank: part.tables[name] for rank, part in parts.items()}
            for name in TABLES
        },
        names={rank: track.names for rank, (track, _) in found.items()},
        facts={rank: track.facts for rank, (track, _) in found.items()},
    )


def save_store(store: Store, folder: Path) -> None:
    """Put a store's columns into a folder, whole or not at all."""
    with saving(folder, store.fingerprint, store.origin_ns) as writer:
        for rank in store.ranks:
            tables = {name: getattr(store, name)[rank] for name in TABLES}
            section = section_of(RankPart(tuple(store.series(rank)), tables))
            writer.add(rank, section, store.names[rank], store.facts[rank])


def open_store(folder: Path) -> Store | None:
    """Map a saved store, None where there is none that this version reads."""
    found = map_store(folder)
    return None if found is None else Store.mapped(found)


def fingerprint_of(paths: Iterable[Path]) -> str:
    """Names, sizes and times of the files that a run is read from, and our version:
    a store holds what the analysis said.
    """
    digest = hashlib.sha256(f"timeline {STORE_VERSION} {version.__version__}".encode())
    digest.update(_program())
    for path in sorted(paths):
        stat = path.stat()
        digest.update(f"\0{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:20]


@cache
def _program() -> bytes:
    """Sizes and times of our own files: in a working tree one version has many."""
    digest = hashlib.sha256()
    for package in (Path(version.__file__).parent, Path(__file__).parents[1]):
        for path in sorted(package.rglob("*.py")):
            stat = path.stat()
            digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\0".encode())
    return digest.digest()
