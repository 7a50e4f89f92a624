"""Modules whose forwards run, from within them."""

from __future__ import annotations

import torch
from torch import nn

from fsdpdoctor.recorder.forward_frames import forwards_running, outermost_module


class Inner(nn.Module):
    """Says what runs around it."""

    def forward(self, x: torch.Tensor, *, again: bool = False) -> torch.Tensor:
        """Perhaps within itself."""
        if again:
            result: torch.Tensor = self(x)
            return result
        self.seen = (outermost_module(), forwards_running(self))
        return x


def test_a_module_in_another() -> None:
    """The other one is the outermost; each runs once."""
    inner = Inner()
    outer = nn.Sequential(inner)
    outer(torch.ones(1))

    assert inner.seen == (outer, 1)
    assert outermost_module() is None
    assert forwards_running(inner) == 0


def test_a_module_that_calls_itself_runs_twice() -> None:
    """And is the outermost of both."""
    inner = Inner()
    inner(torch.ones(1), again=True)

    assert inner.seen == (inner, 2)
