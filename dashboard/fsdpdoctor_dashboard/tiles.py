"""Level-of-detail tiles: what the browser draws, in a few kilobytes.

[Note: Tiles]
Level k divides time from the store's origin on into tiles of 2**k ns; tile i is
`[i << k, (i + 1) << k)`. All keys are whole numbers, so that two programs never
disagree on which tile covers a view. Within a tile a series is sent either as
marks (where there are few) or as BINS shares of busy time. `timeline.js` makes
the same tiles from the same columns where a page has no server behind it; tests
compare the two byte by byte.

A tile in bytes, little-endian; several just follow each other. Header: magic u32,
level u32, index u32 low and high, number of blocks u32. Each block: rank u16, series
u8, mode u8, count u32; then, padded to four bytes,
  BINS_MODE    u8 per bin: busy share in 255ths, rounded up, so that nothing
               that happened is ever shown as nothing
  MARKS_MODE   span u32[count], from u16[count], to u16[count] (in 65536ths of the
               tile), unit u16[count] (NO_UNIT: not said), edges u8[count]
               (1: reaches in from the left, 2: reaches out to the right)
Series with nothing in the tile are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import Int64s
from fsdpdoctor_dashboard.marks import SERIES, Row
from fsdpdoctor_dashboard.store import Series, Store

MAGIC = 0x314C5446  # "FTL1"
BITS = 10
BINS = 1 << BITS
"""Bins of a tile. A view holds one to two tiles' width, so a bin is about a pixel."""
MAX_MARKS = 128
"""Marks of a series that are sent one by one. At 11 bytes a mark this is where
bins, one byte each, begin to be the smaller half."""
MIN_LEVEL = 16
"""The finest level: a 65536th of its tile is one nanosecond, so marks are exact."""
NO_UNIT = 0xFFFF
BINS_MODE = 1
MARKS_MODE = 2
FROM_LEFT = 1
TO_RIGHT = 2

CONDENSED = frozenset({Row.EXPOSED, Row.COMPUTE})
"""The rows that a rank shows when it is collapsed into one line."""


def whole_level(store: Store) -> int:
    """The level whose tile 0 holds the whole run."""
    return max(MIN_LEVEL, (max(store.end, 1) - 1).bit_length())


def tile(
    store: Store, level: int, index: int, ranks: Iterable[int], *, condensed: bool
) -> bytes:
    """One tile of some ranks; `condensed` leaves all but two rows out."""
    parts = [rank_blocks(store, level, index, rank, condensed) for rank in ranks]
    return joined(level, index, parts)


class RankBlocks(NamedTuple):
    """One rank's part of a tile."""

    blocks: int
    content: bytes


def joined(level: int, index: int, parts: Sequence[RankBlocks]) -> bytes:
    """A tile of its ranks' parts."""
    count = sum(part.blocks for part in parts)
    head = (MAGIC, level, index & 0xFFFFFFFF, index >> 32, count)
    return b"".join([struct.pack("<IIIII", *head), *(part.content for part in parts)])


def rank_blocks(
    store: Store, level: int, index: int, rank: int, condensed: bool
) -> RankBlocks:
    """One rank's part of a tile."""
    t0 = index << level
    found = [
        (series, here)
        for series in store.series(rank)
        if not condensed or SERIES[series.series].row in CONDENSED
        if (here := series.between(t0, t0 + (1 << level))).stop > here.start
    ]
    few = [(s, here) for s, here in found if here.stop - here.start <= MAX_MARKS]
    many = [s for s, here in found if here.stop - here.start > MAX_MARKS]
    marks = iter(_marks(few, level, t0))
    bins = iter(_bins(many, level, bin_edges(level, index)))
    blocks = [
        next(marks if here.stop - here.start <= MAX_MARKS else bins)
        for _, here in found
    ]
    return RankBlocks(len(blocks), b"".join(blocks))


def _block(series: Series, mode: int, count: int, content: bytes) -> bytes:
    head = struct.pack("<HBBI", series.rank, series.series, mode, count)
    return b"".join((head, content, bytes(-len(content) % 4)))


def bin_edges(level: int, index: int, count: int = 1) -> Int64s:
    """The moments between the bins of a tile, or of some tiles in a row."""
    edges = np.arange(BINS * count + 1, dtype=np.int64) << (level - BITS)
    return edges + (index << level)


def bin_shares(series: Series, level: int, index: int) -> npt.NDArray[np.uint8]:
    """How busy each bin of a tile was, in 255ths, rounded up."""
    shares: npt.NDArray[np.uint8] = _shares([series], level, bin_edges(level, index))[0]
    return shares


def _shares(
    found: Sequence[Series], level: int, edges: Int64s
) -> npt.NDArray[np.uint8]:  # [series, BINS]
    busy: Int64s = np.diff([series.busy_until(edges) for series in found])
    busy *= 255
    busy += (1 << (level - BITS)) - 1
    shares: npt.NDArray[np.uint8] = (busy >> (level - BITS)).astype(np.uint8)
    return shares


def _bins(found: Sequence[Series], level: int, edges: Int64s) -> Iterator[bytes]:
    """Blocks of bins."""
    if not found:
        return
    for series, shares in zip(found, _shares(found, level, edges), strict=True):
        yield _block(series, BINS_MODE, BINS, shares.tobytes())


def _marks(
    found: Sequence[tuple[Series, slice]], level: int, t0: int
) -> Iterator[bytes]:
    """Blocks of marks. Most series have few: their numbers are made all at once."""
    if not found:
        return
    counts = [here.stop - here.start for _, here in found]
    scale = level - MIN_LEVEL
    start = np.concatenate([s.start[here] for s, here in found]) - t0
    end = start + np.concatenate([s.length[here] for s, here in found])
    span = np.concatenate([s.span[here] for s, here in found]).astype("<u4")
    unit = np.concatenate([s.unit[here] for s, here in found])
    first = np.clip(start >> scale, 0, 0xFFFF).astype("<u2")
    last = np.clip(-(-end >> scale), 0, 0xFFFF).astype("<u2")
    known = (unit >= 0) & (unit < NO_UNIT)
    units = np.where(known, unit, NO_UNIT).astype("<u2")
    edges = (FROM_LEFT * (start < 0) + TO_RIGHT * (end > (1 << level))).astype(np.uint8)
    at = 0
    for (series, _), count in zip(found, counts, strict=True):
        rows = slice(at, at + count)
        content = b"".join(
            column[rows].tobytes() for column in (span, first, last, units, edges)
        )
        yield _block(series, MARKS_MODE, count, content)
        at += count
