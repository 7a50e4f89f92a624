"""Passes of one step whose gradients are not added up: each has to be reduced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdpdoctor.report import diagnose
from fsdpdoctor.report.value import Report
from fsdpdoctor.run import open_run
from tests.recorder.rehearsed import recorded, sharded

STEPS = 8


def loss(model: Any) -> torch.Tensor:
    """Of one batch."""
    result: torch.Tensor = model(torch.ones(2, 8))
    return result


def twice(model: Any) -> None:
    """The weights are moved by the first gradients, which the second then replace."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        loss(model).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            moved = [0.1 * p.grad for p in model.parameters()]
            for param, by in zip(model.parameters(), moved, strict=True):
                param.add_(by)
        optimizer.zero_grad()
        loss(model).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for param, by in zip(model.parameters(), moved, strict=True):
                param.sub_(by)
        optimizer.step()
        optimizer.zero_grad()


class Searching(torch.optim.SGD):
    """Looks at the loss three times before it steps."""

    def step(self, closure: Any = None) -> Any:
        """Within the closure gradients are made anew."""
        with torch.enable_grad():
            found = [closure() for _ in range(3)]
        super().step()
        return found[-1]


def in_a_closure(model: Any) -> None:
    """The optimizer calls for gradients as often as it wants."""
    optimizer = Searching(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        found = loss(model).square()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    for _ in range(STEPS):
        optimizer.step(closure)


class Sharp(torch.optim.SGD):
    """Is stepped with gradients, makes others, and leaves none."""

    def step(self, closure: Any = None) -> Any:
        """What it was called with is gone as the closure runs."""
        self.zero_grad()
        with torch.enable_grad():
            found = closure()
        super().step()
        self.zero_grad()
        return found


def in_its_own_step(model: Any) -> None:
    """One pass before the optimizer's step, and one within it."""
    optimizer = Sharp(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        found = loss(model)
        found.backward()  # type: ignore[no-untyped-call]
        return found

    for _ in range(STEPS):
        closure()
        optimizer.step(closure)


def accumulated(model: Any) -> None:
    """Two batches whose gradients are added up."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        for _ in range(2):
            loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (twice, False),
        (in_a_closure, False),
        (in_its_own_step, False),
        (accumulated, True),
    ],
)
def test_only_gradients_that_are_added_up_can_wait(
    train: Callable[[Any], None], said: bool, tmp_path: Path
) -> None:
    """FD108 would have the others trained by the last pass alone."""
    with recorded(tmp_path):
        train(sharded())
    report: Report = diagnose(open_run(tmp_path))

    assert report.run.micro_batches is not None
    assert report.run.micro_batches >= 2
    codes = {finding.code for finding in report.findings}
    assert ("FD108" in codes) is said
    assert "FD504" not in codes
