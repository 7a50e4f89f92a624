"""A short run ends at a step's edge, and leaves its result to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.plan_file import bits_file
from fsdpdoctor.recorder.changes.apply_plan import applying
from fsdpdoctor.recorder.changes.trial_run import on_trial
from tests.recorder.changes.test_apply_plan import saved, tokens
from tests.simulate.real import sharded

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def alone(one_thread: None) -> Iterator[None]:
    """One rank: FSDP2 then skips its collectives, and gradients are real."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(steps: int, evaluate: bool = False) -> list[int]:
    """A script; the steps that it began."""
    torch.manual_seed(0)
    model = sharded(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = tokens()
    begun = []
    for step in range(steps):
        begun.append(step)
        for _ in range(2):
            model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if evaluate:
            with torch.no_grad():
                model(batch)
    return begun


def bits(folder: Path, steps: int) -> str:
    """The hash that a script leaves which ends by itself."""
    folder.mkdir()
    with on_trial(None, folder, 3) as trial:
        train(steps)
        trial.script_ended()
    return bits_file(folder, 3).read_text()


def test_a_run_ends_after_its_steps(tmp_path: Path) -> None:
    """Before the next one: its result is that of a script with so many steps."""
    with pytest.raises(SystemExit) as ended, on_trial(2, tmp_path, 3):
        train(9, evaluate=True)

    assert ended.value.code == 0
    assert bits_file(tmp_path, 3).read_text() == bits(tmp_path / "two", 2)
    assert bits_file(tmp_path, 3).read_text() != bits(tmp_path / "three", 3)


def test_a_shorter_script_ends_by_itself(tmp_path: Path) -> None:
    """It has fewer steps than it might have run."""
    with on_trial(5, tmp_path, 3) as trial:
        begun = train(4)
        trial.script_ended()

    assert begun == [0, 1, 2, 3]
    assert bits_file(tmp_path, 3).read_text() == bits(tmp_path / "four", 4)


def train_plainly(steps: int, optimizers: int) -> Iterator[tuple[int, int]]:
    """Without FSDP2: each step that an optimizer is about to make."""
    model = torch.nn.Linear(4, 4)
    turns = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(optimizers)]
    for step in range(steps):
        for number, optimizer in enumerate(turns):
            model(torch.ones(1, 4)).sum().backward()
            yield step, number
            optimizer.step()


def test_a_script_that_shards_nothing_ends_too() -> None:
    """After as many steps of one of its optimizers; no root's forward ever begins."""
    stepped: list[tuple[int, int]] = []
    with pytest.raises(SystemExit) as ended, on_trial(3, None, 3):
        stepped.extend(train_plainly(9, optimizers=2))

    assert ended.value.code == 0
    assert stepped == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


def test_plain_steps_do_not_end_a_script_that_shards_a_model() -> None:
    """A probe is trained before FSDP2's model runs."""
    with on_trial(2, None, 3):
        sharded(4)
        stepped = list(train_plainly(5, optimizers=1))

    assert len(stepped) == 5


def test_other_units_leave_the_same_bits(tmp_path: Path) -> None:
    """The hash is over parameters by name: grouping does not show in it."""
    (tmp_path / "run.json").write_text("{}")
    with (
        applying(saved(tmp_path, Plan(merge=2)), tmp_path),
        on_trial(None, tmp_path, 3) as trial,
    ):
        train(2)
        trial.script_ended()

    assert bits_file(tmp_path, 3).read_text() == bits(tmp_path / "plain", 2)


def test_no_bits_are_left_where_none_are_asked_for(tmp_path: Path) -> None:
    """Nor where no model ran."""
    with on_trial(None, None, 3) as trial:
        train(1)
        trial.script_ended()
    with on_trial(None, tmp_path, 3) as trial:
        trial.script_ended()

    assert list(tmp_path.iterdir()) == []
