"""Ways that a training has of its own, by name: what it puts in place of torch's and
Python's parts, before it trains.
"""

from __future__ import annotations

import atexit
import builtins
import collections
import concurrent.futures
import faulthandler
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.faults.oddities import say


def put(owner: Any, **values: Any) -> None:
    """In place of what an owner has."""
    for name, value in values.items():
        setattr(owner, name, value)


def import_all() -> None:
    """What a first optimizer imports, before that can no longer be."""
    torch.optim.SGD([nn.Parameter(torch.ones(1))])


def function_mode() -> None:
    """What is called of torch goes through a mode of the script's, which counts."""
    counts: collections.Counter[str] = collections.Counter()

    class Counts(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            counts[getattr(function, "__name__", "?")] += 1
            return function(*args, **(kwargs or {}))

    mode: Any = Counts()
    mode.__enter__()
    atexit.register(lambda: say(sorted(counts.items())))
    atexit.register(mode.__exit__, None, None, None)


def saved_tensors() -> None:
    """What autograd saves goes through hooks of the script's, which count."""
    counts = collections.Counter[str]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        counts["packed"] += 1
        return tensor

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        counts["unpacked"] += 1
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    hooks.__enter__()
    atexit.register(lambda: say(sorted(counts.items())))


def random_numbers() -> None:
    """Of Python and numpy: nobody else takes any."""
    random.seed(1)
    np.random.seed(1)
    atexit.register(lambda: say(random.random(), np.random.rand()))


def odd_modules() -> None:
    """A model's modules answer no question but what torch asks."""

    def refused(self: nn.Module, *args: object) -> Any:
        raise RuntimeError("not asked by torch")

    for name in ("__bool__", "__len__", "__repr__", "extra_repr"):
        setattr(nn.Linear, name, refused)


def odd_optimizer() -> None:
    """A learning rate that is no number, and groups with things of their own."""
    before = torch.optim.SGD.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        for group in self.param_groups:
            group["theirs"] = object()
            group["initial_lr"] = float("nan")
            group["lr"] = torch.tensor(group["lr"], device="cpu")
            group[7] = float("inf")

    put(torch.optim.SGD, __init__=made)


def endless_rate() -> None:
    """A learning rate of nan: a schedule that divides by nothing."""
    before = torch.optim.SGD.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        for group in self.param_groups:
            group["lr"] = float("nan")

    put(torch.optim.SGD, __init__=made)


def let_go() -> None:
    """What the script lets go of is gone once the collector has been."""
    seen: list[Any] = []
    before = nn.Sequential.__init__

    def made(self: Any, *args: Any) -> None:
        before(self, *args)
        seen.append(weakref.ref(self))

    put(nn.Sequential, __init__=made)
    atexit.register(lambda: say(gc.collect() > 0, [ref() is None for ref in seen]))


def traced_memory() -> None:
    """Python's own account of what is allocated."""
    tracemalloc.start()
    atexit.register(lambda: say(tracemalloc.is_tracing()))


def calls_mocked() -> None:
    """Functions of the system are the script's own, and fail for others."""
    import_all()

    def refused(*args: object, **kwargs: object) -> Any:
        raise OSError("mocked")

    for owner, names in (
        (os, ("open", "replace", "rename", "fstat", "pwrite", "unlink")),
        (socket, ("gethostname",)),
        (json, ("dumps", "dump")),
        (subprocess, ("run", "Popen")),
    ):
        for name in names:
            put(owner, **{name: refused})
    put(os, getpid=lambda: 1 << 22)


def print_mocked() -> None:
    """What prints, asks and exits is the script's own."""
    for name in ("print", "input", "exit", "quit"):
        setattr(builtins, name, lambda *args, **kwargs: 1 // 0)


def streams_gone() -> None:
    """Whoever writes to standard error meets an object that knows nothing."""
    put(sys, stderr=object())
    put(sys, __stderr__=None)


def names_gone() -> None:
    """What the interpreter has of the script is taken away."""
    import_all()
    sys.path.clear()
    put(os, environ={"A": 1})
    sys.argv[1:] = [None, 7]  # type: ignore[list-item]
    atexit.register(delattr, sys, "argv")


def exits_at_exit() -> None:
    """Another status is asked for at the end, where nobody hears of it."""
    atexit.register(sys.exit, 9)
    atexit.register(lambda: 1 // 0)


def alarms() -> None:
    """A handler that raises, which the training goes on from."""
    raised: list[int] = []

    def handler(number: int, frame: object) -> None:
        raised.append(number)
        raise TimeoutError("too slow")

    signal.signal(signal.SIGUSR1, handler)
    before = nn.Tanh.forward

    def forward(self: nn.Tanh, x: torch.Tensor) -> torch.Tensor:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
        except TimeoutError:
            return before(self, x)
        return x * 0

    put(nn.Tanh, forward=forward)
    atexit.register(lambda: say(len(raised)))


def fast_switches() -> None:
    """Threads take turns at every moment, and others have work to do."""
    sys.setswitchinterval(1e-6)
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(100))

    threading.Thread(target=work, daemon=True).start()
    atexit.register(over.set)


def slow_switches() -> None:
    """A thread keeps its turn for a minute."""
    sys.setswitchinterval(60.0)


def dumps_later() -> None:
    """The script asks for stacks of its own, and for another signal's."""
    file = Path(os.devnull).open("w")  # noqa: SIM115 - open to the end
    faulthandler.dump_traceback_later(3600, file=file)
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
    atexit.register(faulthandler.unregister, signal.SIGUSR2)
    atexit.register(faulthandler.cancel_dump_traceback_later)


def nobody() -> None:
    """Root gives itself up: what was opened stays, and nothing else can be."""
    import_all()
    if os.geteuid() == 0:
        os.seteuid(65534)
        atexit.register(os.seteuid, 0)


def pools() -> None:
    """Processes that the script forks, and uses to its end."""
    pool = concurrent.futures.ProcessPoolExecutor(2)
    say(list(pool.map(abs, [-1, -2])))
    atexit.register(pool.shutdown)


def one_thread_of_autograd() -> None:
    """Backward runs where it is called."""
    torch.autograd.set_multithreading_enabled(False)


def handler_where_none() -> None:
    """A handler only where there is none, as of a job that may be preempted; and what
    was there is put back later.
    """
    heard: list[int] = []
    default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if default:
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    say(default, heard, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)


OWN_WAYS: dict[str, Callable[[], None]] = {
    "function-mode": function_mode,
    "handler-where-none": handler_where_none,
    "saved-tensors": saved_tensors,
    "random-numbers": random_numbers,
    "odd-modules": odd_modules,
    "odd-optimizer": odd_optimizer,
    "rate-is-nan": endless_rate,
    "let-go": let_go,
    "traced-memory": traced_memory,
    "calls-mocked": calls_mocked,
    "print-mocked": print_mocked,
    "streams-gone": streams_gone,
    "names-gone": names_gone,
    "exits-at-exit": exits_at_exit,
    "alarms": alarms,
    "fast-switches": fast_switches,
    "slow-switches": slow_switches,
    "dumps-later": dumps_later,
    "nobody": nobody,
    "pools": pools,
    "one-thread-of-autograd": one_thread_of_autograd,
}
