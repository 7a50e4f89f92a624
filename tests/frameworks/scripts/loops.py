"""Training loops as people write them, over one small decoder: loops.py WAY."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
)
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """What most people take."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def plain(model: Decoder, after: Callable[[int], object] = lambda at: None) -> None:
    """One batch a step, and something after it."""
    optimizer = adamw(model)
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)
        after(at)


def accumulating(model: Decoder, settle: Callable[[int], object], count: int) -> None:
    """Several batches a step, and something before each."""
    optimizer = adamw(model)
    own_data()
    for at in range(STEPS):
        for micro in range(count):
            settle(micro)
            loss = loss_of(model, tokens_of(2)) / count
            loss.backward()
            said(at, loss)
        optimizer.step()
        optimizer.zero_grad()


def clipped() -> None:
    """Zeroed first, clipped, with a schedule, its norm read."""
    model = sharded(Decoder())
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    own_data()
    for at in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, tokens_of())
        loss.backward()
        norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        said(at, loss)
        print("norm", repr(norm.full_tensor().item()), flush=True)


def epochs() -> None:
    """Two epochs of a loader with a sampler, the last batch short."""
    model = sharded(Decoder())
    optimizer = adamw(model)
    rows = TensorDataset(torch.randint(0, 256, (30, 49)))
    sampler: Any = DistributedSampler(rows, shuffle=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for at, (tokens,) in enumerate(DataLoader(rows, 4, sampler=sampler)):
            loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said(at, loss)


def evaluated(every: int) -> None:
    """A held-out loss of two batches, without gradients, every few steps."""
    model = sharded(Decoder())

    def evaluate(at: int) -> None:
        if at % every:
            return
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                said(at, loss_of(model, tokens_of(2)))
        model.train()

    plain(model, evaluate)


def saved() -> None:
    """Distributed checkpoints, one of them read again."""
    model = sharded(Decoder())
    folder = Path(tempfile.gettempdir()) / f"frames-{dist.get_world_size()}"
    optimizer = adamw(model)

    def save(at: int) -> None:
        if at % 3 == 2:
            state, _ = get_state_dict(model, optimizer)
            dcp.save({"model": state}, checkpoint_id=folder / str(at))
            dcp.load({"model": state}, checkpoint_id=folder / str(at))

    plain(model, save)


def exported() -> None:
    """The whole model on the first rank, once in a while."""
    model = sharded(Decoder())
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)

    def export(at: int) -> None:
        if at % 4 == 3:
            print(at, len(get_model_state_dict(model, options=options)), flush=True)

    plain(model, export)


def averaged() -> None:
    """A moving average of each rank's shards."""
    model = sharded(Decoder())
    mean = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(at: int) -> None:
        for kept, p in zip(mean, model.parameters(), strict=True):
            kept.lerp_(p, 0.1)

    plain(model, update)


def autocast() -> None:
    """The forward under autocast."""
    model = sharded(Decoder())
    optimizer = adamw(model)
    own_data()
    for at in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, tokens_of())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def closure() -> None:
    """An optimizer that calls forward and backward itself."""
    model = sharded(Decoder(layers=2))
    sgd = torch.optim.SGD(model.parameters(), lr=1e-2)
    own_data()
    for at in range(STEPS):
        tokens = tokens_of()

        def again(tokens: torch.Tensor = tokens) -> torch.Tensor:
            sgd.zero_grad()
            loss = loss_of(model, tokens)
            loss.backward()
            return loss

        loss: Any = sgd.step(again)
        said(at, loss)


def in_backward() -> None:
    """Each parameter's own optimizer steps as its gradient is there."""
    model = sharded(Decoder())
    optimizers = {p: torch.optim.SGD([p], lr=1e-2) for p in model.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        said(at, loss)


def by_hand() -> None:
    """No optimizer of torch's: a loop over parameters."""
    model = sharded(Decoder())
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=1e-2)
                p.grad = None
        said(at, loss)


def skipping() -> None:
    """All ranks drop the third step's update: no optimizer step in it."""
    model = sharded(Decoder())
    optimizer = adamw(model)
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        if at != 2:
            optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def keeping(model: Decoder, micro: int) -> None:
    """Reduced on the last, and parameters kept until then."""
    model.set_requires_gradient_sync(micro == 3)
    model.set_reshard_after_backward(micro == 3)


def bf16() -> MixedPrecisionPolicy:
    """Computed in bfloat16, reduced in float32."""
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def chained(model: Decoder) -> Decoder:
    """Explicit prefetch, one ahead."""
    blocks: list[Any] = list(model.blocks)
    for one, following in itertools.pairwise(blocks):
        one.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([one])
    model._set_unshard_async_op(True)
    return model


def early(model: Any) -> None:
    """The first gather before the batch is there."""
    optimizer = adamw(model)
    own_data()
    for at in range(STEPS):
        model.unshard()
        loss = loss_of(model, tokens_of())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def sync_on_last(model: Any) -> Callable[[int], object]:
    """`no_sync`, as FSDP2 has it."""
    return lambda micro: model.set_requires_gradient_sync(micro == 2)


def accumulate_keep() -> None:
    """Four micro-batches, one gather."""
    model = sharded(Decoder())
    accumulating(model, lambda micro: keeping(model, micro), 4)


def accumulate_last() -> None:
    """Three micro-batches, one reduction."""
    model = sharded(Decoder())
    accumulating(model, sync_on_last(model), 3)


WAYS: dict[str, Callable[[], None]] = {
    "raw": lambda: plain(sharded(Decoder())),
    "kept": lambda: plain(sharded(Decoder(), reshard_after_forward=False)),
    "parts": lambda: plain(sharded(Decoder(), reshard_after_forward=2)),
    "bf16": lambda: plain(sharded(Decoder(), mp_policy=bf16())),
    "offload": lambda: plain(
        sharded(Decoder(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    ),
    "prefetch": lambda: plain(chained(sharded(Decoder()))),
    "early": lambda: early(sharded(Decoder())),
    "accumulate": lambda: accumulating(sharded(Decoder()), lambda micro: None, 2),
    "accumulate-last": accumulate_last,
    "accumulate-keep": accumulate_keep,
    "clipped": clipped,
    "epochs": epochs,
    "evaluated": lambda: evaluated(1),
    "evaluated-seldom": lambda: evaluated(3),
    "saved": saved,
    "exported": exported,
    "averaged": averaged,
    "autocast": autocast,
    "closure": closure,
    "in-backward": in_backward,
    "by-hand": by_hand,
    "skipping": skipping,
}

if __name__ == "__main__":
    begin()
    WAYS[sys.argv[1]]()
    dist.destroy_process_group()
