"""Train blocks whose compute is sleeps, with FSDP2's defaults: timing without noise.

    torchrun --nproc-per-node 2 sleep.py --forward-ms 50 --backward-ms 100

Parameters, gradients and the wire are real. It knows nothing of fsdpdoctor.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from tests.models import sleepers

MS = 1_000_000


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--forward-ms", type=int, default=50)
    parser.add_argument("--backward-ms", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lengths = (args.forward_ms * MS, args.backward_ms * MS)
    model = sleepers(args.blocks, args.width, *lengths, [])
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(args.steps):
        # The first block's input needs a gradient, as an embedding's output would.
        x = torch.randn(2, args.width, generator=data).requires_grad_()
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
