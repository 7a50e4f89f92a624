"""MPT models under FSDP1, trained as llm-foundry's benchmarks of 2023 did.

What ran is public: llm-foundry v0.4, Composer v0.16.4, torch 2.1, flash attention. So:
blocks, the tied embedding, positions and the last norm are FSDP1 units each; linear
layers have biases; attention removes padding (a copy of queries, keys and values, and
the host waits for the lengths, three times) and puts it back; the loss is one kernel;
two metrics read the logits again, in fp32, in each micro-batch; the optimizer is a loop
over parameters that reads its step from the device.
"""

# ruff: noqa: D102
# mypy: ignore-errors

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One model."""

    width: int
    heads: int
    layers: int
    vocabulary: int
    length: int


class TakeRows(torch.autograd.Function):
    """flash-attn's `index_first_axis`."""

    @staticmethod
    def forward(ctx, rows, places):
        ctx.save_for_backward(places)
        ctx.count = rows.shape[0]
        return torch.gather(rows, 0, places[:, None].expand(-1, rows.shape[1]))

    @staticmethod
    def backward(ctx, grad):
        (places,) = ctx.saved_tensors
        out = torch.zeros(
            (ctx.count, grad.shape[1]), device=grad.device, dtype=grad.dtype
        )
        out.scatter_(0, places[:, None].expand(-1, grad.shape[1]), grad)
        return out, None


class PutRows(torch.autograd.Function):
    """flash-attn's `index_put_first_axis`."""

    @staticmethod
    def forward(ctx, rows, places, count):
        ctx.save_for_backward(places)
        out = torch.zeros((count, rows.shape[1]), device=rows.device, dtype=rows.dtype)
        return out.index_copy_(0, places, rows)

    @staticmethod
    def backward(ctx, grad):
        (places,) = ctx.saved_tensors
        return torch.index_select(grad, 0, places), None, None


class OneKernelLoss(torch.autograd.Function):
    """flash-attn's cross entropy: reads the logits, and in backward once again."""

    @staticmethod
    def forward(ctx, logits, targets):
        ctx.save_for_backward(logits)
        return logits.amax(-1).float().mean()

    @staticmethod
    def backward(ctx, grad):
        (logits,) = ctx.saved_tensors
        return logits * 1.0, None


class Attention(nn.Module):
    """One product for queries, keys and values; flash attention without padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (self._unpadded(part, mask) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        rows = out.transpose(1, 2).reshape(batch * length, width)
        places = torch.arange(batch * length, device=x.device)
        padded = PutRows.apply(rows, places, batch * length)
        return self.out(padded.view(batch, length, width))

    def _unpadded(self, part: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The host waits for how many rows there are, and for the longest."""
        batch, length, width = part.shape
        lengths = mask.sum(-1, dtype=torch.int32)
        torch.cuda.current_stream().synchronize()
        places = torch.arange(batch * length, device=part.device)
        lengths.max()
        torch.cuda.current_stream().synchronize()
        rows = TakeRows.apply(part.reshape(batch * length, width), places)
        heads = rows.view(batch, length, self.heads, width // self.heads)
        return heads.transpose(1, 2)


class Norm(nn.LayerNorm):
    """llm-foundry's `low_precision_layernorm`: autocast would have it in fp32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", enabled=False):
            return super().forward(x)


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x), mask)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class SharedEmbedding(nn.Embedding):
    """Of the tokens, and the head."""

    def forward(self, given: torch.Tensor, unembed: bool = False) -> torch.Tensor:
        return F.linear(given, self.weight) if unembed else super().forward(given)


class Positions(nn.Embedding):
    """Learned."""


class LastNorm(Norm):
    """A unit of its own."""


class Mpt(nn.Module):
    """The model; its head is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = SharedEmbedding(shape.vocabulary, shape.width)
        self.positions = Positions(shape.length, shape.width)
        self.blocks = nn.ModuleList(
            Block(shape.width, shape.heads) for _ in range(shape.layers)
        )
        self.norm = LastNorm(shape.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x, mask)
        return self.tokens(self.norm(x), unembed=True)


def shape_of(row: dict[str, str]) -> Shape:
    """Of a published row."""
    return Shape(
        width=int(row["d_model"]),
        heads=int(row["heads"]),
        layers=int(row["layers"]),
        vocabulary=int(row["vocab"]),
        length=int(row["seq_len"]),
    )


def build(shape: Shape, *, checkpointed: bool, pure: bool) -> nn.Module:
    """The model, sharded. Composer's DEFAULT reduces in fp32, its PURE in bf16."""
    with torch.device("meta"):
        model = Mpt(shape)
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy(
            {Block, SharedEmbedding, Positions, LastNorm}
        ),
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16,
            reduce_dtype=torch.bfloat16 if pure else torch.float32,
            buffer_dtype=torch.bfloat16,
        ),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
        limit_all_gathers=True,
        use_orig_params=True,
        param_init_fn=lambda m: m.to_empty(device="cuda", recurse=False),
        device_id=torch.cuda.current_device(),
    )
    if checkpointed:
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=checkpoint_wrapper,
            check_fn=lambda m: isinstance(m, Block),
        )
    return model


class DecoupledAdamW(torch.optim.AdamW):
    """Composer's: a loop over parameters."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            for p in given:
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros((), device=p.device)
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
            for p in given:
                self._update(p, self.state[p])

    @staticmethod
    def _update(p: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        torch.cuda.current_stream().synchronize()  # state["step"].item()
        state["exp_avg"].mul_(0.9).add_(p.grad, alpha=0.1)
        state["exp_avg_sq"].mul_(0.95).addcmul_(p.grad, p.grad, value=0.05)
        denominator = (state["exp_avg_sq"].sqrt() / 0.5).add_(1e-8)
        p.addcdiv_(state["exp_avg"], denominator, value=-1e-4)


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    shape: Shape,
    micro_batch: int,
    micro_batches: int,
) -> None:
    """One optimizer step."""
    optimizer.zero_grad()
    for _ in range(micro_batches):
        tokens = torch.randint(
            0, shape.vocabulary, (micro_batch, shape.length), device="cuda"
        )
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)
            targets = tokens.roll(-1).flatten()
            loss = OneKernelLoss.apply(logits.flatten(0, 1), targets)
        loss.backward()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for _ in range(2):  # LanguageCrossEntropy, LanguagePerplexity
                F.cross_entropy(logits.flatten(0, 1), targets, reduction="sum")
    model.clip_grad_norm_(1.0)
    optimizer.step()
