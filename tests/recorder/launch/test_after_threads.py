"""A script's threads train on when its last line has run, and are recorded, too."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from fsdpdoctor.recorder.launch.after_threads import AfterThreads
from fsdpdoctor.run import open_run
from tests.faults.jobs import last_whole
from tests.rig.ranks import Finished, run_python

SCRIPT = """
import atexit, os, sys, threading, time, torch, torch.distributed as dist
from concurrent.futures import ThreadPoolExecutor
from torch.distributed.fsdp import fully_shard

store, starts, ends = sys.argv[1:]
os.environ["MASTER_ADDR"] = "127.0.0.1"
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
last = threading.Event()

def train(steps):
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item().hex(), flush=True)

def later():
    last.wait()
    time.sleep(0.5)  # the script's end has come
    train(5)

train(3)
atexit.register(lambda: print("at exit", flush=True))
if starts == "pool":
    ThreadPoolExecutor(1).submit(later)
else:
    threading.Thread(target=later).start()
last.set()
if ends == "raise":
    raise ValueError("mine")
if ends == "exit":
    sys.exit(7)
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("starts", "ends", "status", "ended"),
    [
        ("thread", "end", 0, "done"),
        ("thread", "raise", 1, "exception: ValueError: mine"),
        ("thread", "exit", 7, "exit: 7"),
        ("pool", "end", 0, "done"),
    ],
)
def test_a_thread_trains_on(
    tmp_path: Path, starts: str, ends: str, status: int, ended: str
) -> None:
    """Eight steps are in the record, which the script's end does not cut short."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def trained(store: str, *before: str) -> Finished:
        return run_python(*before, str(script), str(tmp_path / store), starts, ends)

    plain = trained("plain")
    ours = trained("ours", "-m", "fsdpdoctor", "run", "--out", str(tmp_path / "run"))
    (rank,) = open_run(tmp_path / "run").load()

    assert (plain.status, plain.stdout.count("\n")) == (status, 3)
    assert (ours.status, ours.stdout) == (plain.status, plain.stdout), ours.stderr
    assert (rank.header.ended, last_whole(rank)) == (ended, 7)
    assert ours.stderr.count("fsdpdoctor: recorded in ") == 1


def test_what_must_not_wait_is_done_at_once() -> None:
    """Though a thread goes on."""
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    done: list[int] = []
    after = AfterThreads(waits=False)
    for number in range(3):
        after.do(partial(done.append, number))
    over.set()
    other.join()

    assert done == [0, 1, 2]
