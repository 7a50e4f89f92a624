"""A run's tiles at hand: the coarse ones from its cache, others as they were made.

Everybody's first views are the same few coarse tiles, and those cost the most to make:
all ranks' marks are in them. They are made once, by the process that reads the run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import Int64s
from fsdpdoctor_dashboard.data.store import Store
from fsdpdoctor_dashboard.data.tiles import (
    MIN_LEVEL,
    RankBlocks,
    joined,
    rank_blocks,
    whole_level,
)

DEPTH = 8
"""Levels that are made beforehand. Of a million spans on 8 ranks they are 30 MB; the
next finer tile then holds mostly single marks, and takes a tenth of the time."""
MOST_MADE = 64 * ((1 << DEPTH) - 1)
"""Parts of tiles, of a rank each, that are made beforehand: all levels of 64 ranks. Of
thousands of ranks they would take minutes and gigabytes, and be looked at by nobody:
a screen shows some hundred of them, condensed, which are made when they are asked for.
"""
AT_A_TIME = 64
"""Ranks whose parts of a tile are made together."""
KEPT_BYTES = 16 << 20
"""Of other tiles that a run keeps: a thousand of one rank."""

_CONTENT = "tiles.bin"
_INDEX = "tiles.npz"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Made:
    """The coarse tiles, level after level, tile after tile, rank after rank."""

    content: npt.NDArray[np.uint8]
    edges: Int64s  # [tiles x ranks + 1] where each part begins
    blocks: npt.NDArray[np.int64]  # [tiles x ranks]

    def part(self, place: int) -> RankBlocks:
        """One rank's part of one tile."""
        first, last = self.edges[place : place + 2].tolist()
        return RankBlocks(int(self.blocks[place]), self.content[first:last].tobytes())


def make_tiles(store: Store, folder: Path) -> None:
    """Add the coarse tiles to a saved store's folder. Raises OSError."""
    whole = whole_level(store)
    edges, blocks = [0], []
    new = folder / f".{_CONTENT}"
    with new.open("wb") as file:
        for depth in range(_depth(store)):
            for index in range(1 << depth):
                for part in _parts_of_all(store, whole - depth, index):
                    file.write(part.content)
                    edges.append(edges[-1] + len(part.content))
                    blocks.append(part.blocks)
    new.rename(folder / _CONTENT)
    # Last: where it is, all is there.
    new_index = folder / f".{_INDEX}"
    with new_index.open("wb") as file:
        np.savez(file, edges=edges, blocks=blocks)
    new_index.rename(folder / _INDEX)


def _parts_of_all(store: Store, level: int, index: int) -> Iterator[RankBlocks]:
    """Each rank's part of a tile, some ranks at a time: what all have at once in the
    making is half a gigabyte of 4,096.
    """
    for first in range(0, len(store.ranks), AT_A_TIME):
        ranks = store.ranks[first : first + AT_A_TIME]
        yield from rank_blocks(store, level, index, ranks, condensed=False)


def has_tiles(folder: Path) -> bool:
    """Whether they were added."""
    return (folder / _INDEX).exists()


def _depth(store: Store) -> int:
    """How many levels are made: of more ranks fewer, and always the whole run."""
    most = MOST_MADE // max(1, len(store.ranks)) + 1
    return min(DEPTH, max(1, most.bit_length() - 1), whole_level(store) - MIN_LEVEL + 1)


def _made(folder: Path) -> Made | None:
    try:
        with np.load(folder / _INDEX) as index:
            edges, blocks = index["edges"], index["blocks"]
        content = np.memmap(folder / _CONTENT, mode="r").view(np.ndarray)
    except (OSError, ValueError, KeyError):
        return None  # not yet made, or damaged: it is only a cache
    if len(edges) != len(blocks) + 1 or edges[-1] > len(content):
        return None
    return Made(content=content, edges=edges, blocks=blocks)


class TileShelf:
    """Answers for tiles of a run whose store may be in a folder of the cache."""

    def __init__(self, store: Store, folder: Path | None = None) -> None:
        self._store = store
        self._whole = whole_level(store)
        self._places = {rank: at for at, rank in enumerate(store.ranks)}
        self._made = None if folder is None else _made(folder)
        self._kept: OrderedDict[tuple[int, int, int, bool], RankBlocks] = OrderedDict()
        self._size = 0
        # Pages ask for their first picture in threads of their own.
        self._lock = threading.Lock()

    def tile(
        self, level: int, index: int, ranks: Iterable[int], *, condensed: bool
    ) -> bytes:
        """The same as `tiles.tile`."""
        with self._lock:
            parts = self._parts(level, index, list(ranks), condensed)
        return joined(level, index, parts)

    def _parts(
        self, level: int, index: int, ranks: Sequence[int], condensed: bool
    ) -> list[RankBlocks]:
        depth = self._whole - level
        if self._made and not condensed and 0 <= depth < _depth(self._store):
            if index >> depth:
                return [RankBlocks(0, b"")] * len(ranks)
            before = ((1 << depth) - 1 + index) * len(self._places)
            return [self._made.part(before + self._places[rank]) for rank in ranks]
        keys = [(level, index, rank, condensed) for rank in ranks]
        # Once each, for an address may name a rank twice.
        missing = [key[2] for key in dict.fromkeys(keys) if key not in self._kept]
        made = rank_blocks(self._store, level, index, missing, condensed=condensed)
        for rank, part in zip(missing, made, strict=True):
            self._kept[level, index, rank, condensed] = part
            self._size += len(part.content)
        parts = []
        for key in keys:
            self._kept.move_to_end(key)
            parts.append(self._kept[key])
        while self._size > KEPT_BYTES:
            self._size -= len(self._kept.popitem(last=False)[1].content)
        return parts
