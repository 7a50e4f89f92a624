"""Odd surroundings for a training, by name: what is done before it."""

from __future__ import annotations

import atexit
import builtins
import collections
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SCRIPT = str(Path(__file__).with_name("alone.py"))


def say(*words: object) -> None:
    """A line on standard output, which is compared."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def few_descriptors() -> None:
    """No file can be opened any more, as in a job that leaks them."""
    least = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, least))


def little_memory() -> None:
    """An address space that is as good as full."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = now + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def small_files() -> None:
    """A quota: no file may grow beyond 64 KB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))


def few_threads() -> None:
    """Nobody may start a thread any more."""

    def refused(*args: object, **kwargs: object) -> int:
        raise RuntimeError("can't start new thread")

    thread: Any = threading.Thread
    thread.start = refused


def elsewhere() -> None:
    """The working directory is another one: paths are not what they were."""
    os.chdir(tempfile.mkdtemp())
    say(Path(__file__).is_file())


def no_temporary_folder() -> None:
    """Where temporary files would go is nowhere."""
    os.environ["TMPDIR"] = tempfile.tempdir = "/no/such/folder"


def no_environment() -> None:
    """Neither HOME nor anything else but what torch needs."""
    kept = {n: v for n, v in os.environ.items() if n.startswith(("MASTER", "WORLD"))}
    os.environ.clear()
    os.environ.update(kept, RANK="0", LOCAL_RANK="nonsense")


def stdin_closed() -> None:
    """The next file that is opened gets its number."""
    os.close(0)


def tracing() -> None:
    """A debugger, or a coverage tool, sees every call."""
    seen: list[str] = []

    def trace(frame: Any, event: str, argument: object) -> Any:
        if len(seen) < 5 and frame.f_code.co_filename == SCRIPT:
            seen.append(frame.f_code.co_name)
        return None

    sys.settrace(trace)
    atexit.register(lambda: say(sys.gettrace() is trace, seen))


def profiling() -> None:
    """A profiler of Python's own sees every call."""
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: object) -> None:
        if frame.f_code.co_filename == SCRIPT and event == "call":
            seen.append(frame.f_code.co_name)

    sys.setprofile(profile)
    atexit.register(lambda: say(sys.getprofile() is profile, len(seen)))


def own_faulthandler() -> None:
    """The script wants its own word on fatal signals."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - open to the end
    faulthandler.enable(file)
    atexit.register(lambda: say(faulthandler.is_enabled(), file.closed))


HANDLED: list[int] = []


def own_signals() -> None:
    """The script's handlers: they run, and it asks what was there before."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, lambda n, f: HANDLED.append(n))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    atexit.register(lambda: say(sorted(set(HANDLED)) == [signal.SIGALRM]))
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)


def ignored_pipe() -> None:
    """SIGPIPE as a shell tool has it: it ends the process."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def wakeup() -> None:
    """An event loop's wake-up descriptor."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    say(signal.set_wakeup_fd(write) == -1)
    atexit.register(lambda: say(signal.set_wakeup_fd(-1) == write, read >= 0))


