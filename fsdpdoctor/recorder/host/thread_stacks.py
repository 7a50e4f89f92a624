"""What the other threads of this process run now.

[Note: Stacks of other threads] The frames of a running thread are not touched: between
two of their fields the interpreter may be handed over, that thread returns from the
function, and CPython 3.11 ends in a segmentation fault (python/cpython 99110, 111363).
A frame that is looked at also keeps its tensors alive. The interpreter's own
`faulthandler` writes all stacks in one go, gives nothing up and makes no frame. It
writes to a file in memory that is mapped here: reading it needs no system call, so
that the interpreter does not change hands a second time.

A thread that Python did not start gets its state in the interpreter whenever it comes,
as gloo's do to drop a tensor, without having the interpreter. CPython 3.11 links that
state into its list before it is whole: a dump of all threads that meets it there ends
in a segmentation fault. So there only the thread that is asked for is written down, by
its own state, which it has told before. All threads are asked for where nothing moves,
and not as a rank ends: gloo drops its last tensors just then.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import faulthandler
import mmap
import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from fsdpdoctor.recorder import border

SIZE_BYTES = 1 << 18
ROOM_BYTES = 1 << 16
"""That a dump of an ordinary process needs: with less left it begins at the top."""
_MOST_LOW = 1024
"""Numbers among which a mapping's own is looked for."""
WHOLE_WHEN_LINKED = sys.version_info >= (3, 12)
"""Whether all threads may be written down at any time, see the note."""

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


class _OwnState:
    """A thread's state in the interpreter: its address, 0 once the thread has ended."""

    def __init__(self) -> None:
        self.address = 0
        # An interpreter may not have these names, or an audit hook forbid them.
        with contextlib.suppress(Exception):
            self._write: Any = ctypes.pythonapi._Py_DumpTraceback
            self._write.argtypes = [ctypes.c_int, ctypes.c_void_p]
            self._write.restype = None
            get: Any = ctypes.pythonapi.PyThreadState_Get
            get.restype = ctypes.c_void_p
            self.address = get()

    def write(self, descriptor: int) -> None:
        """Write its stack down, if the thread lives. Between the question and the call
        the interpreter stays with whoever asks.
        """
        if self.address:
            self._write(descriptor, self.address)


class _UntilItEnds:
    """Lies in a thread's own variables: that goes as the thread ends."""

    def __init__(self, state: _OwnState) -> None:
        self._state = state

    def __del__(self) -> None:
        self._state.address = 0


_own = _thread._local()
_states: dict[int, _OwnState] = {}


def tell_this_thread() -> None:
    """From here on others may ask for the stack of the thread that calls this."""
    if not hasattr(_own, "until_it_ends"):
        state = _states[_thread.get_ident()] = _OwnState()
        _own.until_it_ends = _UntilItEnds(state)


class ThreadStacks:
    """Tells the stacks of threads; empty where this system does not give them."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        self._low = -1
        self._file: tuple[int, int] | None = None  # what both numbers lead to
        self._at = 0
        self._lines: dict[bytes, tuple[ToldCode, int]] = {}

    def of(self, thread: int) -> ToldFrame | None:
        """The innermost frame of a thread that has told itself, by its identity; at
        most 100 of them.
        """
        state = _states.get(thread)
        if WHOLE_WHEN_LINKED:
            return self.all().get(thread)
        return None if state is None else self._frames(self._dump(state.write))

    def now(self, thread: int, *, standing: bool) -> dict[int, ToldFrame]:
        """The innermost frames of all threads, or of one where only that is safe:
        unless they are `standing` still.
        """
        if standing or WHOLE_WHEN_LINKED:
            return self.all()
        frame = self.of(thread)
        return {} if frame is None else {thread: frame}

    def all(self) -> dict[int, ToldFrame]:
        """The innermost frames of all threads that run Python, by their identities."""
        text = self._dump(faulthandler.dump_traceback)
        found: dict[int, ToldFrame] = {}
        heads = [*_THREAD.finditer(text)]
        for at, head in enumerate(heads):
            end = heads[at + 1].start() if at + 1 < len(heads) else len(text)
            frame = self._frames(text[head.end() : end])
            if frame is not None:
                found[int(head[1], 16)] = frame
        return found

    def open(self) -> None:
        """Open the file before the first question: on the main thread, so that a script
        which closes all descriptors there are does not do so while another opens one.
        """
        with self._lock:
            if self._map is None:
                self._open()

    def close(self) -> None:
        """Give the file back; the next question opens another."""
        with self._lock:
            if self._map is not None and self._is_ours():
                os.close(self._descriptor)
            self._unmap()

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

    def _dump(self, write: Callable[[int], object]) -> bytes:
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
            write(self._descriptor)
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

    def _unmap(self) -> None:
        """Give back the mapping, with the file's number that it keeps for itself: a low
        one. It closes that whatever it leads to by now, so that where the script has
        closed it, and may have a file of its own there, the mapping lives on.
        """
        mapped, self._map = self._map, None
        if mapped is None:
            return
        if self._low < 0 or border.identity(self._low) == self._file:
            mapped.close()
        else:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapped))

    def _open(self) -> None:
        self._unmap()
        with contextlib.suppress(OSError, ValueError):
            file = border.raised(_file())
            try:
                os.write(file, bytes(SIZE_BYTES))  # so that no page is missing later
                os.lseek(file, 0, os.SEEK_SET)
                os.set_blocking(file, False)
                self._file = border.identity(file)
                self._map, self._low = _mapped(file)
            except BaseException:
                os.close(file)
                raise
            self._at = 0
            self._descriptor = file


def _mapped(file: int) -> tuple[mmap.mmap, int]:
    """A file in memory, and by which number of its own the mapping keeps it, a low one;
    -1 where it keeps none.
    """
    if sys.version_info >= (3, 13):
        return mmap.mmap(file, SIZE_BYTES, trackfd=False), -1
    mapped, there = mmap.mmap(file, SIZE_BYTES), border.identity(file)
    low = (n for n in range(_MOST_LOW) if n != file and border.identity(n) == there)
    return mapped, next(low, file)


def _file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fsdpdoctor-stacks")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _plain(text: bytes) -> str:
    """A name, of which other letters than ASCII are written by their numbers."""
    found = text.decode("ascii", "replace")
    if "\\" not in found:
        return found
    return _ESCAPED.sub(lambda e: chr(int(e[1] or e[2] or e[3], 16)), found)
