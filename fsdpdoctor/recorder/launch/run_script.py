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
import pkgutil
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from fsdpdoctor.errors import UsageError
from fsdpdoctor.recorder.launch.early_variables import sets_variables
from fsdpdoctor.recorder.patching import hide_frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to run: a script's path or a module's name, and its arguments."""

    name: str
    is_module: bool
    args: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """As a command line has it."""
        return (*["-m"] * self.is_module, self.name, *self.args)


def torchrun_command(
    options: Sequence[str], target: Target, own: Sequence[str]
) -> list[str]:
    """torchrun, which starts each rank under `fsdpdoctor run`."""
    launcher = (sys.executable, "-m", "torch.distributed.run", *options)
    return [*launcher, "-m", "fsdpdoctor", "run", *own, *target.words]


def torchrun(options: Sequence[str], target: Target, own: Sequence[str]) -> None:
    """Become torchrun.

    The process is replaced: signals and the exit status are torchrun's own.
    """
    become(torchrun_command(options, target, own))


def become(command: Sequence[str]) -> None:
    """Have another program of Python's in the place of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*command])


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A target that is ready to run."""

    run: Callable[[], None]
    sets_variables: bool  # before it imports torch, see `early_variables`


def load(target: Target) -> Script:
    """The target as `__main__`, ready to run. Raises UsageError if it is none."""
    main = types.ModuleType("__main__")
    if target.is_module:
        found = _find_module(target.name, main)
        argv0, first = found.path, str(Path.cwd())
    else:
        # As Python has it, so that a script may leave the working directory.
        path = _absolute(target.name)
        found = _find_packed(path, main) or _read_script(target.name, path, main)
        packed = main.__spec__ is not None
        argv0, first = target.name, path if packed else _folder_of(path)
    main.__file__ = found.path
    main.__dict__.update(__builtins__=builtins, __annotations__={})

    def run() -> None:
        sys.modules["__main__"] = main
        if "__mp_main__" in sys.modules:  # by which spawned workers name its classes
            sys.modules["__mp_main__"] = main
        sys.argv[:] = [argv0, *target.args]
        if not sys.flags.safe_path or first == found.archive:
            sys.path[0] = first
            _forget_namesakes(Path(first))
        # Compiled here: a syntax error is the script's, and reads as such.
        exec(
            compile(found.source, found.path, "exec", dont_inherit=True), main.__dict__
        )
        if main.__spec__ is None:  # Python takes these away at a script's end
            for name in ("__file__", "__cached__"):
                main.__dict__.pop(name, None)

    return Script(run=run, sets_variables=sets_variables(found.source))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The code to run, and where it is from."""

    source: Any
    path: str
    archive: str | None = None  # the folder or zip file that holds it


def _absolute(path: str) -> str:
    if path.startswith(os.sep):
        return path
    try:
        return f"{Path.cwd()}{os.sep}{path}"  # a "./" stays, as Python leaves it
    except OSError:
        return path  # the working directory has been removed


def _folder_of(path: str) -> str:
    return str(Path(path).resolve().parent)


def _read_script(name: str, path: str, main: types.ModuleType) -> _Source:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot run {name}: {error.strerror}") from None
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    return _Source(source=source, path=path)


def _find_packed(path: str, main: types.ModuleType) -> _Source | None:
    """The `__main__` of a folder or a zip file, which Python runs as well."""
    importer = pkgutil.get_importer(path)
    if importer is None:
        return None
    spec = importer.find_spec("__main__")
    if spec is None:
        raise UsageError(f"cannot run {path}: it holds no __main__.py")
    return _of_spec(spec, main, path)


def _find_module(name: str, main: types.ModuleType) -> _Source:
    """A module's source, and its file."""
    ours = sys.path[0]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ImportError as error:
        raise UsageError(f"cannot run -m {name}: {error}") from None
    finally:
        sys.path[0] = ours  # what we have yet to import is not to be found there
    if spec is None:
        raise UsageError(f"cannot run -m {name}: no module of that name is found")
    return _of_spec(spec, main, None)


_STARTS_WITH = (
    *("_collections_abc", "_sitebuiltins", "abc", "codecs", "encodings", "genericpath"),
    *("io", "ntpath", "os", "posixpath", "runpy", "site", "stat", "zipimport"),
)
"""What Python has imported before it runs a script, or finds before its folder."""

_ONE_OF_A_KIND = (
    *("__main__", "asyncio", "atexit", "builtins", "concurrent", "contextvars"),
    *("faulthandler", "gc", "importlib", "linecache", "logging", "multiprocessing"),
    *("signal", "threading", "traceback", "types", "warnings", "weakref"),
)
"""What the interpreter or other modules look up by its name, or what holds the state of
the process: torch does not import with another in its place either.
"""


def _forget_namesakes(folder: Path) -> None:
    """A script imports its own modules, though we have imported others of that name:
    its statistics.py as well as its click.py.
    """
    kept = {"torch", "numpy", "fsdpdoctor", *_STARTS_WITH, *_ONE_OF_A_KIND}
    try:
        beside = {entry.name.partition(".")[0] for entry in folder.iterdir()}
    except OSError:  # a zip file; or one that may not be listed
        return
    for name in beside.intersection(sys.modules) - kept:
        there = getattr(sys.modules.get(name), "__file__", None)
        own = (folder / f"{name}.py", folder / name / "__init__.py")
        if there is None or Path(there).is_relative_to(folder):
            continue
        if any(path.is_file() for path in own):
            for module in [m for m in sys.modules if m.partition(".")[0] == name]:
                del sys.modules[module]


def _of_spec(spec: ModuleSpec, main: types.ModuleType, archive: str | None) -> _Source:
    loader: Any = spec.loader
    if not hasattr(loader, "get_data") or spec.origin is None:
        raise UsageError(f"cannot run {spec.name}: it is no Python module with a file")
    main.__spec__ = spec
    main.__package__ = spec.parent
    main.__loader__ = loader
    source = loader.get_data(spec.origin)
    return _Source(source=source, path=spec.origin, archive=archive)


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
    for one in _with_causes(error):
        hide_frames(one)
    trace = error.__traceback__
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


def _with_causes(error: BaseException) -> list[BaseException]:
    """All errors that are printed with it."""
    found = {id(error): error}  # not by what they say of being equal
    left = [error]
    while left:
        one = left.pop()
        more = [one.__cause__, one.__context__]
        more += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        new = {id(e): e for e in more if e is not None and id(e) not in found}
        found |= new
        left += new.values()
    return [*found.values()]


def _to_stderr(text: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
