"""What is written while training goes on, apart from the training thread.

[Note: Slow disks] A step's record is written here while the training thread waits for
it: so it is on its way to disk before the next step begins. It waits no longer than
`PATIENCE_S`: a disk that hangs, or a share whose server is gone, holds up this thread
alone. What is not written by then is kept, up to `MOST_WAITING` steps; a disk that
stays behind ends the recording. The same thread brings the heartbeat to disk.

The thread is none of `threading`'s: a script that counts, names or joins its threads
does not meet it.
"""

from __future__ import annotations

import _thread
import os
import queue
import time
from collections.abc import Callable

from fsdpdoctor.recorder.own_threads import start_thread, unsignalled

BEAT_S = 0.05
PATIENCE_S = 0.25
END_S = 5.0
"""How long the end of the process may be put off for what is not written yet."""
MOST_WAITING = 64

_Job = tuple[Callable[[], None], "_thread.LockType"]


_own: set[int] = set()


def on_own_thread() -> bool:
    """Whether this runs on a thread of ours, which must not wait for itself."""
    return _thread.get_ident() in _own


class DiskThread:
    """Runs what writes, one after the other."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self.beat_error: str | None = None  # what ended the heartbeat
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._late: list[_thread.LockType] = []  # not waited for to the end
        self._error: Exception | None = None
        self._pid = os.getpid()
        self._runs = False

    def start(self) -> None:
        """Begin. Where no thread can be made, everything is written by the caller."""
        try:
            start_thread(self._work)
            self._runs = True
        except RuntimeError:
            self._runs = False

    def write(self, job: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
        """Run a job. Raises what it, or one before it, raised."""
        self._raise()
        if not self._runs:
            with unsignalled():
                job()
            return
        done = _thread.allocate_lock()
        done.acquire()
        self._jobs.put((job, done))
        self._late = [lock for lock in self._late if lock.locked()]
        if self._late or not done.acquire(timeout=patience_s):
            self._late.append(done)
        if len(self._late) > MOST_WAITING:
            raise OSError(f"the disk is {MOST_WAITING} steps behind")
        self._raise()

    def later(self, job: Callable[[], None]) -> None:
        """Run a job after those before it, which nobody waits for but the end."""
        if not self._runs:
            with unsignalled():
                job()
            return
        done = _thread.allocate_lock()
        done.acquire()
        self._jobs.put((job, done))
        self._late.append(done)

    def finish(self, patience_s: float = END_S) -> bool:
        """Wait for what is under way; whether all is written."""
        until = time.monotonic() + patience_s
        for lock in self._late:
            if not lock.acquire(timeout=max(0.0, until - time.monotonic())):
                return False
        self._late = []
        return True

    def stop(self) -> None:
        """Let the thread end, when it is done."""
        if self._runs:
            self._runs = False
            self._jobs.put(None)

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:  # untraced: its own thread
        _own.add(_thread.get_ident())
        try:
            self._run()
        finally:
            _own.discard(_thread.get_ident())

    def _run(self) -> None:  # untraced: its own thread
        while True:
            try:
                job = self._jobs.get(timeout=BEAT_S)
            except queue.Empty:
                self._flush()
                continue
            if job is None:
                self._flush()
                return
            self._flush()  # first: a step on the disk has its events there, too
            try:
                job[0]()
            except Exception as error:
                self._error = error
            finally:
                job[1].release()

    def _flush(self) -> None:  # untraced: its own thread
        if self.beat_error is not None:
            return
        try:
            self._beat()
        except Exception as error:  # a record without it is one all the same
            self.beat_error = f"the heartbeat ends early: {error}"
