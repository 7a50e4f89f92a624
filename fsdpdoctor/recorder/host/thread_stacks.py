"""What the other threads of this process run now.

[Note: Stacks of other threads] The frames of a running thread are not touched: between
two of their fields the interpreter may be handed over, that thread returns from the
function, and CPython 3.11 ends in a segmentation fault (python/cpython 99110, 111363).
A frame that is looked at also keeps its tensors alive. The interpreter's own
`faulthandler` writes all stacks in one go, gives nothing up and makes no frame. It
writes to a file in memory that is mapped here: reading it needs no system call, so
that the interpreter does not change hands a second time.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import fcntl
import mmap
import os
import re
import resource
import tempfile
from typing import NamedTuple, Protocol

SIZE_BYTES = 1 << 18
ROOM_BYTES = 1 << 16
"""That a dump of an ordinary process needs: with less left it begins at the top."""
HIGH_DESCRIPTOR = 900
"""Descriptors are given from below, so that nobody gets the number of one up here
after a script has closed all that it did not open itself."""

_THREAD = re.compile(rb"^(?:Current thread|Thread) 0x([0-9a-f]+)\b.*$", re.MULTILINE)
_FRAME = re.compile(rb'^  File "(.*)", line (\d+) in (.*)$')
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


class Code(Protocol):
    """What is asked of a frame's code."""

    @property
    def co_filename(self) -> str:
        """Its file."""

    @property
    def co_name(self) -> str:
        """Its function."""


class StackFrame(Protocol):
    """What is asked of a frame: one of this thread, or one that was told."""

    @property
    def f_code(self) -> Code:
        """The code that runs."""

    @property
    def f_lineno(self) -> int | None:
        """Its line."""

    @property
    def f_back(self) -> StackFrame | None:
        """The caller's frame."""


class ToldCode(NamedTuple):
    """A function by its names."""

    co_filename: str
    co_name: str


class ToldFrame(NamedTuple):
    """A frame of another thread, as it was when all were written down."""

    f_code: ToldCode
    f_lineno: int
    f_back: ToldFrame | None


class ThreadStacks:
    """Tells the stacks of threads; empty where this system does not give them."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        self._at = 0
        self._lines: dict[bytes, tuple[ToldCode, int]] = {}

    def of(self, thread: int) -> ToldFrame | None:
        """The innermost frame of a thread, by its identity; at most 100 of them."""
        return self.all(only=thread).get(thread)

    def all(self, *, only: int | None = None) -> dict[int, ToldFrame]:
        """The innermost frames of all threads that run Python, by their identities."""
        text = self._dump()
        found: dict[int, ToldFrame] = {}
        heads = [*_THREAD.finditer(text)]
        for at, head in enumerate(heads):
            thread = int(head[1], 16)
            if only is None or thread == only:
                end = heads[at + 1].start() if at + 1 < len(heads) else len(text)
                frame = self._frames(text[head.end() : end])
                if frame is not None:
                    found[thread] = frame
        return found

    def close(self) -> None:
        """Give the file back; the next question opens another."""
        with self._lock:
            if self._map is not None:
                self._map.close()
                if self._is_ours():
                    os.close(self._descriptor)
                self._map = None

    def _frames(self, text: bytes) -> ToldFrame | None:
        frame: ToldFrame | None = None
        for raw in reversed(text.splitlines()):
            known = self._lines.get(raw)
            if known is None:
                line = _FRAME.match(raw)
                if line is None:
                    continue
                code = ToldCode(_plain(line[1]), _plain(line[3]))
                known = self._lines[raw] = code, int(line[2])
            frame = ToldFrame(*known, frame)
        return frame

    def _dump(self) -> bytes:
        with self._lock:
            if self._map is None or not self._is_ours():
                self._open()
            if self._map is None:
                return b""
            if SIZE_BYTES - self._at <= ROOM_BYTES:
                os.lseek(self._descriptor, 0, os.SEEK_SET)
                self._map[:] = bytes(SIZE_BYTES)
                self._at = 0
            # From here on the interpreter stays with this thread.
            faulthandler.dump_traceback(self._descriptor)
            end = self._map.find(b"\0", self._at)
            if end < 0:  # longer than there is room for
                self._at = SIZE_BYTES
                return b""
            begin, self._at = self._at, end
            return self._map[begin:end]

    def _is_ours(self) -> bool:
        """Whether the descriptor still leads to the file: asked in the one way that
        does not give the interpreter up. Files of others block, as they all do.
        """
        try:
            return not os.get_blocking(self._descriptor)
        except OSError:
            return False

    def _open(self) -> None:
        self._map = None
        with contextlib.suppress(OSError, ValueError):
            low = _file()
            try:
                os.write(low, bytes(SIZE_BYTES))  # so that no page is missing later
                os.lseek(low, 0, os.SEEK_SET)
                os.set_blocking(low, False)
                self._map = mmap.mmap(low, SIZE_BYTES)
                self._at = 0
                self._descriptor = _high(low)
            finally:
                os.close(low)


def _file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fsdpdoctor-stacks")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _high(low: int) -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = HIGH_DESCRIPTOR if limit < 0 else min(HIGH_DESCRIPTOR, limit * 3 // 4)
    return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, least)


def _plain(text: bytes) -> str:
    """A name, of which other letters than ASCII are written by their numbers."""
    found = text.decode("ascii", "replace")
    if "\\" not in found:
        return found
    return _ESCAPED.sub(lambda e: chr(int(e[1] or e[2] or e[3], 16)), found)
