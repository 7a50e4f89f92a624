"""Trains a small sharded model on gloo, with a fault in step AT: train.py FAULT LOSSES.

Each rank writes its losses, to the bit, into LOSSES/rankN.txt.
"""

from __future__ import annotations

import copy
import gc
import importlib
import os
import pickle
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset

FAULT, FOLDER = sys.argv[1], Path(sys.argv[2])
AT, STEPS = 8, 10_000 if FAULT == "many-steps" else 18
RANK = int(os.environ["RANK"])
NOW = {"step": 0}


def hit(*faults: str) -> bool:
    """Whether the fault of this run is one of these, and its step has come."""
    return FAULT in faults and NOW["step"] == AT


class Block(nn.Module):
    """Two linear layers around a place for a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A residual block."""
        if hit("forward-raises") and RANK == 0:
            raise ValueError("staged")
        if hit("out-of-memory"):
            raise torch.OutOfMemoryError("staged")
        if FAULT == "backward-raises":
            x = Raises.apply(x)  # type: ignore[no-untyped-call]
        result: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return result


class Raises(torch.autograd.Function):
    """The identity, until its step has come."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return `x`."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        """Return the gradient, or raise."""
        if hit("backward-raises"):
            raise ValueError("staged")
        return grads[0]


class Rows(Dataset[torch.Tensor]):
    """Seeded rows."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, at: int) -> torch.Tensor:
        if FAULT == "loader-raises" and at >= 4 * AT:
            raise OSError("staged")
        generator = torch.Generator().manual_seed(1000 * RANK + at)
        return torch.randn(16, generator=generator)


def build(blocks: int = 3) -> nn.Module:
    """A stack whose blocks and root are units."""
    torch.manual_seed(1)
    made: list[Any] = [Block() for _ in range(blocks)]
    if FAULT == "compile-per-block":
        made = [torch.compile(block, backend="aot_eager") for block in made]
    model = nn.Sequential(*made, nn.Linear(16, 1))
    for block in made:
        fully_shard(block)
    fully_shard(model)
    if FAULT == "compile-whole":
        whole: Any = torch.compile(model, backend="aot_eager")
        return whole  # type: ignore[no-any-return]
    return model


CALLS: dict[str, int] = {}


def patch() -> None:
    """As a tool would: count calls of FSDP2's own methods."""
    groups = importlib.import_module(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group"
    )

    def count(owner: Any, name: str) -> None:
        before = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            CALLS[name] = CALLS.get(name, 0) + 1
            return before(*args, **kwargs)

        setattr(owner, name, counted)

    for name in ("unshard", "pre_forward", "post_backward", "finalize_backward"):
        count(groups.FSDPParamGroup, name)
    for name in ("foreach_all_gather", "foreach_reduce"):
        count(groups, name)


def send(number: signal.Signals, *ranks: int) -> None:
    """A signal to oneself."""
    if RANK in ranks:
        os.kill(os.getpid(), number)
        time.sleep(0.5)


def slow_disk(seconds: float) -> None:
    """What is written into a record takes its time, from here on."""
    real = os.write

    def write(file: int, content: Any) -> int:
        if ".arrows" in str(Path(f"/proc/self/fd/{file}").readlink()):
            time.sleep(seconds)
        return real(file, content)

    os.write = write


def of_the_disk() -> None:
    """A fault of where the record is written."""
    if hit("quota-of-one") and RANK == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
    if hit("slow-writes"):
        slow_disk(0.4)
    if hit("writes-hang"):
        slow_disk(3600)
    if hit("folder-removed") and RANK == 0:
        shutil.rmtree(os.environ.get("RUN_FOLDER", "none"), ignore_errors=True)


def of_the_clock(seconds: int) -> None:
    """The system's clock is set."""
    for name, unit in (("time", 1), ("time_ns", 10**9)):
        real = getattr(time, name)
        setattr(time, name, lambda real=real, unit=unit: real() + seconds * unit)


def record_again() -> None:
    """Where we record, the script does so, too."""
    if "fsdpdoctor.recorder" in sys.modules:
        import fsdpdoctor

        with fsdpdoctor.record(FOLDER / "second"):
            torch.ones(1)


