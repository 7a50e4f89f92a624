"""Columns of any length: whole whatever they lie in, and given back when asked."""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.storage.spill import HELD_BYTES, Shelf, blocks, let_go

INT64 = np.dtype(np.int64)
PIECE = 10_000
PIECES = 3 * HELD_BYTES // (INT64.itemsize * PIECE) + 1


def long_shelf() -> Shelf:
    """One with a column of three times what is held in memory, counting up."""
    shelf = Shelf({"long": INT64})
    for i in range(PIECES):
        shelf.put([("long", np.arange(i * PIECE, (i + 1) * PIECE))])
    return shelf


def test_short_and_long_columns_come_back_whole() -> None:
    """In their own dtype, whatever that of the pieces, and empty where none came."""
    shelf = long_shelf()
    short = Shelf({"short": np.dtype(np.int8), "none": INT64})
    short.put([("short", np.array([1, 2], dtype=np.int64))])
    short.put([("short", np.array([3], dtype=np.int8))])

    taken = short.take()
    long = shelf.take()["long"]

    assert taken["short"].dtype == np.int8
    assert taken["short"].tolist() == [1, 2, 3]
    assert taken["none"].tolist() == []
    assert long.tolist() == list(range(PIECES * PIECE))


def test_a_long_column_reads_the_same_when_it_was_let_go() -> None:
    """Slices of it, too, and columns that were never in a file."""
    taken = long_shelf().take()
    part = taken["long"][PIECE : PIECE + 5]

    let_go({"part": part, "small": np.arange(3)})

    assert part.tolist() == list(range(PIECE, PIECE + 5))
    assert int(taken["long"].sum()) == sum(range(PIECES * PIECE))


def test_without_a_folder_for_files_columns_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are as whole there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))

    assert long_shelf().take()["long"].tolist() == list(range(PIECES * PIECE))


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Writing more than so many bytes fails, as where the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [PIECE, HELD_BYTES + PIECE, 2 * HELD_BYTES + PIECE])
def test_what_a_full_disk_does_not_take_stays_in_memory(size: int) -> None:
    """In the middle of a piece, or later: nothing is lost and nothing is twice."""
    with no_file_above(size):
        long = long_shelf().take()["long"]

    assert long.tolist() == list(range(PIECES * PIECE))


def test_without_descriptors_columns_are_read() -> None:
    """A mapped column keeps one open, and a process may have only so many."""
    shelf = long_shelf()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
    try:
        long = shelf.take()["long"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)

    assert long.tolist() == list(range(PIECES * PIECE))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_long_column_takes_no_memory_of_its_own() -> None:
    """Of 64 MB some are held while they are written: a few pieces, a page table."""

    def anonymous_kib() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(one.split()[1]) for one in lines if one.startswith("RssAnon"))

    shelf, before = Shelf({"long": INT64}), anonymous_kib()
    for _ in range(64):
        shelf.put([("long", np.zeros(1 << 17, dtype=np.int64))])
    taken = shelf.take()
    total = int(taken["long"].sum())

    assert total == 0
    assert anonymous_kib() - before < 16 * 1024


def test_blocks_are_the_rows_in_order() -> None:
    """None is left out, none is twice; no rows are no block."""
    rows = np.arange(200_000)

    assert [*blocks(0)] == []
    assert np.concatenate([rows[b] for b in blocks(len(rows))]).tolist() == [*rows]
