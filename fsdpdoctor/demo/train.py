"""What `fsdpdoctor demo` records: a small transformer, trained with FSDP2 on CPU.

A plain script that knows nothing of fsdpdoctor. It does what many first FSDP2
scripts do: every block is a unit, and the rest, a big embedding and a big head,
is left to the root; nothing is prefetched.

    torchrun --nproc-per-node 2 -m fsdpdoctor.demo.train
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

VOCABULARY = 8192
WIDTH = 192
BLOCKS = 6
SEQUENCE = 64
BATCH = 4


class Block(nn.Module):
    """Self-attention and a perceptron, with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        y = self.norm(x)
        attended, _ = self.attention(y, y, y, need_weights=False)
        x = x + attended
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


class Transformer(nn.Module):
    """An embedding, blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each next token."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


def main() -> None:
    """Train for a few steps on random tokens."""
    parser = argparse.ArgumentParser(description="the training that the demo records")
    parser.add_argument("--steps", type=int, default=12)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Transformer()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    for step in range(steps):
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3 and dist.get_rank() == 0:
            print(f"step {step + 1} of {steps}, loss {loss.item():.3f}", flush=True)  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
