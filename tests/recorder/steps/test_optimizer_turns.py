"""Optimizers that step in turn are waited for, others are not."""

from __future__ import annotations

import torch
from torch import nn

from fsdpdoctor.recorder.steps.optimizer_turns import PATIENCE, OptimizerTurns


def optimizer() -> torch.optim.Optimizer:
    """One over a parameter of its own."""
    return torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)


def test_waits_for_the_other_of_two() -> None:
    """Until both have stepped."""
    turns, one, other = OptimizerTurns(), optimizer(), optimizer()
    turns.made(one)
    turns.made(other)

    turns.steps(one)
    assert turns.others_may_follow()
    turns.steps(other)
    assert not turns.others_may_follow()
    assert turns.had_turn(one)
    turns.step_ended()
    assert not turns.had_turn(one)


def test_gives_up_on_one_that_does_not_step() -> None:
    """After a few steps; one step of its own, and it is waited for again."""
    turns, one, other = OptimizerTurns(), optimizer(), optimizer()
    turns.made(other)
    waited = []
    for _ in range(PATIENCE + 1):
        turns.steps(one)
        waited.append(turns.others_may_follow())
        turns.step_ended()
    assert waited == [True] * PATIENCE + [False]

    turns.steps(other)
    turns.step_ended()
    turns.steps(one)
    assert turns.others_may_follow()


def test_one_that_is_gone_or_came_late_is_not_waited_for() -> None:
    """The next training's optimizer has no turn in the last one's step."""
    turns, one, gone = OptimizerTurns(), optimizer(), optimizer()
    turns.made(gone)
    turns.steps(one)
    del gone
    late = optimizer()
    turns.made(late)

    assert not turns.others_may_follow()
    turns.step_ended()
    turns.steps(one)
    assert turns.others_may_follow()
