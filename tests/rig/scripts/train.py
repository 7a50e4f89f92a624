"""Train a small Llama with FSDP2, as a user would, healthy or with one mistake.

    torchrun --nproc-per-node 2 train.py --fault none --steps 20

It knows nothing of fsdpdoctor. Each fault is a function or a branch below.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

FAULTS = {
    "none": "each decoder layer a unit, the rest in the root",
    "every-linear": "every nn.Linear its own unit",
    "outside": "fully_shard on the inner model only: lm_head is in no unit",
    "seeds": "lm_head is left out, and each rank begins from a seed of its own",
    "skip-prefetch": "each layer prefetches the one after the next",
    "nested-checkpoint": "self_attn a unit inside each checkpointed layer, prefetching "
    "the next one: the prefetch runs again while backward recomputes",
    "accumulate": "four micro-batches, gradients reduced on each",
    "slow-rank": "the last rank sleeps in every step",
    "sub-mesh": "a 2-D mesh is made and its 1-D shard part passed (4 ranks)",
    "early-optimizer": "the optimizer is built before fully_shard",
    "ddp": "DistributedDataParallel instead of FSDP2",
    # Near misses: like a fault, and right.
    "accumulate-once": "four micro-batches, gradients reduced on the last",
    "prefetch": "each layer prefetches the next one",
    "keep": "reshard_after_forward=False",
    "checkpoint": "activation checkpointing, each layer a unit",
    "hsdp": "the 2-D mesh itself passed (4 ranks)",
    "ignored": "the root leaves lm_head out with ignored_params; the script averages "
    "its gradient",
}


def arguments() -> argparse.Namespace:
    """What to train, and what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--sequence", type=int, default=32)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--sleep-ms", type=float, default=60.0)
    parser.add_argument("--losses", type=Path, help="write losses and a hash here")
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> Any:
    """A LlamaForCausalLM from a small configuration: nothing is downloaded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(dist.get_rank() if args.fault == "seeds" else 0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=args.hidden,
        intermediate_size=2 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=args.sequence,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def mesh_of(fault: str) -> dict[str, Any]:
    """The mesh argument of fully_shard."""
    if fault not in ("sub-mesh", "hsdp"):
        return {}
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    return {"mesh": mesh["shard"] if fault == "sub-mesh" else mesh}


def shard(model: Any, args: argparse.Namespace) -> Any:
    """Apply FSDP2 (or DDP), with the fault."""
    fault = args.fault
    if fault == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    options = mesh_of(fault)
    if args.bf16:
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    if fault == "keep":
        options["reshard_after_forward"] = False
    layers = model.model.layers
    for layer in layers:
        if fault == "every-linear":
            for module in layer.modules():
                if isinstance(module, nn.Linear):
                    fully_shard(module, **options)
        if fault == "nested-checkpoint":
            fully_shard(layer.self_attn, **options)
        fully_shard(layer, **options)
    if fault in ("nested-checkpoint", "checkpoint"):
        # Renamed in transformers 5.
        new = getattr(model, "activation_checkpointing_enable", None)
        (new or model.gradient_checkpointing_enable)({"use_reentrant": False})
    if fault == "nested-checkpoint":
        for layer, following in pairwise(layers):
            layer.self_attn.set_modules_to_forward_prefetch([following.self_attn])
    if fault in ("skip-prefetch", "prefetch"):
        ahead = 2 if fault == "skip-prefetch" else 1
        for layer, target in zip(layers[:-ahead], layers[ahead:], strict=True):
            layer.set_modules_to_forward_prefetch([target])
    if fault == "outside":
        fully_shard(model.model, **options)
    elif fault in ("ignored", "seeds"):
        fully_shard(model, ignored_params={model.lm_head.weight}, **options)
    else:
        fully_shard(model, **options)
    return model


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW; plain tensors and DTensors in groups of their own."""
    sharded = [p for p in model.parameters() if hasattr(p, "device_mesh")]
    plain = [p for p in model.parameters() if not hasattr(p, "device_mesh")]
    groups = [{"params": params} for params in (sharded, plain) if params]
    return torch.optim.AdamW(groups, lr=1e-3)


def batches(args: argparse.Namespace) -> Iterator[torch.Tensor]:
    """Random tokens, other ones on each rank."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    while True:
        yield torch.randint(0, 256, (2, args.sequence), generator=generator)


def train(model: Any, optimizer: Any, args: argparse.Namespace) -> list[float]:
    """The losses, one a step."""
    data = batches(args)
    micro_batches = 4 if args.fault.startswith("accumulate") else 1
    losses = []
    for step in range(args.steps):
        if args.fault == "slow-rank" and dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(args.sleep_ms / 1000)
        for micro_batch in range(micro_batches):
            if args.fault == "accumulate-once":
                last = micro_batch == micro_batches - 1
                model.set_requires_gradient_sync(last)
            tokens = next(data)
            loss = model(input_ids=tokens, labels=tokens).loss / micro_batches
            loss.backward()
        if args.fault in ("ignored", "seeds"):
            dist.all_reduce(model.lm_head.weight.grad)
            model.lm_head.weight.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if dist.get_rank() == 0:
            print(f"step {step} loss {losses[-1]:.4f}", flush=True)
    return losses


def digest(model: nn.Module) -> str:
    """A hash of this rank's parameters, to the bit."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        local = getattr(parameter, "_local_tensor", parameter).detach()
        found.update(local.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """Train."""
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = build_model(args)
    early = optimizer_for(model) if args.fault == "early-optimizer" else None
    model = shard(model, args)
    losses = train(model, early or optimizer_for(model), args)
    if args.losses:
        path = args.losses.with_suffix(f".{os.environ['RANK']}.json")
        path.write_text(json.dumps({"losses": losses, "digest": digest(model)}))
    # DDP's reducer must not be what holds the process group last: freed with the
    # interpreter's lock, gloo's joins a thread that waits for that lock (torch 2.13).
    del model, early
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
