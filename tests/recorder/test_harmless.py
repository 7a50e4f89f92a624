"""Recording changes no number, and a killed rank leaves its steps."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from fsdpdoctor.run import open_run
from fsdpdoctor.schema import Kind
from tests.recorder.conftest import JOB
from tests.rig.ranks import finish, run_ranks, start_ranks

pytestmark = pytest.mark.ranks

ENDLESS = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from tests.recorder import small_model
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = small_model.sharded()
model._set_unshard_async_op(sys.argv[2] == "async")
small_model.train(model, steps=10**9)
"""


def test_trains_to_the_same_bits(tmp_path: Path) -> None:
    """Losses and parameters after 14 steps, recorded and not, are equal."""
    for finished in run_ranks(2, "-W", "ignore", str(JOB), str(tmp_path), "identical"):
        finished.ok()

    same = json.loads((tmp_path / "same.json").read_text())

    assert same == {
        "fp32": True,
        "bf16": True,
        "accumulation": True,
        "checkpoint": True,
        "reentrant": True,
    }
    steps = open_run(tmp_path / "accumulation").sources[1].load().steps
    assert [s.step for s in steps if s.complete][:12] == [*range(12)]


@pytest.mark.parametrize("gathers", ["blocking", "async"])
def test_a_killed_rank_leaves_its_steps_and_its_last_event(
    tmp_path: Path, gathers: str
) -> None:
    """Every whole step can be read; the other rank's last event is the collective
    in which it hangs, the dead one's is where it stopped. Where FSDP2 waits for
    work, the recorder makes that wait, and what it raises is the script's error.
    """
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    run = tmp_path / "run"
    command = ("-m", "fsdpdoctor", "run", "--no-report", "--out", str(run))
    ranks = start_ranks(2, *command, str(script), str(JOB.parents[2]), gathers)
    stream = run / "rank00001.arrows"
    deadline = time.monotonic() + 120
    # About four recorded steps.
    while not stream.exists() or stream.stat().st_size < 100_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    ranks[1].kill(signal.SIGKILL)
    finish(ranks)
    survivor, dead = open_run(run).load()

    assert len(dead.steps) >= 3
    assert [s.step for s in dead.steps[:3]] == [0, 1, 2]
    assert dead.header.ended == "running"
    assert dead.beats[-1].step >= dead.steps[-1].step
    assert dead.unit_name(dead.beats[-1].unit) is not None or dead.beats[-1].kind in (
        Kind.OPTIMIZER,
        Kind.MICRO_BATCH,
    )
    assert survivor.header.warnings == ()
    # gloo notices the lost connection, and the script ends with its error.
    assert survivor.header.ended.startswith("exception: ")
    assert survivor.beats[-1].step >= dead.beats[-1].step - 1


TORN_DOWN = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh["shard"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
print("done")
"""


def test_a_script_may_tear_down_its_process_group(tmp_path: Path) -> None:
    """The last header is written after that, and asks nothing of what is gone."""
    script = tmp_path / "script.py"
    script.write_text(TORN_DOWN)
    run = tmp_path / "run"
    command = ("-m", "fsdpdoctor", "run", "--no-report", "--out", str(run))

    for finished in run_ranks(2, *command, str(script)):
        assert finished.ok().stdout == "done\n"

    for data in open_run(run).load():
        assert data.header.ended == "done"
        assert data.header.warnings == ()
        assert [unit.mesh for unit in data.header.units] == ["(shard=2)"]


def test_a_full_disk_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    """The script ends as it would have, and stderr says why nothing was recorded."""
    script = tmp_path / "script.py"
    script.write_text(TORN_DOWN)
    run = tmp_path / "run"
    run.mkdir()
    for rank in (0, 1):
        (run / f"rank0000{rank}.arrows").symlink_to("/dev/full")
    command = ("-m", "fsdpdoctor", "run", "--no-report", "--out", str(run))

    for finished in run_ranks(2, *command, str(script)):
        assert finished.ok().stdout == "done\n"
        assert "No space left on device" in finished.stderr
        assert "Traceback" not in finished.stderr
