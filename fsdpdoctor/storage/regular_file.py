"""Reads a file that has to be one, up to a size."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

from fsdpdoctor.errors import InputError
from fsdpdoctor.quantities import MIB

MOST_HEADER = 64 * MIB
"""A header of 1,000 units with 100 parameters each, in 50 groups of 16,384 ranks, has
30 MiB."""


def is_file(path: Path) -> bool:
    """Whether a file is there that may be looked for: none has a name too long."""
    return _says(path.is_file)


def is_folder(path: Path) -> bool:
    """The same of a folder."""
    return _says(path.is_dir)


def exists(path: Path) -> bool:
    """The same of anything."""
    return _says(path.exists)


def _says(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except OSError:
        return False


def read_regular(path: Path, most: int | None = None, *, cut: bool = False) -> bytes:
    """A file's content. Raises OSError, or InputError where it is a device, a pipe or a
    socket, or larger than `most`; with `cut` it is read so far.
    """
    with open_regular(path) as file:
        try:
            content = file.read(-1 if most is None else most + 1)
        except (MemoryError, OverflowError):
            raise InputError(f"{path} does not fit into memory") from None
    if most is not None and len(content) > most and not cut:
        raise InputError(f"{path} is too large: expected at most {most:,} bytes")
    return content[:most]


def open_regular(path: Path) -> BufferedReader:
    """A file to be read. Raises OSError, or InputError where it is something else."""
    if type(path).open is not Path.open:  # remote: there is nothing but files
        return path.open("rb")
    # A pipe without a writer would be waited for in open().
    flags = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
    file = os.open(path, flags)
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        raise InputError(f"{path} is a {_kind(mode)}: expected a file")
    return os.fdopen(file, "rb")


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "folder",
        stat.S_IFIFO: "pipe",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    return kinds.get(stat.S_IFMT(mode), "special file")
