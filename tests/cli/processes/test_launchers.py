"""Commands that start ranks, and what records those."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.cli.processes.launchers import recorded

COMMANDS = {
    "torchrun --nproc-per-node 2 train.py --lr 1": (
        "torchrun --nproc-per-node 2 -m fsdpdoctor run train.py --lr 1"
    ),
    "torchrun --nproc-per-node 2 -m a.train --lr 1": (
        "torchrun --nproc-per-node 2 -m fsdpdoctor run -m a.train --lr 1"
    ),
    "accelerate launch --config_file a.yaml train.py --lr 1": (
        "accelerate launch --config_file a.yaml -m fsdpdoctor run train.py --lr 1"
    ),
    "accelerate launch --module a.train": (
        "accelerate launch -m fsdpdoctor run -m a.train"
    ),
    "fabric run --accelerator cpu --devices 2 train.py --lr 1": (
        "torchrun --nproc-per-node 2 -m fsdpdoctor run train.py --lr 1"
    ),
    "tune run --nproc_per_node 2 mine.py --config a.yaml": (
        "torchrun --nproc_per_node 2 -m fsdpdoctor run mine.py --config a.yaml"
    ),
    "srun -N 2 python train.py": "srun -N 2 python -m fsdpdoctor run train.py",
    "/usr/bin/python3.11 train.py --lr 1": "fsdpdoctor run train.py --lr 1",
}


@pytest.mark.parametrize("given", COMMANDS)
def test_the_command_that_records(given: str) -> None:
    """What is started is recorded, in the launcher's own words."""
    name, *args = given.split()

    assert recorded(name, args, is_module=False) == COMMANDS[given]


def test_modules_that_launch() -> None:
    """As Python starts them."""
    found = recorded(
        "torch.distributed.run", ("--nproc-per-node", "2", "x.py"), is_module=True
    )

    assert found == (
        "python -m torch.distributed.run --nproc-per-node 2 -m fsdpdoctor run x.py"
    )


@pytest.mark.parametrize("name", ["train.py", "accelerate", "tune", "model"])
def test_what_is_no_launcher(name: str) -> None:
    """A script, or a launcher's other commands."""
    assert recorded(name, ("config",), is_module=False) is None


def test_run_says_it() -> None:
    """It is refused, with what to type."""
    result = CliRunner().invoke(main, ["run", "accelerate", "launch", "train.py"])

    assert result.exit_code == 2
    assert result.output.endswith("accelerate launch -m fsdpdoctor run train.py\n")


@pytest.mark.parametrize("asked", [["run"], ["run", "tune", "run"]])
def test_a_name_that_is_too_long_is_no_launcher(asked: list[str]) -> None:
    """It is told in one line, and not looked for."""
    result = CliRunner().invoke(main, [*asked, "n" * 300])

    assert result.exit_code == 2
    assert result.output.count("\n") <= 2
    assert "Traceback" not in result.output
