"""Gradients that were used are told from those that accumulate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fsdpdoctor.recorder.steps.gradients_used import GradientsUsed


def backward(model: nn.Module) -> None:
    """Forward and backward."""
    model(torch.ones(1, 2)).sum().backward()


def by_hand(model: nn.Module) -> None:
    """Only the parameters say that it happened."""
    with torch.no_grad():
        for param in model.parameters():
            assert param.grad is not None
            param.sub_(param.grad)


def dropped(model: nn.Module) -> None:
    """As `zero_grad()` does."""
    model.zero_grad()


def dropped_and_added_to(model: nn.Module) -> None:
    """Seen after the next backward only."""
    model.zero_grad()
    backward(model)


@pytest.mark.parametrize("use", [by_hand, dropped, dropped_and_added_to])
def test_used(use: Callable[[nn.Module], None]) -> None:
    """They are gone, others, or have changed their parameters."""
    model, gradients = nn.Linear(2, 2), GradientsUsed()
    backward(model)
    gradients.remember(model.parameters())
    assert not gradients.used(model.parameters())
    use(model)
    assert gradients.used(model.parameters())
    gradients.forget()
    assert not gradients.used(model.parameters())


def test_added_to() -> None:
    """A second micro-batch uses nothing."""
    model, gradients = nn.Linear(2, 2), GradientsUsed()
    backward(model)
    gradients.remember(model.parameters())
    backward(model)

    assert not gradients.used(model.parameters())


def test_no_gradient_says_nothing() -> None:
    """Before the first backward, or of frozen parameters."""
    model, gradients = nn.Linear(2, 2).requires_grad_(False), GradientsUsed()
    gradients.remember(model.parameters())

    assert not gradients.used(model.parameters())
