"""Trains each scenario twice, once counted by the test and once recorded, and writes
what both say: memory_job.py FOLDER SCENARIO...
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[3]))

import fsdpdoctor
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import BUCKETS, UNKNOWN, Bucket, Phase
from tests.recorder.memory.truth import Truth, counting, forget

STEPS = 2
COUNTED = 1


class Block(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, *, checkpointed: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("scale", torch.ones(width))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A residual block."""
        if self.checkpointed:
            out: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return out
        return self.inner(x)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        """The same, whole."""
        hidden = self.down(torch.relu(self.up(x)))
        out: torch.Tensor = x + hidden * self.scale
        return out


class Net(nn.Module):
    """An embedding, blocks of different widths of hidden layers, a head."""

    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(Block(16, checkpointed=checkpointed) for _ in "123")
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x)
        return out


def _sharded(net: Any, **kwargs: Any) -> Any:
    for layer in net.layers:
        fully_shard(layer, **kwargs)
    return fully_shard(net, **kwargs)


def _prefetching() -> list[Any]:
    net = _sharded(Net())
    layers = list(net.layers)
    for at, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[at + 1 : at + 3])
        layer.set_modules_to_backward_prefetch(layers[max(at - 2, 0) : at][::-1])
    return [net]


SCENARIOS: dict[str, tuple[Callable[[], list[Any]], int]] = {
    "reshard": (lambda: [_sharded(Net(), reshard_after_forward=True)], 1),
    "keep": (lambda: [_sharded(Net(), reshard_after_forward=False)], 1),
    "int": (lambda: [_sharded(Net(), reshard_after_forward=2)], 1),
    "two_roots": (lambda: [_sharded(Net()), _sharded(Net())], 1),
    "prefetch": (_prefetching, 1),
    "checkpoint": (lambda: [_sharded(Net(checkpointed=True))], 1),
    "accumulation": (lambda: [_sharded(Net())], 3),
}
"""A model's roots, and the step's micro-batches."""


def train(name: str, truth: Truth | None) -> list[float]:
    """The losses of a few steps."""
    make, micro_batches = SCENARIOS[name]
    torch.manual_seed(0)
    nets = make()
    params = [p for net in nets for p in net.parameters()]
    optimizer = torch.optim.AdamW(params)
    tokens = torch.randint(0, 50, (4, 8))
    losses = []
    for step in range(STEPS):
        for at in range(micro_batches):
            for net in nets:
                net.set_requires_gradient_sync(at == micro_batches - 1)
            if truth is not None and step == COUNTED and at == 0:
                truth.begin()
            logits = [net(tokens).flatten(0, 1) for net in nets]
            loss: Any = nn.functional.cross_entropy(sum(logits), tokens.flatten())
            del logits
            loss.backward()
            losses.append(loss.item())
            del loss
        optimizer.step()
        if truth is not None:
            truth.counting = False
        optimizer.zero_grad()
    return losses


def said(folder: Path) -> dict[str, Any]:
    """What the recorder says, in the truth's words."""
    header = open_run(folder).sources[dist.get_rank()].load().header
    memory = header.memory
    if memory is None or memory.refused is not None:
        return {"why": [memory and memory.refused, *header.warnings]}

    def name(unit: int) -> str:
        return "" if unit == UNKNOWN else header.units[unit].fqn

    most = {}
    for unit in memory.units:
        for phase in ("forward", "backward"):
            size = getattr(unit, f"{phase}_peak_bytes")
            if size != UNKNOWN:
                most[f"{name(unit.unit)} {phase}"] = size
    gathered = BUCKETS.index(Bucket.GATHERED_PARAMETERS)
    return {
        "step": memory.step,
        "peak": [
            memory.peak_bytes,
            name(memory.peak_unit),
            Phase(memory.peak_phase).key,
        ],
        "parts": sum(share.bytes for share in memory.peak),
        "most": most,
        "activations": {
            name(u.unit): u.activation_bytes
            for u in memory.units
            if u.activation_bytes != UNKNOWN
        },
        "gathered_most": max(m.bytes[gathered] for m in memory.moments),
        "warnings": list(header.warnings),
        "buckets": sorted(
            {BUCKETS[at] for m in memory.moments for at, n in enumerate(m.bytes) if n}
        ),
    }


def both(name: str, folder: Path) -> dict[str, Any]:
    """What the test counts, and what the recorder says."""
    plain = train(name, None)
    gc.collect()
    with counting() as truth:
        train(name, truth)
        answer = truth.answer()
    forget()
    gc.collect()
    with fsdpdoctor.record(folder / name):
        recorded = train(name, None)
    gc.collect()
    return {"truth": answer, "said": said(folder / name), "same": plain == recorded}


def main() -> None:
    """Write what came of each scenario, for this rank."""
    torch.set_num_threads(1)
    gc.disable()  # what it frees, and when, is chance
    folder, *names = sys.argv[1:]
    if "RANK" not in os.environ:  # of four that are not there
        dist.init_process_group("fake", rank=0, world_size=4)
    else:
        dist.init_process_group("gloo")
    results = {name: both(name, Path(folder)) for name in names}
    out = Path(folder) / f"memory.{dist.get_rank()}.json"
    out.write_text(json.dumps(results))
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
