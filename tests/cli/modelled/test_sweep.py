"""`fsdpdoctor plan SCRIPT --on DEVICE`, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fsdpdoctor.cli import main
from fsdpdoctor.cli.modelled import sweep as sweep_command
from fsdpdoctor.planning.sweep import Choice, Outcome
from tests.rig.ranks import run_python

SCRIPT = """
import argparse, os
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1)
given = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = torch.nn.Sequential(
    torch.nn.Embedding(64, 256), *(torch.nn.Linear(256, 256) for _ in range(4))
).to("cuda")
for layer in model[1:]:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    tokens = torch.zeros(given.batch_size, 128, dtype=torch.int64, device="cuda")
    model(tokens).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Played:
    """`SweepRuns` that rehearse nothing: twice the batch, twice the tokens."""

    made: Played

    def __init__(self, **asked: Any) -> None:
        self.asked = asked
        self.choices: Sequence[Choice] = ()
        type(self).made = self
        asked["folder"].mkdir(parents=True, exist_ok=True)

    def run(self, choices: Sequence[Choice]) -> list[Outcome]:
        """All of them fit."""
        self.choices = choices
        return [
            Outcome(
                choice=choice,
                fits=True,
                step_ns=10**9,
                tokens=100 * int(choice.get("micro-batch", "1")),
                reserved_bytes=1 << 30,
                command=("fsdpdoctor", "rehearse"),
            )
            for choice in choices
        ]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a folder of its own, where we are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_command, "SweepRuns", Played)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def plan(*arguments: str) -> Result:
    """The command."""
    return CliRunner().invoke(main, ["plan", *arguments])


def test_the_default_goes_through_what_every_script_has(script: Path) -> None:
    """At the world size that was given, and by the option that the script has."""
    result = plan("train.py", "--on", "h100", "--world-size", "16", "--json")
    assert result.exit_code == 0, result.output
    made = Played.made
    assert len(made.choices) == 4 * 2 * 2 * 2
    assert {c["world"] for c in made.choices} == {"16"}
    assert made.asked["swept"].options == (
        *("--on", "h100", "--bandwidth", "intra=nvlink4,inter=ib400"),
        *("--nproc-per-node", "8"),
    )
    said = json.loads(result.stdout)
    assert said["varied_by"] == {"micro-batch": "--batch-size"}
    assert len(said["configurations"]) == 32
    folder: Path = made.asked["folder"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "sweep.html",
        "sweep.json",
    ]


def test_prices_come_from_the_command_or_the_devices_file(
    script: Path, tmp_path: Path
) -> None:
    """The command's counts."""
    (tmp_path / "own.toml").write_text('like = "h100"\nprice_per_hour = 3.6\n')
    what = ("train.py", "--on", "own.toml", "--sweep", "micro-batch=1", "--json")
    prices = [
        json.loads(plan(*what, *more).stdout)["configurations"][0]["price_per_million"]
        for more in ((), ("--price", "7.2"))
    ]
    assert prices == [pytest.approx(10.0), pytest.approx(20.0)]


def test_arguments_go_to_the_script(script: Path) -> None:
    """After `--`, with a place for what is varied."""
    what = ("train.py", "--on", "h100", "--sweep", "depth=2/4,micro-batch=1")
    plan(*what, "--", "--layers={depth}", "--x")
    swept = Played.made.asked["swept"]
    assert swept.target({"depth": "4", "micro-batch": "2"}) == [
        *("train.py", "--layers=4", "--x", "--batch-size", "2"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train.py",), "say which, such as --on h100"),
        (("config.json", "--sweep", "world=8"), "say which, such as --on h100"),
        (("none.py", "--on", "h100"), "cannot read none.py"),
        (("train.py", "--on", "h9"), "is no device and no file"),
        (
            ("train.py", "--on", "h100", "--sweep", "a=1"),
            "takes no a, as far as its",
        ),
        (("train.py", "--on", "h100", "--bandwidth", "x"), "'x' is no link"),
        (
            ("train.py", "--on", "h100", "--sweep", "world=8,hsdp=on"),
            "no combination of these values is a job",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused(
    arguments: tuple[str, ...], message: str, script: Path
) -> None:
    """One line, before anything starts."""
    result = plan(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_script_is_swept_from_end_to_end(tmp_path: Path) -> None:
    """Four rehearsals of a small model: more ranks take less memory for each, other
    batches other tokens; the best command is one that runs.
    """
    (tmp_path / "train.py").write_text(SCRIPT)
    what = ("--sweep", "world=8/16,micro-batch=1/2,wrap=2,checkpointing=on")
    command = ("plan", str(tmp_path / "train.py"), "--on", "h100", *what, "--json")
    out = ("--out", str(tmp_path / "sweep"))
    said = json.loads(run_python("-m", "fsdpdoctor", *command, *out).ok().stdout)
    found = said["configurations"]
    assert [one["fits"] for one in found] == [True] * 4
    by = {(o["choice"]["world"], o["choice"]["micro-batch"]): o for o in found}
    tokens = {
        key: one["tokens_per_second"] * one["step_ns"] / 1e9 for key, one in by.items()
    }
    assert tokens == {key: pytest.approx(128 * int(key[1])) for key in by}
    best = found[said["best"][0]]["command"].split()
    assert best[:2] == ["fsdpdoctor", "rehearse"]
    again = run_python("-m", *best).ok()
    assert "fits: " in again.stderr
