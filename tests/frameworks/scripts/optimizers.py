"""Optimizers around optimizers, weights that move in a step: optimizers.py WAY."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.rig.scripts.decoder import (
    Decoder,
    begin,
    loss_of,
    own_data,
    said,
    sharded,
    tokens_of,
)

STEPS = 8


class Sharpened(torch.optim.Optimizer):
    """Climbs a little, and descends with the gradient from there."""

    def __init__(self, params: Any, base: Callable[..., Any], **given: Any) -> None:
        super().__init__(params, {"rho": 1e-3, **given})
        self.base = base(self.param_groups, **given)
        self.moves: list[torch.Tensor] = []

    @torch.no_grad()
    def climb(self) -> None:
        """Up, and no gradients."""
        self.moves = []
        for p in self.param_groups[0]["params"]:
            self.moves.append(p.grad * self.param_groups[0]["rho"])
            p.add_(self.moves[-1])
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        """Back, and a step of the inner optimizer."""
        for p, move in zip(self.param_groups[0]["params"], self.moves, strict=True):
            p.sub_(move)
        self.base.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Both, with a pass between."""
        self.climb()
        with torch.enable_grad():
            closure()
        self.descend()


class Slowed:
    """Every third step, weights go half the way back. No optimizer of torch's."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.count = 0
        self.slow = [p.detach().clone() for p in self._params()]

    def _params(self) -> list[Any]:
        return list(self.inner.param_groups[0]["params"])

    @torch.no_grad()
    def step(self) -> None:
        """The inner one's, and after three of them its own."""
        self.inner.step()
        self.count += 1
        if self.count % 3 == 0:
            for slow, p in zip(self.slow, self._params(), strict=True):
                slow.lerp_(p, 0.5)
                p.copy_(slow)


class Searching(torch.optim.SGD):
    """Asks for the loss three times before it steps."""

    def step(self, closure: Any = None) -> Any:
        """As SGD, from the last of them."""
        for _ in range(3):
            with torch.enable_grad():
                loss = closure()
        super().step()
        return loss


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """What most people take."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def in_two_phases() -> None:
    """The script calls both, and `step` never."""
    model = sharded(Decoder())
    optimizer = Sharpened(model.parameters(), torch.optim.SGD, lr=1e-2)
    own_data()
    for at in range(STEPS):
        tokens = tokens_of()
        loss_of(model, tokens).backward()
        optimizer.climb()
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.descend()
        said(at, loss)


def with_closure() -> None:
    """A pass before `step`, and one in it."""
    model = sharded(Decoder())
    optimizer = Sharpened(model.parameters(), torch.optim.SGD, lr=1e-2)
    own_data()
    for at in range(STEPS):
        tokens = tokens_of()
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step(lambda tokens=tokens: loss_of(model, tokens).backward())
        said(at, loss)


def slowed() -> None:
    """Around another optimizer."""
    model = sharded(Decoder())
    optimizer = Slowed(adamw(model))
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        optimizer.step()
        optimizer.inner.zero_grad()
        said(at, loss)


def closures(make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """All passes are the optimizer's."""
    model = sharded(Decoder(layers=2))
    optimizer = make(model)
    own_data()
    for at in range(STEPS):
        tokens = tokens_of()

        def again(tokens: torch.Tensor = tokens) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, tokens)
            loss.backward()
            return loss

        loss: Any = optimizer.step(again)
        said(at, loss)


def scaled() -> None:
    """The first and the fourth loss overflow: their steps are left out."""
    model = sharded(Decoder())
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        scaler.scale(loss * (float("inf") if at in (0, 3) else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        said(at, loss)


def attacked() -> None:
    """Weights move three times before the gradients that are meant."""
    model = sharded(Decoder())
    optimizer = adamw(model)
    own_data()
    for at in range(STEPS):
        tokens = tokens_of(2)
        kept = [p.detach().clone() for p in model.parameters()]
        for _ in range(3):
            loss_of(model, tokens).backward()
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p.add_(p.grad, alpha=1e-3)
            optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        with torch.no_grad():
            for p, was in zip(model.parameters(), kept, strict=True):
                p.copy_(was)
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def clipped_each() -> None:
    """Gradients are clipped after every one of four micro-batches."""
    model = sharded(Decoder())
    optimizer = adamw(model)
    own_data()
    for at in range(STEPS):
        for _ in range(4):
            loss = loss_of(model, tokens_of(2)) / 4
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def twice() -> None:
    """Two half steps along the same gradients."""
    model = sharded(Decoder())
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-3)
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        optimizer.step()
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def only_scheduled() -> None:
    """Torch's optimizer is there for its schedule; weights are moved by hand."""
    model = sharded(Decoder())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        pace = optimizer.param_groups[0]["lr"]
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.sub_(p.grad, alpha=pace)
                p.grad = None
        optimizer.param_groups[0]["lr"] = pace * 0.9
        said(at, loss)


def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    """Two evaluations a step."""
    return torch.optim.LBFGS(model.parameters(), lr=1e-2, max_iter=2, max_eval=2)


def searching(model: nn.Module) -> torch.optim.Optimizer:
    """Three."""
    return Searching(model.parameters(), lr=1e-2)


WAYS: dict[str, Callable[[], None]] = {
    "in-two-phases": in_two_phases,
    "with-closure": with_closure,
    "slowed": slowed,
    "searching": lambda: closures(searching),
    "lbfgs": lambda: closures(lbfgs),
    "scaled": scaled,
    "attacked": attacked,
    "clipped-each": clipped_each,
    "twice": twice,
    "only-scheduled": only_scheduled,
}

if __name__ == "__main__":
    begin()
    WAYS[sys.argv[1]]()
    dist.destroy_process_group()