def before_step(model: Any, optimizer: Any) -> tuple[Any, Any]:
    """The fault of this run, if its step has come."""
    signals = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}
    name, _, who = FAULT.partition("-")
    if name in signals and hit(FAULT):
        send(signals[name], *((0, 1) if who == "all" else (1,)))
    if hit("os-exit-all") or (hit("os-exit-one") and RANK == 1):
        os._exit(7)
    if hit("sys-exit"):
        sys.exit(3)
    of_the_disk()
    if hit("clock-forward", "clock-back"):
        of_the_clock(7200 if FAULT == "clock-forward" else -7200)
    if hit("second-record"):
        record_again()
    if hit("elastic") and RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("staged")
    if hit("patch-recorded") or (FAULT == "patch-between" and NOW["step"] == AT + 6):
        patch()
    if hit("stderr-closed"):
        os.close(2)
    if hit("reload"):
        importlib.reload(
            importlib.import_module(
                "torch.distributed.fsdp._fully_shard._fsdp_collectives"
            )
        )
    if hit("rebuilt-model"):
        model = build(2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if hit("groups-made-again"):
        dist.barrier()
        dist.destroy_process_group()
        store = f"file://{FOLDER.absolute()}/store"
        dist.init_process_group("gloo", init_method=store, rank=RANK, world_size=2)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if hit("checkpoint-thread-raises"):
        threading.Thread(target=lambda: 1 // 0).start()
    if hit("deepcopy", "pickle"):
        act: Callable[[Any], Any] = (
            copy.deepcopy if FAULT == "deepcopy" else pickle.dumps
        )
        try:
            act(model)
        except Exception as error:
            CALLS[type(error).__name__] = 1
    return model, optimizer


class Counts(TorchFunctionMode):
    """Counts what is called of torch, by anybody."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """What torch returns."""
        name = getattr(function, "__name__", "?")
        CALLS[name] = CALLS.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


def print_tracebacks(model: Any) -> None:
    """Of what goes wrong in a pass, a clip and a collective, and is gone on from."""

    def refuse(*_: object) -> None:
        raise ValueError("staged")

    def backward() -> None:
        loss = torch.nn.Linear(1, 1)(torch.ones(1)).sum()
        loss.register_hook(refuse)
        loss.backward()

    tries: list[Callable[[], Any]] = [
        lambda: model(torch.ones(1, 3)),
        backward,
        lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), "x"),  # type: ignore[arg-type]
        lambda: dist.all_reduce(torch.ones(2, device="meta")),
        lambda: next(iter(DataLoader([1, "x"], batch_size=2))),  # type: ignore[arg-type]
    ]
    for one in tries:
        try:
            one()
        except Exception:
            sys.stdout.write(traceback.format_exc())


def join() -> None:
    """Make the process group. Each attempt of a restarted job has a store of its own:
    in torch's, gloo finds the addresses of the one before, now and then.
    """
    if FAULT != "elastic":
        dist.init_process_group("gloo")
        return
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    store = f"file://{FOLDER.absolute()}/store{attempt}"
    dist.init_process_group("gloo", init_method=store, rank=RANK, world_size=2)


def main() -> None:
    """Train; the losses tell whether anything was otherwise."""
    torch.set_num_threads(1)
    if FAULT == "patch-before":
        patch()
    join()
    model: Any = build(1 if FAULT == "many-steps" else 3)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if FAULT == "collector-off":
        gc.disable()
    workers = FAULT.removeprefix("workers-") if FAULT.startswith("workers-") else None
    loader = DataLoader(
        Rows(),
        batch_size=4,
        num_workers=1 if workers else 0,
        multiprocessing_context=workers,
    )
    losses = (FOLDER / f"rank{RANK}.txt").open("w")
    profiler = torch.profiler.profile() if FAULT == "profiler" else None
    if FAULT == "function-mode":
        mode: Any = Counts()
        mode.__enter__()
    for step, batch in enumerate(loader):
        NOW["step"] = step
        if hit("tracebacks-printed"):
            print_tracebacks(build(1))
        if hit("uneven-steps") and RANK == 1:
            break  # its data has ended, and the other one's has not
        if profiler is not None and step in (4, 9):
            (profiler.start if step == 4 else profiler.stop)()
        model, optimizer = before_step(model, optimizer)
        loss = model(batch).square().mean()
        if FAULT == "backward-in-a-thread":
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        else:
            loss.backward()
        if hit("optimizer-raises"):
            raise ValueError("staged")
        optimizer.step()
        optimizer.zero_grad()
        losses.write(f"{step} {loss.item().hex()}\n")
        losses.flush()
        if FAULT.startswith("disk-"):
            time.sleep(0.1)
    losses.write(f"{sorted(CALLS.items())}\n")
    losses.close()
    sys.stdout.write(f"done {RANK}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
