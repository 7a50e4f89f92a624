"""Trainings that must give the same bits with a recorder as without."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
)

from tests.recorder.small_model import (
    Model,
    sharded,
    train,
)


def _bf16() -> Any:
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    return sharded(mp_policy=policy)


def _checkpointed(reentrant: bool) -> Any:
    torch.manual_seed(0)
    return sharded(Model(reentrant=reentrant))


IDENTICAL: dict[str, tuple[Callable[[], Any], int]] = {
    "fp32": (sharded, 1),
    "bf16": (_bf16, 1),
    "accumulation": (sharded, 3),
    "checkpoint": (functools.partial(_checkpointed, False), 1),
    "reentrant": (functools.partial(_checkpointed, True), 2),
}
"""Trainings that must give the same bits: a model, and its micro-batches."""


def _trained(make: Callable[[], Any], micro_batches: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = make()
    losses = train(model, steps=14, micro_batches=micro_batches)
    params = [p.full_tensor() for p in model.parameters()]
    return [torch.tensor(losses, dtype=torch.float64), *params]


def compare_all(folder: str) -> None:
    """Train each with and without a recorder; write which gave the same bits."""
    import json
    from pathlib import Path

    import fsdpdoctor

    same = {}
    for name, (make, micro_batches) in IDENTICAL.items():
        plain = _trained(make, micro_batches)
        with fsdpdoctor.record(Path(folder) / name):
            recorded = _trained(make, micro_batches)
        same[name] = all(map(torch.equal, plain, recorded))
    if dist.get_rank() == 0:
        (Path(folder) / "same.json").write_text(json.dumps(same))
