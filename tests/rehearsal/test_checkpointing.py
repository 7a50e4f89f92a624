"""Checkpointing in the script's place comes to what the script's own would."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.rehearsal.checkpointing import checkpointing
from tests.rig.virtual_device import Job, Net, launched, rehearsed

JOB = Job(width=256, blocks=3, vocabulary=512, length=64)


def wrapped(layer: nn.Module) -> nn.Module:
    """Checkpointed by a wrapper of the script's."""
    return checkpoint_wrapper(layer, preserve_rng_state=False)


def called(layer: nn.Module) -> nn.Module:
    """Checkpointed by a call in its own forward."""
    forward = layer.forward

    def again(x: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(
            forward, x, use_reentrant=False, preserve_rng_state=False
        )

    layer.forward = again
    return layer


def kernels(
    change: Callable[[nn.Module], nn.Module], around: AbstractContextManager[None]
) -> list[tuple[str, int]]:
    """What a pass launches, with a head of its own unit."""
    with rehearsed(JOB) as log, around:
        dist.init_process_group("nccl")
        model: Any = Net(JOB).to("cuda")
        for i, layer in enumerate(model.layers):
            model.layers[i] = fully_shard(change(layer))
        fully_shard(model.head)
        fully_shard(model)
        tokens = torch.zeros(2, 64, dtype=torch.int64, device="cuda")
        since = len(log.device.kernels)
        model(tokens).sum().backward()
        return launched(log, since)


def plain(layer: nn.Module) -> nn.Module:
    """Nothing is computed again."""
    return layer


PLAIN = kernels(plain, nullcontext())


@pytest.mark.parametrize("script", [plain, wrapped, called])
def test_on_computes_each_block_again_and_nothing_else(
    script: Callable[[nn.Module], nn.Module],
) -> None:
    """Whatever the script itself has: a block's first product of two, whose result the
    second's backward needs; and no head.
    """
    again = kernels(script, checkpointing(True))
    products = [name for name, _ in again if name.startswith("aten.addmm")]
    once = [name for name, _ in PLAIN if name.startswith("aten.addmm")]
    assert (len(once), len(products)) == (6, 9)
    assert sorted(again) == sorted(kernels(wrapped, nullcontext()))


@pytest.mark.parametrize("script", [wrapped, called])
def test_off_lets_the_scripts_own_run_through(
    script: Callable[[nn.Module], nn.Module],
) -> None:
    """Kernel by kernel what a script without checkpoints launches."""
    assert kernels(script, nullcontext()) != PLAIN
    assert kernels(script, checkpointing(False)) == PLAIN


def test_everything_is_as_it_was_afterwards() -> None:
    """The functions of torch are its own again."""
    before = (torch.utils.checkpoint.checkpoint, torch.distributed.fsdp.fully_shard)
    with checkpointing(True):
        assert torch.utils.checkpoint.checkpoint is not before[0]
    after = (torch.utils.checkpoint.checkpoint, torch.distributed.fsdp.fully_shard)
    assert after == before
