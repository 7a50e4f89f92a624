"""Llama 3 under FSDP2, as torchtitan trained it for its benchmark page.

A script like any other: it says "cuda" throughout and knows of no rehearsal.
    fsdpdoctor rehearse --on h100 --world-size 64 tests/benchmarks/llama_script.py 8b
"""

# ruff: noqa: D102, D103, T201 - a script of somebody's
# mypy: ignore-errors

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)

# dim, layers, heads, key-value heads, hidden
SIZES = {
    "toy": (256, 4, 4, 2, 704),
    "1b": (2048, 16, 32, 8, 8192),
    "8b": (4096, 32, 32, 8, 14336),
    "70b": (8192, 80, 64, 8, 28672),
    "405b": (16384, 126, 128, 8, 53248),
}
SEQUENCE = int(os.environ.get("SEQUENCE", "8192"))
BATCH = int(os.environ.get("BATCH", "2"))
STEPS = int(os.environ.get("STEPS", "3"))
VOCABULARY = int(os.environ.get("VOCABULARY", "128256"))
CHECKPOINTING = os.environ.get("CHECKPOINTING", "selective")
COMPILE = os.environ.get("COMPILE", "0") == "1"


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, heads * self.size, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.wo = nn.Linear(heads * self.size, dim, bias=False)

    def forward(self, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = rotated(self.wq(x).view(batch, length, self.heads, self.size), freqs)
        k = rotated(self.wk(x).view(batch, length, self.kv_heads, self.size), freqs)
        v = self.wv(x).view(batch, length, self.kv_heads, self.size)
        k, v = repeated(k, self.heads), repeated(v, self.heads)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.wo(out.transpose(1, 2).contiguous().view(batch, length, -1))


def rotated(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * freqs.view(1, x.shape[1], 1, -1)
    return torch.view_as_real(turned).flatten(3).type_as(x)


def repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    batch, length, own, size = x.shape
    return (
        x[:, :, :, None, :]
        .expand(batch, length, own, heads // own, size)
        .reshape(batch, length, heads, size)
    )


class Norm(nn.Module):
    """RMSNorm as torch ran it at the end of 2024: no kernel of its own yet."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return wide.type_as(x) * self.weight


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, kv_heads)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm, self.ffn_norm = Norm(dim), Norm(dim)

    def forward(self, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), freqs)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The model."""

    def __init__(self, size: str) -> None:
        super().__init__()
        dim, layers, heads, kv_heads, hidden = SIZES[size]
        self.tok_embeddings = nn.Embedding(VOCABULARY, dim)
        self.layers = nn.ModuleDict(
            {str(i): Block(dim, heads, kv_heads, hidden) for i in range(layers)}
        )
        self.norm = Norm(dim)
        self.output = nn.Linear(dim, VOCABULARY, bias=False)
        self.size = dim // heads
        self.register_buffer("freqs", torch.empty(0), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.freqs)
        return self.output(self.norm(x))


def policy():
    """Saves every second matmul, attention and reductions; the rest runs again."""
    saved = {
        torch.ops.aten.mm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
    }
    count = {"forward": 0, "recompute": 0}

    def of(ctx, func, *args, **kwargs):
        mode = "recompute" if ctx.is_recompute else "forward"
        if func is torch.ops.aten.mm.default:
            count[mode] += 1
            if count[mode] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        saves = func in saved
        return (
            CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE
        )

    return create_selective_checkpoint_contexts(of)


def build(size: str) -> nn.Module:
    with torch.device("meta"):
        model = Llama(size)
    for name, block in model.layers.items():
        if CHECKPOINTING == "selective":
            block = checkpoint_wrapper(
                block, context_fn=policy, preserve_rng_state=False
            )
        elif CHECKPOINTING == "full":
            block = checkpoint_wrapper(block, preserve_rng_state=False)
        if COMPILE:
            block = torch.compile(block, fullgraph=True)
        model.layers[name] = block
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = list(model.layers.values())
    for i, block in enumerate(blocks):
        fully_shard(block, mp_policy=mixed, reshard_after_forward=i < len(blocks) - 1)
    fully_shard(model, mp_policy=mixed)
    model.to_empty(device="cuda")
    angle = torch.outer(torch.arange(SEQUENCE), torch.ones(model.size // 2)).cuda()
    model.freqs = torch.polar(torch.ones_like(angle), angle)
    return model


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = build(sys.argv[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(STEPS):
        begun = time.perf_counter()
        tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1), device="cuda")
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten(0, 1)
        )
        del logits
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        spent = time.perf_counter() - begun
        print(
            f"step {step}: {BATCH * SEQUENCE / spent:.0f} tokens/s, {spent:.4f} s, "
            f"{torch.cuda.max_memory_reserved() / 2**30:.1f} GiB reserved, "
            f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB allocated",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
