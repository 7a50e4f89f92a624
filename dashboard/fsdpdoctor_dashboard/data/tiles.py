"""Level-of-detail tiles: what the browser draws, in a few kilobytes.

[Note: Tiles]
Level k divides time from the store's origin on into tiles of 2**k ns; tile i is
`[i << k, (i + 1) << k)`. All keys are whole numbers, so that two programs never
disagree on which tile covers a view. Within a tile a series is sent either as
marks (where there are few) or as BINS shares of busy time. `tiles.js` makes
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
from collections.abc import Iterable, Sequence
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import Int64s
from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.data.store import Series, Store

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
    parts = rank_blocks(store, level, index, ranks, condensed=condensed)
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
    store: Store, level: int, index: int, ranks: Iterable[int], *, condensed: bool
) -> list[RankBlocks]:
    """Each rank's part of a tile; all are made at once, for one alone takes as long."""
    t0 = index << level
    found: list[tuple[Series, slice]] = []
    ends = []  # of each rank, in `found`
    for rank in ranks:
        found += [
            (series, here)
            for series in store.series(rank)
            if not condensed or SERIES[series.series].row in CONDENSED
            if (here := series.between(t0, t0 + (1 << level))).stop > here.start
        ]
        ends.append(len(found))
    places, content = _blocks(found, level, index)
    return [
        RankBlocks(end - first, content[places[first] : places[end]])
        for first, end in pairwise([0, *ends])
    ]


def _blocks(
    found: Sequence[tuple[Series, slice]], level: int, index: int
) -> tuple[list[int], bytes]:
    """Where each block begins and the last ends, and the blocks."""
    if not found:
        return [0], b""
    counts = np.array([here.stop - here.start for _, here in found])
    few = counts <= MAX_MARKS
    sizes = _HEAD_BYTES + np.where(few, -(-_MARK_BYTES * counts // 4) * 4, BINS)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    places = edges[:-1]
    content = np.zeros(edges[-1], dtype=np.uint8)

    words = content.view("<u4")
    heads = np.array([series.rank | series.series << 16 for series, _ in found])
    words[places // 4] = heads | np.where(few, MARKS_MODE, BINS_MODE) << 24
    words[places // 4 + 1] = np.where(few, counts, BINS)

    after = places + _HEAD_BYTES
    marks = list(compress(found, few))
    if marks:
        _put_marks(content, after[few], marks, level, index << level)
    bins = [series for series, _ in compress(found, ~few)]
    if bins:
        shares = _shares(bins, level, bin_edges(level, index))
        for place, row in zip(after[~few].tolist(), shares, strict=True):
            content[place : place + BINS] = row
    return edges.tolist(), content.tobytes()


_HEAD_BYTES, _MARK_BYTES = 8, 11


def bin_edges(level: int, index: int, count: int = 1) -> Int64s:
    """The moments between the bins of a tile, or of some tiles in a row."""
    edges = np.arange(BINS * count + 1, dtype=np.int64) << (level - BITS)
    return edges + (index << level)


def _shares(
    found: Sequence[Series], level: int, edges: Int64s
) -> npt.NDArray[np.uint8]:  # [series, BINS]
    busy: Int64s = np.diff([series.busy_until(edges) for series in found])
    busy *= 255
    busy += (1 << (level - BITS)) - 1
    shares: npt.NDArray[np.uint8] = (busy >> (level - BITS)).astype(np.uint8)
    return shares


def _put_marks(
    content: npt.NDArray[np.uint8],
    places: Int64s,  # [blocks] where the marks of each begin, multiples of four
    found: Sequence[tuple[Series, slice]],
    level: int,
    t0: int,
) -> None:
    """Fill blocks of marks in. A tile has many, of a few each: they go in together."""
    counts = np.array([here.stop - here.start for _, here in found])
    count = np.repeat(counts, counts)
    place = np.repeat(places, counts)
    nth = np.arange(len(count)) - np.repeat(np.cumsum(counts) - counts, counts)

    start = np.concatenate([s.start[here] for s, here in found]) - t0
    end = start + np.concatenate([s.length[here] for s, here in found])
    unit = np.concatenate([s.unit[here] for s, here in found])
    scale = level - MIN_LEVEL
    known = (unit >= 0) & (unit < NO_UNIT)

    halves = content.view("<u2")
    half = place // 2 + 2 * count + nth  # after the spans, of four bytes each
    content.view("<u4")[place // 4 + nth] = np.concatenate(
        [s.span[here] for s, here in found]
    )
    halves[half] = _within(start >> scale)
    halves[half + count] = _within(-(-end >> scale))
    halves[half + 2 * count] = np.where(known, unit, NO_UNIT)
    content[place + 10 * count + nth] = FROM_LEFT * (start < 0) + TO_RIGHT * (
        end > (1 << level)
    )


def _within(times: Int64s) -> Int64s:
    """In the tile; in place, for `clip` takes as long for its arguments alone."""
    np.maximum(times, 0, out=times)
    return np.minimum(times, 0xFFFF, out=times)
