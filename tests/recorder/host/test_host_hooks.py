"""What the host does beside FSDP2, however the script came by the functions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

import fsdpdoctor
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import COUNTER_PYTHON_OBJECTS, Kind
from tests.recorder.rehearsed import recorded, sharded

dcp: Any = torch.distributed.checkpoint  # its functions have no types
save = dcp.save


def trained(folder: Path, clip: Any) -> list[int]:
    """The clipping spans of two steps."""
    with recorded(folder):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 8)).backward()
            clip(list(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
    steps = open_run(folder).sources[0].load().steps
    return [int((step.spans.kind == Kind.CLIP).sum()) for step in steps]


def in_two_calls(params: Any) -> None:
    """As torchtitan does."""
    utils: Any = torch.nn.utils
    norm = utils.get_total_norm([p.grad for p in params])
    utils.clip_grads_with_norm_(params, 1.0, norm)


def test_sees_clipping_that_was_imported_by_name(tmp_path: Path) -> None:
    """One span per call; the two parts on their own make two."""
    before = clip_grad_norm_

    assert trained(tmp_path / "one", lambda params: clip_grad_norm_(params, 1.0)) == [
        1,
        1,
    ]
    assert trained(tmp_path / "two", in_two_calls) == [2, 2]
    assert torch.nn.utils.clip_grad_norm_ is before


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wait_for_input_says_of_how_many_workers(
    workers: int, tmp_path: Path
) -> None:
    """Of the loader that it waits for."""
    rows = TensorDataset(torch.ones(8, 8))
    context = "fork" if workers else None
    loader = DataLoader(
        rows, batch_size=2, num_workers=workers, multiprocessing_context=context
    )
    with recorded(tmp_path):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (batch,) in loader:
            model(batch).backward()
            optimizer.step()
    (data,) = open_run(tmp_path).load()

    spans = [s.spans.rows(s.spans.kind == Kind.INPUT) for s in data.steps]
    assert {int(value) for one in spans for value in one.value} == {workers}


class Slow(torch.optim.SGD):
    """Does something of its own around its parent's step, as many do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Wait, step, wait."""
        time.sleep(0.02)
        super().step(closure)
        time.sleep(0.02)


def test_a_step_inside_a_step_is_part_of_it(tmp_path: Path) -> None:
    """The parent's class is hooked, too: one span per step, as long as the outer."""
    plain = nn.Linear(1, 1)
    torch.optim.SGD(plain.parameters(), lr=0.1)  # hooks SGD.step
    with recorded(tmp_path / "run"):
        model = sharded()
        optimizer = Slow(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()

    steps = open_run(tmp_path / "run").sources[0].load().steps
    spans = [step.spans.rows(step.spans.kind == Kind.OPTIMIZER) for step in steps]

    assert [len(found) for found in spans] == [1, 1, 1]
    assert all(int(found.duration_ns[0]) >= 40 * MS for found in spans)


def test_a_step_that_raised_leaves_nothing_behind(tmp_path: Path) -> None:
    """The next one is a step of its own."""
    with recorded(tmp_path / "run"):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for at in range(3):
            model(torch.ones(2, 8)).backward()
            if at == 1:
                with pytest.raises(ZeroDivisionError):
                    optimizer.step(lambda: 1 / 0)
            optimizer.step()
            optimizer.zero_grad()

    steps = open_run(tmp_path / "run").sources[0].load().steps

    assert [int((s.spans.kind == Kind.OPTIMIZER).sum()) for s in steps] == [1, 1, 1]


@pytest.mark.filterwarnings("ignore")  # torch's own, of a save without a job
def test_sees_a_checkpoint_that_was_imported_by_name(tmp_path: Path) -> None:
    """Also where the decorator keeps the function that was imported."""
    model = nn.Linear(2, 2)
    with fsdpdoctor.record(tmp_path / "run", every=1):
        save(model.state_dict(), checkpoint_id=tmp_path / "a")
        dcp.save(model.state_dict(), checkpoint_id=tmp_path / "b")
        model(torch.ones(2, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    steps = open_run(tmp_path / "run").sources[0].load().steps

    saves = sum(int((s.spans.kind == Kind.CHECKPOINT_SAVE).sum()) for s in steps)
    assert saves == 2


def test_objects_are_counted_now_and_then(tmp_path: Path) -> None:
    """To count them walks through all of Python's memory."""
    with recorded(tmp_path):
        model = sharded()
        for _ in range(11):
            model(torch.ones(2, 8)).backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    rank = open_run(tmp_path).sources[0].load()
    counted = [
        step.step
        for step in rank.steps
        if COUNTER_PYTHON_OBJECTS in {rank.name(int(n)) for n in step.counters.name}
    ]
    assert counted == [0, 4, 8]
