"""Where our code meets the process that it is a guest in.

[Note: Nothing of ours] may raise, exit, signal, block, leak or undo: before the
script, during it and after it. What is caught at the border:

- `Exception`, and so `MemoryError` and `RecursionError`, raised by our own code:
  the recording ends, training goes on.
- `KeyboardInterrupt`, `SystemExit` and whatever a signal handler of the script
  raises while our code happens to run: theirs. It passes as if it had struck one
  line earlier, and the recording goes on. Once the script has ended there is
  nobody left to hear it: then everything is caught.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from fsdpdoctor import redact
from fsdpdoctor.recorder.own_threads import unsignalled

_STDERR = 2
_HIGH_DESCRIPTOR = 900


def identity(descriptor: int) -> tuple[int, int] | None:
    """What a descriptor leads to: the script may close ours, and get the number."""
    try:
        there = os.fstat(descriptor)
    except OSError:
        return None
    return there.st_dev, there.st_ino


def raised(descriptor: int) -> int:
    """The same under a high number; the one that it had is given back. Numbers are
    given from below: so nobody gets this one once a script has closed all that it did
    not open itself, and what still goes to it goes nowhere.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _HIGH_DESCRIPTOR
    least = most if limit < 0 else min(most, limit * 3 // 4)
    there = identity(descriptor)
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
    finally:
        if identity(descriptor) == there:
            os.close(descriptor)


_stderr_was = identity(_STDERR)


def say(words: str) -> None:
    """One line on stderr, whatever the script has made of that.

    Where descriptor 2 is another file than at first, the script may have closed
    stderr and opened data of its own: nothing is written there.
    """
    try:
        stream: Any = sys.stderr
        if stream is None or (
            stream is sys.__stderr__ and identity(_STDERR) != _stderr_was
        ):
            return
        with unsignalled():
            stream.write(f"{words}\n")
            stream.flush()
    except (Exception, SystemExit, GeneratorExit) as error:
        let_through(error)  # nobody listens


def last_words(act: Callable[[], object]) -> None:
    """Do something after the script's end, of which nothing may come through."""
    try:
        act()
    except BaseException:
        return  # the process ends as the script has ended


def words_of(error: BaseException) -> str:
    """What an error says of itself, in one line; nothing where it cannot. Of one that
    quotes another process's traceback, as a data loader's does, the line that ends it.
    """
    try:
        text = str(error)
        before, quoted, after = text.partition(_TRACEBACK)
        # A pool's is in three quotes.
        lines = [line for line in after.splitlines() if line.strip(_AROUND)]
        if quoted and lines:
            text = f"{before.removesuffix('Original ').strip(_AROUND)} {lines[-1]}"
        return " ".join(text.split())
    except Exception:  # the script's own, or no memory
        return ""


_TRACEBACK = "Traceback (most recent call last):"
_AROUND = '" \n'


def describe(error: BaseException) -> str:
    """An error of ours in one line, with the place of its cause."""
    try:
        where = "?"
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            where = f"{code.co_name}:{trace.tb_lineno}"
            trace = trace.tb_next
        words = redact.text(words_of(error))
        return f"{type(error).__name__} in {where}: {words}".rstrip()
    except Exception:  # no memory, or a text that cannot be made
        return type(error).__name__


_THEIRS = "_fsdpdoctor_theirs"


def mark_as_theirs(error: BaseException) -> None:
    """Say of an error that has lost its traceback that a signal handler has raised it:
    it may come up again in our frames.
    """
    with contextlib.suppress(Exception):
        object.__setattr__(error, _THEIRS, True)


def let_through(error: BaseException) -> None:
    """Raise on what a signal handler of the script has raised, whatever of ours it came
    in: who takes an error for an answer, amid a training, asks this first.
    """
    if of_signal_handler(error):
        raise error


def of_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the script has raised this, in our frames."""
    with contextlib.suppress(Exception):  # it may have a __getattr__ of its own
        if getattr(error, _THEIRS, False):
            return True
    codes: set[CodeType] = set()
    trace = error.__traceback__
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    return any(code in codes for code in _handlers())


def _handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        code = _code_of(signal.getsignal(number))
        if code is not None:
            yield code


def _code_of(handler: Any) -> CodeType | None:
    try:
        while isinstance(handler, functools.partial):
            handler = handler.func
        handler = getattr(handler, "__func__", handler)
        code = getattr(handler, "__code__", None)
        if code is None:
            code = getattr(vars(type(handler)).get("__call__"), "__code__", None)
    except Exception:  # a stand-in that answers nothing; here nothing may come through
        return None
    return code if isinstance(code, CodeType) else None
