"""Optimizers that look at whole matrices: optimizers.py WAY (2 ranks)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from tests.rig.scripts.decoder import Decoder, begin, own_data, say, sharded, step


def whole_by_redistribute(p: Any) -> torch.Tensor:
    """As DTensor has it."""
    whole: torch.Tensor = p.grad.redistribute(placements=[Replicate()]).to_local()
    return whole


def whole_by_hand(p: Any) -> torch.Tensor:
    """Gathered by the optimizer itself."""
    local = p.grad.to_local()
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local)
    return torch.cat(parts)


def whole_by_functional(p: Any) -> torch.Tensor:
    """The same, by a functional collective."""
    local = p.grad.to_local()
    whole: torch.Tensor = funcol.all_gather_tensor(local, 0, dist.group.WORLD)
    return funcol.wait_tensor(whole) if hasattr(funcol, "wait_tensor") else whole


class Whitened(torch.optim.Optimizer):
    """Each matrix by its own second moment, on every rank."""

    def __init__(self, params: Any, whole: Callable[[Any], torch.Tensor]) -> None:
        super().__init__(params, {"lr": 1e-3})
        self.whole = whole

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Gather, precondition, keep the own rows."""
        for group in self.param_groups:
            for p in group["params"]:
                gradient = self.whole(p)
                left = gradient @ gradient.T + torch.eye(gradient.shape[0])
                update = torch.linalg.solve(left, gradient)
                update = distribute_tensor(
                    update, p.device_mesh, p.placements, src_data_rank=None
                )
                p.sub_(update, alpha=group["lr"])


class Lamb(torch.optim.Optimizer):
    """Each parameter by its own trust ratio: two numbers, each of all ranks."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """A norm of weights and one of gradients, then a step."""
        for group in self.param_groups:
            for p in group["params"]:
                weight, gradient = p.norm(), p.grad.norm()
                if isinstance(p, DTensor):
                    weight, gradient = weight.full_tensor(), gradient.full_tensor()
                ratio = float(weight / (gradient + 1e-6))
                p.sub_(p.grad, alpha=group["lr"] * min(ratio, 10.0))


class LambAtOnce(Lamb):
    """All squares in one tensor, one reduction."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """As above."""
        ps = [p for group in self.param_groups for p in group["params"]]
        squares = torch.stack(
            [t.to_local().square().sum() for p in ps for t in (p, p.grad)]
        )
        dist.all_reduce(squares)
        for p, (weight, gradient) in zip(ps, squares.sqrt().view(-1, 2), strict=True):
            p.sub_(p.grad, alpha=1e-3 * min(float(weight / (gradient + 1e-6)), 10.0))


def made(way: str, model: Decoder) -> list[torch.optim.Optimizer]:
    """By name."""
    if way == "lamb":
        return [Lamb(model.parameters())]
    if way == "lamb-at-once":
        return [LambAtOnce(model.parameters())]
    whole = {
        "redistribute": whole_by_redistribute,
        "by-hand": whole_by_hand,
        "functional": whole_by_functional,
    }[way]
    chosen = [p for p in model.blocks.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if all(p is not c for c in chosen)]
    return [Whitened(chosen, whole), torch.optim.AdamW(rest, lr=1e-3)]


begin()
model = sharded(Decoder())
optimizers = made(sys.argv[1], model)
own_data()
for at in range(8):
    say(at, step(model, optimizers))
dist.destroy_process_group()
