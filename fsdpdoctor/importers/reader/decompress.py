"""Opens a trace file, packed with gzip or not, and gives all that can be unpacked."""

from __future__ import annotations

import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import cast

from isal import isal_zlib

from fsdpdoctor.errors import InputError
from fsdpdoctor.quantities import MIB
from fsdpdoctor.storage.regular_file import open_regular

GZIP_MAGIC = b"\x1f\x8b"

UNPACK_ERRORS = cast(
    "tuple[type[Exception], ...]", (EOFError, OSError, zlib.error, isal_zlib.error)
)
"""What unpacking raises for damaged gzip."""

MOST_PACKED = 200
"""Times that a trace is smaller packed: real ones 10 to 30 times, gzip's limit is
1,000, which only what repeats one thing for ever comes near."""

ALWAYS_UNPACKED = 64 * MIB
"""However well it was packed."""

_PACKED_BLOCK = 1 << 18
_GZIP_WINDOW = 16 + 15


class _Gunzip(BufferedIOBase):
    """A gzip file of any number of members.

    The libraries' own classes raise for a cut file before they hand out what they
    have unpacked of it; this one hands it out first.
    """

    def __init__(self, file: BufferedIOBase, path: Path) -> None:
        self._file = file
        self._path = path
        self._read = 0
        self._unpacked = 0
        self._packed = b""
        self._inflate = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        self._in_member = False

    def read1(self, size: int = -1, /) -> bytes:
        """Some bytes, empty at the end. Raises one of `UNPACK_ERRORS`, or InputError
        where it unpacks to more than can be.
        """
        while True:
            if not self._packed:
                self._packed = self._file.read1(_PACKED_BLOCK)
                self._read += len(self._packed)
            if not self._packed:
                if self._in_member:
                    raise EOFError("the archive ends before its data does")
                return b""
            self._in_member = True
            block = bytes(self._inflate.decompress(self._packed, max(size, 1)))
            self._packed = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._packed = self._inflate.unused_data.lstrip(b"\0")  # padding
                self._inflate = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
                self._in_member = False
            if block:
                self._refuse_bomb(len(block))
                return block

    def _refuse_bomb(self, more: int) -> None:
        self._unpacked += more
        most = max(ALWAYS_UNPACKED, MOST_PACKED * self._read)
        if self._unpacked > most:
            raise InputError(
                f"{self._path} unpacks to more than {MOST_PACKED} times its size "
                f"({self._unpacked // MIB:,} MiB so far), as no trace does; if it is "
                "one, unpack it with gunzip first"
            )

    def close(self) -> None:
        """Close the file beneath, too."""
        self._file.close()
        super().close()


def open_trace(path: Path) -> BufferedIOBase:
    """A trace file's bytes, unpacked: `read1` gives them. Raises InputError."""
    try:
        file = open_regular(path)
        packed = file.read(2) == GZIP_MAGIC
        file.seek(0)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return _Gunzip(file, path) if packed else file
