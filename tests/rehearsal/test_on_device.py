"""`rehearse --on`, as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from fsdpdoctor.run import open_run

SCRIPT = """
import torch
library = torch.library.Library("mine", "DEF")
library.define("norm(Tensor x) -> Tensor")
library.impl("norm", lambda x: x * 2, "CUDA")
torch.ops.mine.norm(torch.ones(4, device="cuda"))
"""


def test_a_script_that_cannot_be_rehearsed_ends_in_one_line(tmp_path: Path) -> None:
    """Status 2, no traceback, no report, and no word on whether it would fit."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["-m", "fsdpdoctor", "rehearse", "--on", "h100", "--world-size", "8"]
    done = subprocess.run(
        [sys.executable, *command, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    *before, last = done.stderr.splitlines()
    assert last.startswith("Error: cannot rehearse: mine::norm at train.py:6 is an ")
    assert all(line.startswith("fsdpdoctor: ") for line in before)
    assert [
        word for word in ("Traceback", "fits", "report") if word in done.stderr
    ] == []
    assert done.stdout == ""


FITTING = """
import torch
def twice(x):
    return x * 2
torch.compile(twice)(torch.ones(1 << 28, device="cuda")).sum().item()
"""


def test_the_verdict_is_written_for_programs_and_compiling_is_said(
    tmp_path: Path,
) -> None:
    """2 GiB are allocated; what a compiled region is taken for stands in the output."""
    (tmp_path / "train.py").write_text(FITTING)
    command = ["-m", "fsdpdoctor", "rehearse", "--on", "h100", "--world-size", "8"]
    done = subprocess.run(
        [sys.executable, *command, "--verdict", "v.json", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert verdict["fits"] is True
    assert 2 << 30 <= verdict["needed_bytes"] < (2 << 30) + 4096
    assert verdict["words"] in done.stderr
    assert "compiled regions were run eagerly" in done.stderr


AHEAD = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
torch.cuda.set_device(0)
model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(6):
    model(torch.ones(8192, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_a_script_need_not_wait_for_its_device(tmp_path: Path) -> None:
    """It ends half a minute ahead: the process ends no earlier than the device."""
    (tmp_path / "train.py").write_text(AHEAD)
    command = ["-m", "fsdpdoctor", "rehearse", "--on", "h100", "--world-size", "64"]
    subprocess.run(
        [
            sys.executable,
            *command,
            "--bandwidth",
            "0.1GB/s",
            "--out",
            "run",
            "train.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (data,) = open_run(tmp_path / "run").load()
    assert [s.step for s in data.steps if s.complete] == [*range(6)]
    assert not any("did not get to the end" in said for said in data.header.warnings)
