"""Activation checkpointing in the script's place: every repeated unit, or nothing.

A rehearsal can try it without a word in the script. `off` lets the script's own calls
run through; `on` does that, too, and then checkpoints each unit whose class is that of
another unit: blocks, but neither an embedding nor a head, whose logits nobody computes
twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed.fsdp
import torch.utils.checkpoint
from torch import nn
from torch.distributed._composable import checkpoint_activation
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
)

from fsdpdoctor.recorder.patching import Patches

_OF_CHECKPOINT = (
    *("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check"),
    *("debug", "early_stop"),
)
"""Arguments of `torch.utils.checkpoint.checkpoint` that are not the function's."""


checkpoint_module: Any = checkpoint_activation.checkpoint


@contextmanager
def checkpointing(on: bool) -> Iterator[None]:
    """While it is open, the script's units are checkpointed, or nothing is."""
    patches = Patches()
    _let_through(patches)
    if on:
        _checkpoint_blocks(patches)
    try:
        yield
    finally:
        patches.undo()


def _everywhere(patches: Patches, original: Any, replacement: Any) -> None:
    """In every loaded module that knows the function by its own name."""
    name = original.__name__
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            patches.put(module, name, replacement)


def _let_through(patches: Patches) -> None:
    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        own = {k: v for k, v in kwargs.items() if k not in _OF_CHECKPOINT}
        return function(*args, **own)

    def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper._checkpoint_wrapped_module(*args, **kwargs)

    def composable(module: nn.Module, **_kwargs: Any) -> nn.Module:
        return module

    composable.__dict__.update(checkpoint_module.__dict__)  # its hooks ask for `.state`
    _everywhere(patches, torch.utils.checkpoint.checkpoint, checkpoint)
    _everywhere(patches, checkpoint_module, composable)
    patches.put(CheckpointWrapper, "forward", forward)


def _checkpoint_blocks(patches: Patches) -> None:
    shard: Callable[..., Any] = torch.distributed.fsdp.fully_shard
    first: dict[type, nn.Module | None] = {}  # None: there were several

    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        parts = module if isinstance(module, list | tuple) else (module,)
        for part in parts:
            kind = type(_inside(part))
            if kind not in first:
                first[kind] = part
                continue
            if (other := first[kind]) is not None:
                checkpoint_module(other)
                first[kind] = None
            checkpoint_module(part)
        return shard(module, *args, **kwargs)

    fully_shard.__dict__.update(shard.__dict__)  # `.state`: torch asks for it
    _everywhere(patches, shard, fully_shard)


def _inside(module: nn.Module) -> nn.Module:
    """What a compiled or a wrapped module is of."""
    for name in ("_checkpoint_wrapped_module", "_orig_mod"):
        inner = getattr(module, name, None)
        if isinstance(inner, nn.Module):
            return _inside(inner)
    return module
