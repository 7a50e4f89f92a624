"""Notes a SIGTERM in the record, and lets it end the process as before.

[Note: SIGTERM] Python runs a signal handler only between two bytecodes, and a
rank may be inside a collective for minutes: a handler alone would keep alive a
process that the default action ends at once. So a thread is woken from C through
the wake-up descriptor, writes the header, restores the default action and sends
the signal again. It stands back where the user has a handler or a wake-up
descriptor of their own, for as long as they have it (an event loop asks what was
there, and is told: nothing), and in forked children. Who asks for the handler, or sets
another, is told that there is the default action: many a script registers its own only
then. One that puts the default action back gets this, and we with it.
The last word has `SAY_S`: a disk that hangs does not keep the process alive. The
threads are none of `threading`'s, which a script may count or join.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import os
import signal
import time
from collections.abc import Callable
from os import getpid, kill  # kept: a script may put others in place of them
from types import MethodType
from typing import Any

from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.forks import see_forks
from fsdpdoctor.recorder.own_threads import start_thread
from fsdpdoctor.recorder.patching import Patches, hide_frames, unseen

SAY_S = 2.0

_set_wakeup_fd, _getsignal, _signal = (
    signal.set_wakeup_fd,
    signal.getsignal,
    signal.signal,
)
"""Those of Python: those of `signal` are ours while we watch."""


class SigtermHandler:
    """While it lasts, `say` is called with a text before SIGTERM ends us."""

    def __init__(
        self, say: Callable[[str], None], noting: Callable[[], bool] = lambda: False
    ) -> None:
        self._say = say
        self._noting = noting
        self._ending = _thread.allocate_lock()
        self._write = -1  # of a pipe, while it is the wake-up descriptor
        self._pipe: object = None  # what both its descriptors lead to
        self._pending: object = None  # kept alive until it is called
        self._main = _thread.get_ident()
        self._patches = Patches()
        self._over = True

    def start(self) -> bool:
        """Begin to watch, on the main thread; False where the user does so."""
        self._over = False
        if not self._take():
            return False
        self._patches.put(signal, "set_wakeup_fd", self._wakeup(signal.set_wakeup_fd))
        self._patches.put(signal, "getsignal", self._asked(signal.getsignal))
        self._patches.put(signal, "signal", self._set(signal.signal))
        see_forks(self)
        return True

    def _wakeup(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What the script calls as `signal.set_wakeup_fd`."""

        @unseen
        @functools.wraps(real)
        def set_wakeup_fd(*args: Any, **kwargs: Any) -> Any:
            if self._over or _thread.get_ident() != self._main:
                return real(*args, **kwargs)
            self._give_back()
            theirs = (*args, *kwargs.values())[:1] != (-1,)
            try:
                return real(*args, **kwargs)
            except BaseException as error:
                theirs = False
                hide_frames(error)
                raise
            finally:
                if not theirs:
                    self._take()

        return set_wakeup_fd

    def _asked(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What the script calls as `signal.getsignal`."""

        @unseen
        @functools.wraps(real)
        def getsignal(*args: Any, **kwargs: Any) -> Any:
            return self._as_without_us(real, args, kwargs)

        return getsignal

    def _set(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What the script calls as `signal.signal`."""

        @unseen
        @functools.wraps(real)
        def set_handler(*args: Any, **kwargs: Any) -> Any:
            before = self._as_without_us(real, args, kwargs)
            given = (*args, *kwargs.values())[:2]
            if not self._over and given == (signal.SIGTERM, signal.SIG_DFL):
                self._give_back()
                self._take()
            return before

        return set_handler

    @unseen
    def _as_without_us(
        self, real: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        try:
            handler = real(*args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise
        return signal.SIG_DFL if self._is_ours(handler) else handler

    def _is_ours(self, handler: object) -> bool:
        return isinstance(handler, MethodType) and handler.__self__ is self

    def _take(self) -> bool:
        if _getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        try:
            read, write = os.pipe()
            # Once a script has closed it, signals come before our thread hears of that.
            self._write = border.raised(write)
            os.set_blocking(self._write, False)
            self._pipe = border.identity(read)
            before = _set_wakeup_fd(self._write, warn_on_full_buffer=False)
            if before != -1:
                _set_wakeup_fd(before)
                self._close()
                os.close(read)
                return False
            start_thread(self._watch, read, self._pipe)
            _signal(signal.SIGTERM, self._handler)
        except (OSError, RuntimeError, ValueError):  # no descriptors, no threads
            self._give_back()
            return False
        return True

    def stop(self) -> None:
        """Give the signal back, for good."""
        self._over = True
        self._patches.undo()
        self._give_back()

    def _give_back(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            descriptor = _set_wakeup_fd(-1)
            if descriptor not in (-1, self._write):
                _set_wakeup_fd(descriptor)  # it is the script's own
            if self._is_ours(_getsignal(signal.SIGTERM)):
                _signal(signal.SIGTERM, signal.SIG_DFL)
        self._close()

    def forked(self) -> None:
        """A forked child has no thread that would watch."""
        self.stop()

    def _close(self) -> None:
        """The thread reads the pipe's end, and is gone."""
        write, self._write = self._write, -1
        if write >= 0 and border.identity(write) == self._pipe:
            os.close(write)

    def _handler(self, number: int, frame: Any) -> None:
        if self._noting() and self._write >= 0:
            return  # the thread waits for what is being noted here, and ends us then
        if self._is_ours(_getsignal(signal.SIGTERM)):
            self._end()

    def _watch(self, read: int, pipe: object) -> None:  # untraced: its own thread
        # Its own pipe: a thread that begins late may find that of the next one here.
        try:
            while border.identity(read) == pipe and (number := os.read(read, 1)):
                if number[0] != signal.SIGTERM:
                    continue
                # In this order: another pipe means that the script had a handler of its
                # own for this signal, and has put the default back since.
                if self._is_ours(_getsignal(signal.SIGTERM)) and self._pipe == pipe:
                    self._end()
            if border.identity(read) == pipe:
                os.close(read)
            elif self._write >= 0 and self._pipe == pipe:
                self._lost()
        except OSError:
            return

    def _lost(self) -> None:  # untraced: its own thread
        """The script has closed all descriptors there are, as a daemon does: what the
        interpreter writes on a signal must not go into a file of the script's.
        """
        there, self._write = self._write, -1

        def give_back(_: object) -> int:
            with contextlib.suppress(Exception):  # nobody above could hear of it
                descriptor = _set_wakeup_fd(-1)
                if descriptor not in (-1, there):
                    _set_wakeup_fd(descriptor)
                if self._is_ours(_getsignal(signal.SIGTERM)):
                    _signal(signal.SIGTERM, signal.SIG_DFL)
            return 0

        # Only the main thread may do so, which calls it between two bytecodes.
        self._pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(give_back)
        ctypes.pythonapi.Py_AddPendingCall(self._pending, None)

    def _end(self) -> None:  # untraced: the process ends in it
        self._ending.acquire()
        said = _thread.allocate_lock()
        said.acquire()

        def say() -> None:
            try:
                self._say("signal: SIGTERM")
            finally:
                said.release()

        # Without a thread that it could hang in, there is no last word.
        with contextlib.suppress(RuntimeError):
            start_thread(say)
            said.acquire(timeout=SAY_S)
        # signal.signal works on the main thread only; the C function on any.
        ctypes.CDLL(None).signal(signal.SIGTERM, signal.SIG_DFL)
        kill(getpid(), signal.SIGTERM)
        while True:
            time.sleep(SAY_S)  # the process ends here
