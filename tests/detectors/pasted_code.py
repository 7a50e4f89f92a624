"""Code of advice, pasted beside a model that FSDP2 shards, and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import new_group
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard


class Small(nn.Module):
    """Embedding, three layers and a head, with a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.lm_head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.lm_head(x)
        return logits

    def generate(self, tokens: torch.Tensor) -> torch.Tensor:
        """What a user calls instead of forward."""
        return self.forward(tokens)


def sharded(code: str = "") -> Any:
    """The model as the drawn units have it, those that the code names."""
    model = Small()
    if '"embed"' in code:
        fully_shard(model.embed)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def log_twice(log_loss: Callable[..., None]) -> None:
    """A loss of 2 in each of two steps, read in the second: the total is new again."""
    total = torch.zeros(())
    for step in range(2):
        log_loss(total, torch.tensor(2.0), step, every=2)
    assert total.item() == 0


def after(name: str, given: Any, model: Any) -> None:
    """Do what the code's own words say to do with what it defines."""
    blocks = list(model.layers)
    if name == "sync_on_last":
        given(model, 0, 1)
    elif name == "compile_blocks":
        given(blocks)
        assert all(block._compiled_call_impl is not None for block in blocks)
    elif name == "clip":
        given(model, 1.0)
    elif name == "collect_together":
        given(0)
    elif name == "log_loss":
        log_twice(given)
    elif name == "faster_loader":
        assert given([1, 2, 3], batch_size=2).prefetch_factor == 4
    elif name == "shard_where_even":
        fully_shard(Small(), shard_placement_fn=given)
    elif name == "policy":
        fully_shard(Small(), mp_policy=given)
    elif name == "mesh":
        fully_shard(Small(), mesh=given)
    elif name == "offload":
        assert given == CPUOffloadPolicy(pin_memory=True)  # pinning takes a device
    elif name == "optimizer":
        assert len(given.param_groups[0]["params"]) == len(list(model.parameters()))
    elif name == "gathered":
        with given(model), torch.no_grad():
            model(torch.zeros(4, dtype=torch.long))
            model(torch.zeros(4, dtype=torch.long))


def _group_of_the_job_s_backend(*given: Any, backend: Any = None, **more: Any) -> Any:
    """One of gloo would look for the other ranks, which are not there."""
    return new_group(*given, **more)


def run(code: str) -> None:
    """Paste, do as it says, then train one step.

    What shards by itself is given a plain model, all other code a sharded one.
    """
    model: Any = Small() if "import fully_shard" in code else sharded(code)
    optimizer = torch.optim.AdamW(model.parameters())
    scope = {"model": model, "optimizer": optimizer, "skip": False}
    if "mesh[" in code:
        names = ("dp_shard", "cp")
        scope["mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    if "reset_iter_state" in code:  # after an iteration
        model(torch.zeros(4, dtype=torch.long)).sum().backward()
    groups = patch.object(dist, "new_group", _group_of_the_job_s_backend)
    with torch.compiler.set_stance("force_eager"), groups:
        exec(compile(code, "<advice>", "exec"), scope)
        for name, given in scope.items():
            after(name, given, model)
        if not isinstance(model, FSDPModule):
            fully_shard(model)
        # One dimension: FSDP2 warns where a module returns a view, as of three.
        model(torch.zeros(4, dtype=torch.long)).sum().backward()
