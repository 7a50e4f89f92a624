"""One rank of a job that tunes itself, or not, and in which something happens while
settings are tried: tuned.py FOLDER plain|tuned HOW.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

import fsdpdoctor
from tests.recorder.autotune.hurried import hurry
from tests.recorder.autotune.kinds import KINDS, digest

STEPS, HAPPENS = 130, 80

BLOCKS = [f"layers.{at}" for at in range(4)]
UNITS = {name: {"reshard_after_forward": False} for name in BLOCKS}
TRIED: dict[str, dict[str, Any]] = {
    "gathered": {"units": UNITS},
    **{
        f"blocking {at}": {"units": {}, "unshard_async_op": bool(at % 2)}
        for at in range(7)
    },
}
"""The first is kept; others are tried for as long as it trains."""


def happen(how: str, folder: Path) -> None:
    """In one step of the first attempt."""
    rank = dist.get_rank()
    (folder / f"happens.{rank}").write_text(str(os.getpid()))
    if rank == 1 and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and how == "raises":
        raise ValueError("staged")
    if rank == 1 and how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)  # the test has it go on
    if rank == 1 and how == "hangs":
        time.sleep(3600)
    if how == "terminated":
        time.sleep(3600)


def store_of(attempt: int) -> Any:
    """Torchrun's. Without a prefix a rank may find where one of the attempt before
    listened, and wait there.
    """
    stores: Any = dist
    there = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return stores.PrefixStore(str(attempt), stores.TCPStore(*there, is_master=False))


def main() -> None:
    """Train; what came of it is written step by step."""
    folder, tunes, how = Path(sys.argv[1]), sys.argv[2] == "tuned", sys.argv[3]
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    os.chdir(folder)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=store_of(attempt),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    hurry(TRIED, "gathered")
    recording: Any = contextlib.nullcontext()
    if tunes:
        recording = fsdpdoctor.record(autotune=True)
    path = folder / f"losses.{attempt}.{dist.get_rank()}"
    with recording, path.open("w") as losses:
        torch.manual_seed(0)
        _, step = KINDS["plain"]()
        for number in range(STEPS):
            if number == HAPPENS and attempt == 0:
                happen(how, folder)
            losses.write(f"{number} {digest(step(number))}\n")
            losses.flush()
    sys.stdout.write(f"trained {dist.get_rank()}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


main()
