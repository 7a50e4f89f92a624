"""Rules that a training sets for its whole process, and what it asks of others' code,
by name: what is refused there, it does without.
"""

from __future__ import annotations

import _thread
import atexit
import inspect
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
from torch.optim.lr_scheduler import StepLR

from tests.faults.oddities import say
from tests.faults.own_ways import import_all, put

_AUDITED = frozenset(
    {
        *("gc.get_objects", "gc.get_referrers", "sys._current_frames"),
        *("ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function"),
        *("fcntl.fcntl", "mmap.__new__", "subprocess.Popen", "os.fork"),
        *("os.rename", "os.remove", "os.listdir", "os.scandir", "os.mkdir"),
        *("socket.gethostname", "resource.setrlimit", "signal.pthread_kill"),
    }
)


def audited() -> None:
    """An audit hook refuses what a training has no need of."""
    import_all()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _AUDITED:
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(audit)


def audited_files() -> None:
    """An audit hook lets nobody open a file for writing."""
    import_all()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        flags = arguments[2] if event == "open" else 0
        if flags and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise RuntimeError("nobody writes here")

    sys.addaudithook(audit)


def numpy_raises() -> None:
    """Whatever overflows, or divides by nothing, raises in numpy."""
    np.seterr(all="raise")


def numpy_calls() -> None:
    """Numpy's complaints go to a function of the script's."""
    heard: list[str] = []
    np.seterrcall(lambda kind, flag: heard.append(kind))
    np.seterr(all="call")
    atexit.register(lambda: say(heard))


def no_threads() -> None:
    """Not even Python itself starts one any more."""
    import_all()

    def refused(*args: object, **kwargs: object) -> int:
        raise RuntimeError("can't start new thread")

    put(_thread, start_new_thread=refused)


def warnings_heard() -> None:
    """Each warning is kept, once and again: a scheduler complains of what it sees."""
    heard: list[str] = []
    torch.set_warn_always(True)
    warnings.simplefilter("always")
    put(warnings, showwarning=lambda message, *rest, **more: heard.append(str(message)))
    before = torch.optim.SGD.__init__
    schedules: list[Any] = []

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        schedules.append(StepLR(self, 2))

    put(torch.optim.SGD, __init__=made)
    step = torch.optim.SGD.zero_grad

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        step(self, *args, **kwargs)
        schedules[0].step()

    put(torch.optim.SGD, zero_grad=zero_grad)
    atexit.register(lambda: say([h[:60] for h in heard if "scheduler" in h]))


def asked_for_names() -> None:
    """What is wrapped has the names, the signature and the source of torch's own."""

    def look() -> None:
        functions: Any = _fsdp_param_group
        group = functions.FSDPParamGroup
        asked: list[Any] = [
            *(getattr(group, n) for n in ("unshard", "reshard", "post_backward")),
            *(group.pre_forward, group.finalize_backward, torch.optim.SGD.step),
            *(_fsdp_collectives.foreach_all_gather, functions.foreach_reduce),
            *(torch.distributed.all_reduce, torch.nn.utils.clip_grad_norm_),
        ]
        for one in asked:
            say(one.__module__, one.__qualname__, one.__name__, inspect.signature(one))
            say(hash(inspect.getsource(inspect.unwrap(one))) != 0)

    before = torch.nn.Tanh.forward
    seen: list[int] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        if len(seen) in (3, 9):
            look()
        return before(self, x)

    put(torch.nn.Tanh, forward=forward)


def output_elsewhere() -> None:
    """Standard output and error lead into files from here on."""
    sys.stdout.flush()
    kept = os.dup(1)
    files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - to the end
    for descriptor, file in enumerate(files, start=1):
        os.dup2(file.fileno(), descriptor)

    def back() -> None:
        sys.stdout.flush()
        written = os.lseek(1, 0, os.SEEK_CUR)
        os.dup2(kept, 1)
        say("written", written)

    atexit.register(back)


def all_random() -> None:
    """Numbers are drawn from torch's own generator: nobody else draws any."""
    torch.manual_seed(7)
    before = torch.nn.Tanh.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(before(self, x), 0.5)

    put(torch.nn.Tanh, forward=forward)
    atexit.register(lambda: say(torch.rand(2, device="cpu").tolist()))


def read_only_modules() -> None:
    """Modules of torch's that let nobody set anything."""

    class Sealed(type(torch)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"{self.__name__}.{name} is sealed")

        def __delattr__(self, name: str) -> None:
            raise AttributeError(f"{self.__name__}.{name} is sealed")

    import_all()
    for name in ("torch.nn.utils.clip_grad", "torch.serialization", "torch.utils.data"):
        sys.modules[name].__class__ = Sealed


def small_integers() -> None:
    """Long numbers are not written in words."""
    sys.set_int_max_str_digits(640)
    os.environ["PYTHONINTMAXSTRDIGITS"] = "640"


def home_is_gone() -> None:
    """Neither a home, nor a working directory that can be written."""
    os.environ["HOME"] = "/no/such/home"
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o500)
    os.chdir(folder)


STRICT: dict[str, Callable[[], None]] = {
    "audited": audited,
    "audited-files": audited_files,
    "numpy-raises": numpy_raises,
    "numpy-calls": numpy_calls,
    "no-threads": no_threads,
    "warnings-heard": warnings_heard,
    "asked-for-names": asked_for_names,
    "output-elsewhere": output_elsewhere,
    "all-random": all_random,
    "read-only-modules": read_only_modules,
    "small-integers": small_integers,
    "home-is-gone": home_is_gone,
}