def own_hooks() -> None:
    """Hooks of the interpreter are the script's."""
    sys.excepthook = lambda *error: say("hook", error[0].__name__)
    sys.unraisablehook = lambda unraisable: say("unraisable")
    threading.excepthook = lambda args: say("thread", args.exc_type.__name__)
    builtins.print = lambda *words, **options: None
    threading.Thread(target=lambda: 1 // 0).start()


def ordered_exits() -> None:
    """What is to be done at exit is done in its order, after the training."""
    for number in range(3):
        atexit.register(say, "exit", number)


def frozen() -> None:
    """Objects that the collector leaves alone; none of ours is among what it finds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5, 2, 2)
    atexit.register(lambda: say(gc.get_threshold()))


def debugging_collector() -> None:
    """A collector that keeps what it finds, and a count of its callbacks."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    atexit.register(lambda: gc.set_debug(0))


def meta_by_default() -> None:
    """New tensors are on a device without storage, unless they say otherwise."""
    torch.set_default_device("meta")


def doubles_by_default() -> None:
    """New tensors are of another type."""
    torch.set_default_dtype(torch.float64)


def deterministic() -> None:
    """What is not deterministic raises."""
    torch.use_deterministic_algorithms(True)


def anomalies() -> None:
    """Autograd keeps stacks, and runs checks of its own."""
    torch.autograd.set_detect_anomaly(True)


def warnings_are_errors() -> None:
    """Whatever warns from here on raises."""
    warnings.simplefilter("error")


def other_logging() -> None:
    """The script's logging takes everything there is, and does not like it."""

    class Strict(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "fsdpdoctor" in record.name:
                raise RuntimeError("not mine")

    logging.root.handlers[:] = [Strict()]
    logging.root.setLevel(1)
    logging.raiseExceptions = True


def own_imports() -> None:
    """An import hook counts, and refuses what the script does not know."""

    class Refuses:
        @staticmethod
        def find_spec(name: str, *rest: object) -> None:
            if name.startswith("fsdpdoctor") or name in ("curses", "tkinter"):
                raise ImportError(f"{name} is not allowed here")

    finder: Any = Refuses
    sys.meta_path.insert(0, finder)


def modules_gone() -> None:
    """The script throws modules away, ours among them, and imports torch again."""
    for name in [n for n in sys.modules if n.startswith("fsdpdoctor")]:
        del sys.modules[name]


def no_reading() -> None:
    """`open` is the script's own."""
    before = builtins.open

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        if "fsdpdoctor" in str(file):
            raise PermissionError(file)
        return before(file, *args, **kwargs)

    builtins.open = opened


def frozen_time() -> None:
    """Time stands still, as in a test that fakes it."""
    for name in ("time", "time_ns", "monotonic", "monotonic_ns"):
        value = getattr(time, name)()
        setattr(time, name, lambda value=value: value)


def clock_set(seconds: int) -> Callable[[], None]:
    """The system's clock is set in the middle."""

    def act() -> None:
        for name, unit in (("time", 1), ("time_ns", 10**9)):
            before = getattr(time, name)
            setattr(time, name, lambda b=before, u=unit: b() + seconds * u)

    return act


def little_recursion() -> None:
    """Little recursion is left, once what an optimizer imports is imported."""
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1, device="cpu"))])
    sys.setrecursionlimit(len(_stack()) + 120)


def _stack() -> list[Any]:
    frame: Any = sys._getframe()
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def own_torch_function() -> None:
    """A name of torch that we use is the script's own, and counts."""
    calls = []
    before = torch.is_grad_enabled

    def counted() -> bool:
        calls.append(1)
        return before()

    torch.is_grad_enabled = counted
    atexit.register(lambda: say(torch.is_grad_enabled is counted))


def dispatch_mode() -> None:
    """All that is dispatched goes through a mode of the script's, which counts."""
    counts: collections.Counter[str] = collections.Counter()

    class Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            counts[str(function)] += 1
            return function(*args, **(kwargs or {}))

    mode: Any = Counts()  # type: ignore[no-untyped-call]
    mode.__enter__()
    atexit.register(lambda: say(sorted(counts.items())))
    atexit.register(mode.__exit__, None, None, None)


BEFORE: dict[str, Callable[[], None]] = {
    "few-descriptors": few_descriptors,
    "little-memory": little_memory,
    "small-files": small_files,
    "few-threads": few_threads,
    "elsewhere": elsewhere,
    "no-temporary-folder": no_temporary_folder,
    "no-environment": no_environment,
    "stdin-closed": stdin_closed,
    "tracing": tracing,
    "profiling": profiling,
    "own-faulthandler": own_faulthandler,
    "own-signals": own_signals,
    "sigpipe": ignored_pipe,
    "wakeup": wakeup,
    "own-hooks": own_hooks,
    "ordered-exits": ordered_exits,
    "frozen": frozen,
    "debugging-collector": debugging_collector,
    "meta-by-default": meta_by_default,
    "doubles-by-default": doubles_by_default,
    "deterministic": deterministic,
    "anomaly": anomalies,
    "warnings-are-errors": warnings_are_errors,
    "other-logging": other_logging,
    "own-imports": own_imports,
    "modules-gone": modules_gone,
    "no-reading": no_reading,
    "frozen-time": frozen_time,
    "little-recursion": little_recursion,
    "own-torch-function": own_torch_function,
    "dispatch-mode": dispatch_mode,
}
