"""Runs the user's script as if nobody recorded it.

[Note: As without us] The script is `__main__`, with its own `sys.argv` and
`sys.path[0]`; its exceptions reach `sys.excepthook` without our frames; its
exit status, its output and the signals that end it are what they would be.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdpdoctor.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to run: a script's path or a module's name, and its arguments."""

    name: str
    is_module: bool
    args: tuple[str, ...]


def torchrun(options: Sequence[str], target: Target, own: Sequence[str]) -> None:
    """Become torchrun, which starts each rank under `fsdpdoctor run`.

    The process is replaced: signals and the exit status are torchrun's own.
    """
    what = ("-m", target.name) if target.is_module else (target.name,)
    arguments = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *options,
        "-m",
        "fsdpdoctor",
        "run",
        *own,
        *what,
        *target.args,
    ]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, arguments)


def load(target: Target) -> Callable[[], None]:
    """The target as `__main__`, ready to run. Raises UsageError if it is none."""
    main = types.ModuleType("__main__")
    source: Any
    if target.is_module:
        source, path = _find_module(target.name, main)
        first = str(Path.cwd())
    else:
        path = target.name
        source = _read_script(path)
        first = str(Path(path).resolve().parent)
    main.__file__ = path
    main.__dict__["__builtins__"] = builtins

    def run() -> None:
        sys.modules["__main__"] = main
        sys.argv[:] = [path, *target.args]
        if not sys.flags.safe_path:
            sys.path[0] = first
        # Compiled here: a syntax error is the script's, and reads as such.
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)

    return run


def _read_script(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot run {path}: {error.strerror}") from None


def _find_module(name: str, main: types.ModuleType) -> tuple[Any, str]:
    """A module's source, and its file."""
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ImportError as error:
        raise UsageError(f"cannot run -m {name}: {error}") from None
    loader: Any = None if spec is None else spec.loader
    if spec is None or not hasattr(loader, "get_data") or spec.origin is None:
        raise UsageError(f"cannot run -m {name}: no module of that name is found")
    main.__spec__ = spec
    main.__package__ = spec.parent
    main.__loader__ = loader
    return loader.get_data(spec.origin), spec.origin


def report_exception(error: BaseException) -> None:
    """Print a traceback as Python does, from the script's own frame on.

    What Python does then, step for step: it remembers the error in `sys`, calls the
    script's own hook where it has one, and says so where that fails.
    """
    here = report_exception.__code__.co_filename
    trace = error.__traceback__
    while trace is not None:
        ours = trace.tb_frame.f_code.co_filename == here
        trace = trace.tb_next
        if ours and trace is not None and trace.tb_frame.f_code.co_name == "<module>":
            break
    # None: the script did not compile, and Python shows no frame either.
    error = error.with_traceback(trace)
    modern: Any = sys
    modern.last_exc = error
    sys.last_type, sys.last_value = type(error), error
    sys.last_traceback = trace
    hook = getattr(sys, "excepthook", None)
    try:
        if hook is None:
            _to_stderr("sys.excepthook is missing\n")
            sys.__excepthook__(type(error), error, trace)
        else:
            hook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException as failed:
        _to_stderr("Error in sys.excepthook:\n")
        inner = failed.__traceback__
        sys.__excepthook__(type(failed), failed, inner and inner.tb_next)
        _to_stderr("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


def _to_stderr(text: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(text)


def reraise_sigint() -> None:
    """End as Python ends on an interrupt that nobody caught: of the signal."""
    import atexit

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(128 + signal.SIGINT)  # the signal is blocked
