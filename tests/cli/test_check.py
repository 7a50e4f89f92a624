"""`fsdpdoctor check`, as a user types it: scripts with seeded faults, and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rig.ranks import run_python

MODEL = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32000, 512)
        self.layers = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(512, 32000)
    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

def sharded(blocks):
    model = Model().cuda()
    if blocks:
        for part in (model.embed, *model.layers, model.head):
            fully_shard(part, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)

def whole():
    return sharded(True)

def train(model, optimizer):
    for _ in range(1_000_000):
        tokens = torch.randint(0, 32000, (2, 128), device="cuda")
        logits = model(tokens).flatten(0, 1).float()
        nn.functional.cross_entropy(logits, tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

START = """
import os
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
"""


def check(script: Path, body: str, *options: str) -> tuple[int, str]:
    """The exit status and what is printed, for a script with a body."""
    script.write_text(MODEL + body)
    command = ("-m", "fsdpdoctor", "check", "--limit", "230", *options, str(script))
    done = run_python(*command)
    return done.status, done.stdout + done.stderr


@pytest.mark.ranks
def test_seeded_faults_are_found(tmp_path: Path) -> None:
    """One unit for all, an optimizer that was built before it; as SARIF, status 1."""
    script = tmp_path / "train.py"
    body = START + (
        "model = Model().cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "fully_shard(model, mp_policy=policy)\n"
        "train(model, optimizer)\n"
    )
    out = tmp_path / "found.sarif"
    options = ("--format", "sarif", "--out", str(out), "--fail-on", "critical")
    status, _ = check(script, body, *options)

    assert status == 1
    (run,) = json.loads(out.read_text())["runs"]
    levels = {one["ruleId"]: one["level"] for one in run["results"]}
    assert levels == {"FD504": "error", "FD201": "warning"}
    line = run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"]
    assert "fully_shard(" in script.read_text().splitlines()[line - 1]


@pytest.mark.slow
def test_a_healthy_script_is_quiet(tmp_path: Path) -> None:
    """Its units are shown, and that it fits; nothing is a warning; 0 for CI."""
    body = START + (
        "model = sharded(True)\ntrain(model, torch.optim.AdamW(model.parameters()))\n"
    )
    status, text = check(tmp_path / "train.py", body, "--fail-on", "warning")

    assert status == 0
    assert "WARNING" not in text
    assert "CRITICAL" not in text
    assert "\nfits: " in text
    assert "6 x Block, 2.1 M parameters, reshard_after_forward=True" in text


@pytest.mark.slow
def test_a_factory_is_a_model_without_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """module:factory, from the working directory: the tree of what it returns."""
    (tmp_path / "mine.py").write_text(MODEL)
    options = ("-m", "fsdpdoctor", "check", "--limit", "230", "mine:whole")
    monkeypatch.chdir(tmp_path)
    done = run_python(*options)

    assert done.status == 0
    assert "6 x Block, 2.1 M parameters" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words", "limit_s"),
    [
        ("raise KeyError('x')\n", "KeyError", 230),
        ("print('no training')\n", "was not judged: it trained no model", 230),
        (START + "while True: pass\n", "--limit gives them longer", 20),
    ],
)
def test_what_cannot_be_judged_says_why(
    body: str, words: str, limit_s: int, tmp_path: Path
) -> None:
    """One line, no traceback, and never that all is well."""
    script = tmp_path / "train.py"
    script.write_text(MODEL + body)
    limit = ("--limit", str(limit_s))
    done = run_python("-m", "fsdpdoctor", "check", *limit, str(script))

    assert done.status in (1, 2)
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "nothing to change" not in done.stdout + done.stderr
