"""Optimizers, scalers and weights that move within a step: where it ends."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fsdpdoctor.recorder.host.optimizer_hooks import HOOKS_LOST
from fsdpdoctor.recorder.steps.steps import OWN_OPTIMIZER
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import Kind
from tests.recorder.rehearsed import recorded, sharded

STEPS = 3
OPTIMIZERS: Any = importlib.import_module("torch.optim.optimizer")

Training = Callable[[Any, torch.optim.Optimizer], None]


def of(train: Training, folder: Path) -> RankData:
    """What was recorded of a training."""
    with recorded(folder):
        model = sharded()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return open_run(folder).sources[0].load()


def backward(model: Any) -> torch.Tensor:
    """Forward and backward."""
    loss: Any = model(torch.ones(2, 8))
    loss.backward()
    result: torch.Tensor = loss
    return result


@torch.no_grad()
def move(model: Any, by: float) -> None:
    """Along the gradients, and they are gone."""
    for param in model.parameters():
        param.add_(param.grad, alpha=by)
        param.grad = None


def test_hooks_that_the_script_throws_away_are_missed_in_words(tmp_path: Path) -> None:
    """Steps end no more: two were whole, and the record says why there are no more."""

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        for at in range(STEPS + 1):
            if at == 2:
                OPTIMIZERS._global_optimizer_pre_hooks.clear()
                OPTIMIZERS._global_optimizer_post_hooks.clear()
            backward(model)
            optimizer.step()
            optimizer.zero_grad()

    data = of(train, tmp_path)
    assert [s.complete for s in data.steps] == [True, True, False]
    assert HOOKS_LOST.format(step=2) in data.header.warnings


class OfTheScript(torch.optim.Optimizer):
    """Whose step compiles whole, as torch's own do not."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Along the gradients."""
        for param in self.param_groups[0]["params"]:
            param.add_(param.grad, alpha=-0.1)


class Summed(nn.Linear):
    """A model that nobody records."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What backward can begin with."""
        return super().forward(x).sum()


@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_a_compiled_step_is_the_scripts_own(tmp_path: Path) -> None:
    """No hook of ours is in its one graph, which has what it has without us; steps end
    with the backward whose gradients it used.
    """
    counters: Any = importlib.import_module("torch._dynamo.utils").counters

    def graphs() -> dict[str, int]:
        found = dict(counters["stats"])
        torch._dynamo.reset()
        counters.clear()
        return found

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        step = torch.compile(
            OfTheScript(model.parameters()).step, backend="eager", fullgraph=True
        )
        for _ in range(STEPS):
            backward(model)
            step()
            optimizer.zero_grad()

    graphs()
    data = of(train, tmp_path)
    recorded_graphs = graphs()
    train(Summed(8, 8), torch.optim.SGD([torch.zeros(1)], lr=0.1))

    assert data.header.ended == "done"
    assert data.header.warnings == (OWN_OPTIMIZER,)
    assert [s.complete for s in data.steps] == [True] * STEPS
    assert recorded_graphs["unique_graphs"] == graphs()["unique_graphs"] == 1


def shape(data: RankData) -> list[tuple[int, int, bool]]:
    """Of each step: micro-batches, optimizer spans, and whether it ended."""
    return [
        (s.micro_batches, int((s.spans.kind == Kind.OPTIMIZER).sum()), s.complete)
        for s in data.steps
    ]


def test_a_scaler_that_leaves_a_step_out_ends_it_all_the_same(tmp_path: Path) -> None:
    """The first and the last of three overflow: each is a step, without a span."""

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for at in range(STEPS):
            loss = model(torch.ones(2, 8)) * (1.0 if at == 1 else float("inf"))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    data = of(train, tmp_path)

    assert shape(data) == [(1, 0, True), (1, 1, True), (1, 0, True)]
    assert data.header.warnings == ()


def test_weights_that_move_within_a_step_do_not_end_it(tmp_path: Path) -> None:
    """An ascent by hand, and back, before the optimizer's step: in the first, too."""

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(STEPS):
            backward(model)
            move(model, 0.1)
            backward(model)
            optimizer.step()
            optimizer.zero_grad()

    data = of(train, tmp_path)

    assert shape(data) == [(2, 1, True)] * STEPS
    assert data.header.warnings == ()


def test_an_optimizer_that_never_steps_is_not_waited_for(tmp_path: Path) -> None:
    """It is there for its schedule: steps are told at the end, each of them."""

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(STEPS):
            backward(model)
            move(model, -0.1)

    data = of(train, tmp_path)

    assert shape(data) == [(1, 0, True)] * STEPS
    assert data.header.warnings == (OWN_OPTIMIZER,)


def test_a_closure_ends_the_step_before_it(tmp_path: Path) -> None:
    """Every second optimizer step makes its passes itself, twice."""

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        def again() -> float:
            backward(model)
            return float(backward(model).detach())

        for at in range(5):
            if at % 2:
                backward(model)
                optimizer.step()
            else:
                optimizer.step(again)
            optimizer.zero_grad()

    assert [batches for batches, _, _ in shape(of(train, tmp_path))] == [2, 1, 2, 1, 2]


def test_the_gradients_of_a_closure_are_looked_at_after_it(tmp_path: Path) -> None:
    """Before the step there are none, which says nothing of the optimizer."""

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        def again() -> float:
            optimizer.zero_grad()
            return float(backward(model).detach())

        for _ in range(STEPS):
            optimizer.step(again)

    model = of(train, tmp_path).header.model
    assert model is not None
    assert [one.without_grad for one in model.optimizers] == [0]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_model_can_be_moved_between_steps(tmp_path: Path, by_hand: bool) -> None:
    """`model.to` swaps what parameters and gradients hold, and refuses that where a
    recorder refers to one of them.
    """

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(STEPS):
            backward(model)
            if by_hand:
                move(model, -0.1)
            else:
                optimizer.step()
            model.to("cpu")

    assert [batches for batches, _, _ in shape(of(train, tmp_path))] == [1] * STEPS


def test_a_model_can_be_moved_after_a_backward(tmp_path: Path) -> None:
    """Its gradients, too, before anything has stepped."""

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        backward(model)
        known = [*model.parameters(), *(p.grad for p in model.parameters())]
        assert [len(weakref.getweakrefs(one)) for one in known] == [0] * len(known)

    of(train, tmp_path)
