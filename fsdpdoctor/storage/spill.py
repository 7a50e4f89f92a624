"""Columns of any length: short ones in memory, long ones in files without a name.

[Note: Memory that can be taken back] A trace of millions of events has hundreds of
megabytes of columns, which each stage reads once, from front to back. They are written
as they come to unnamed files in the folder for temporary files (TMPDIR says where) and
mapped. A mapped page is the page cache's: the system takes it back when memory is
short, and `let_go` gives it back as soon as a stage is done with it. So what a process
itself must hold does not grow with its trace. Where no such file can be written,
columns stay in memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt

HELD_BYTES = 1 << 21
"""Of a column, in memory before it goes to a file: below some 260 000 rows none does,
and all the columns in the making stay below some 40 MB."""

BLOCK_ROWS = 1 << 16
"""Rows that are worked on at a time: half a megabyte for each column of a block."""

_ALIGNED = 8
"""Bytes at whose multiples a column begins in a file with others."""

_CAN_LET_GO = hasattr(mmap, "MADV_DONTNEED")

Column = npt.NDArray[np.generic]


class Shelf:
    """Columns in the making: rows are put down piece by piece, and taken off once."""

    def __init__(self, dtypes: Mapping[str, np.dtype[np.generic]]) -> None:
        self._columns = {name: _Column(dtype) for name, dtype in dtypes.items()}

    def put(self, columns: Iterable[tuple[str, Column]]) -> None:
        """Some rows: a piece of every column. An iterator makes one at a time."""
        for name, piece in columns:
            self._columns[name].add(piece)

    def take(self) -> dict[str, Column]:
        """The whole columns, not to be written to. The shelf is empty then."""
        taken = {}
        for name in list(self._columns):  # the pieces of one make room for the next
            taken[name] = self._columns.pop(name).whole()
        return taken


class _Column:
    """What came before is in the file, if there is one, and the rest in `_pieces`."""

    def __init__(self, dtype: np.dtype[np.generic]) -> None:
        self._dtype = dtype
        self._pieces: list[Column] = []
        self._held = 0  # bytes
        self._file: IO[bytes] | None = None
        self._stays = False  # no file can be written

    def add(self, piece: Column) -> None:
        if not len(piece):
            return
        self._pieces.append(np.ascontiguousarray(piece, dtype=self._dtype))
        self._held += self._pieces[-1].nbytes
        if self._held > HELD_BYTES:
            self._to_file()

    def _to_file(self) -> None:
        if self._stays:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            while self._pieces:
                _write(self._file, self._pieces[0])
                self._held -= self._pieces.pop(0).nbytes
        except OSError:
            self._stays = True

    def whole(self) -> Column:
        """All of it. The file has no other owner than what is mapped of it."""
        written = np.empty(0, dtype=self._dtype)
        if self._file is not None:
            self._to_file()
            with self._file as file:
                if os.fstat(file.fileno()).st_size:
                    written = _mapped(file).view(self._dtype)
        return np.concatenate([written, *self._pieces]) if self._pieces else written


def shelved(columns: Sequence[Column]) -> list[Column]:
    """The same columns, mapped from one file; as they are where none can be written."""
    try:
        with tempfile.TemporaryFile(buffering=0) as file:
            begins: list[int] = []
            for column in columns:
                begins.append(file.tell())
                _write(file, np.ascontiguousarray(column))
                file.write(bytes(-column.nbytes % _ALIGNED))
            whole = _mapped(file) if file.tell() else np.empty(0, dtype=np.uint8)
    except OSError:
        return list(columns)
    return [
        whole[begin : begin + column.nbytes].view(column.dtype)
        for begin, column in zip(begins, columns, strict=True)
    ]


def _mapped(file: IO[bytes]) -> npt.NDArray[np.uint8]:
    """A file's bytes; read where no more can be mapped. It is not empty."""
    try:
        found: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:  # a mapping has a descriptor of its own: there may be none left
        file.seek(0)
        found = file.read()
    return np.frombuffer(found, dtype=np.uint8)


def _write(file: IO[bytes], piece: Column) -> None:
    """Write all of a piece, or nothing."""
    begin = file.tell()
    left = piece.view(np.uint8).data
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        os.ftruncate(file.fileno(), begin)
        raise


class Columns(Protocol):
    """Columns with their names: a table, or a dict of them."""

    def items(self) -> Iterable[tuple[str, Column]]: ...


def let_go(*tables: Columns) -> None:
    """Give back the pages of mapped columns: reading them again finds them again."""
    give_back(mappings(*tables))


def mappings(*tables: Columns) -> tuple[mmap.mmap, ...]:
    """What the columns of some tables are mapped by, each once."""
    found = (_mapping(column) for table in tables for _, column in table.items())
    return tuple({id(one): one for one in found if one is not None}.values())


def give_back(mapped: Iterable[mmap.mmap]) -> None:
    """Give back the pages of what is mapped."""
    if _CAN_LET_GO:
        for one in mapped:
            one.madvise(mmap.MADV_DONTNEED)


def _mapping(column: Column) -> mmap.mmap | None:
    """What a column is mapped by, if it is."""
    owner: object = column
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, mmap.mmap) else None


def blocks(rows: int) -> Iterator[slice]:
    """So many rows, in runs that are worked on at a time."""
    for first in range(0, rows, BLOCK_ROWS):
        yield slice(first, min(first + BLOCK_ROWS, rows))
