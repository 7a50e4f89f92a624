"""Optimizers that step in turn are waited for, others are not."""

from __future__ import annotations

import torch
from torch import nn

from fsdpdoctor.recorder.steps.optimizer_turns import PATIENCE, OptimizerTurns


def optimizer() -> torch.optim.Optimizer:
    """One over a parameter of its own."""
    return torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)


def stepped(turns: OptimizerTurns, optimizer: torch.optim.Optimizer) -> None:
    """One has its turn."""
    turns.steps(optimizer)
    turns.ended()


def test_waits_for_the_other_of_two() -> None:
    """Until both have stepped."""
    turns, one, other = OptimizerTurns(), optimizer(), optimizer()
    turns.made(one)
    turns.made(other)

    stepped(turns, one)
    assert turns.others_may_follow()
    stepped(turns, other)
    assert not turns.others_may_follow()
    assert turns.begins_anew(one)
    turns.step_ended()
    assert not turns.begins_anew(one)


def test_gives_up_on_one_that_does_not_step() -> None:
    """After a few steps; one step of its own, and it is waited for again."""
    turns, one, other = OptimizerTurns(), optimizer(), optimizer()
    turns.made(other)
    waited = []
    for _ in range(PATIENCE + 1):
        stepped(turns, one)
        waited.append(turns.others_may_follow())
        turns.step_ended()
    assert waited == [True] * PATIENCE + [False]

    stepped(turns, other)
    turns.step_ended()
    stepped(turns, one)
    assert turns.others_may_follow()


def test_one_that_is_gone_or_came_late_is_not_waited_for() -> None:
    """The next training's optimizer has no turn in the last one's step."""
    turns, one, gone = OptimizerTurns(), optimizer(), optimizer()
    turns.made(gone)
    stepped(turns, one)
    del gone
    late = optimizer()
    turns.made(late)

    assert not turns.others_may_follow()
    assert turns.begins_anew(late)
    turns.step_ended()
    assert not turns.begins_anew(late)
    stepped(turns, one)
    assert turns.others_may_follow()


def test_a_step_that_ends_within_a_closure_is_the_one_before() -> None:
    """The optimizer that calls the closure has its turn in the next."""
    turns, one = OptimizerTurns(), optimizer()
    stepped(turns, one)

    turns.steps(one)
    turns.step_ended()
    turns.ended()
    assert turns.begins_anew(one)
    assert not turns.others_may_follow()

    turns.step_ended()
    assert not turns.begins_anew(one)


def test_a_part_of_another_s_step_ends_with_that() -> None:
    """The inner one's turn begins anew with the step, the outer one's does not."""
    turns, outer, inner = OptimizerTurns(), optimizer(), optimizer()
    turns.steps(outer)
    turns.steps(inner, inner=True)
    turns.step_ended()

    assert turns.begins_anew(outer)
    assert not turns.begins_anew(inner)
