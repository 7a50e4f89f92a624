"""Trains a small network with FSDP2, as a user would, with one thing wrong or nothing.

    fsdpdoctor rehearse --world-size 8 -m tests.gallery.train exposed

Each function of CASES is a case; none knows of a recorder.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from tests.gallery.around_cases import (
    async_checkpoints,
    checkpoints,
    early_optimizer,
    fast_loader,
    frozen_garbage,
    garbage,
    gathering_optimizer,
    killed,
    norm_by_hand,
    short_script,
    slow_loader,
    slow_optimizer,
    slow_script,
)
from tests.gallery.network import (
    LAYERS,
    STEPS,
    WIDTH,
    Adapted,
    Experts,
    Fine,
    Net,
    Scaled,
    Wrapped,
    batch,
    block,
    chained,
    half_trained,
    sharded,
    train,
)

Case = Callable[[], None]


def blocks() -> None:
    """Each block a unit, nothing prefetched: every gather blocks, on CPU."""
    train(sharded(), STEPS)


def chain() -> None:
    """The same, with explicit prefetch and asynchronous unshards."""
    train(chained(sharded()), STEPS)


def skip() -> None:
    """Each block prefetches the one after the next."""
    train(chained(sharded(), ahead=2), STEPS)


def kept_chain() -> None:
    """Explicit prefetch, and nothing is resharded after forward."""
    train(chained(sharded(reshard_after_forward=False)), STEPS)


def root_only() -> None:
    """One unit for the whole model."""
    train(fully_shard(Net()), STEPS)


def accumulate() -> None:
    """Four micro-batches, gradients reduced on each."""
    train(sharded(_short()), STEPS, micro_batches=4)


def accumulate_once() -> None:
    """Four micro-batches, gradients reduced on the last."""
    model = sharded(_short())
    train(
        model,
        STEPS,
        micro_batches=4,
        before=lambda i: model.set_requires_gradient_sync(i == 3),
    )


def _short() -> Net:
    return Net(layers=[block() for _ in range(2)])


def fine() -> None:
    """Four units in each block."""
    model = Net(layers=[Fine() for _ in range(3)])
    for layer in model.layers:
        for part in layer.get_submodule("parts").children():
            fully_shard(part)
    train(fully_shard(model), STEPS)


def experts() -> None:
    """Each expert a unit inside its block's unit."""
    model = Net(layers=[Experts() for _ in range(3)])
    for layer in model.layers:
        for expert in layer.get_submodule("experts").children():
            fully_shard(expert)
    train(sharded(model), STEPS)


def big_tables() -> None:
    """Embedding and head in the root, 64 MiB each."""
    train(sharded(_big()), STEPS)


def tables_apart() -> None:
    """The same tables, each a unit of its own."""
    model = _big()
    fully_shard(model.embed)
    fully_shard(model.head)
    train(sharded(model), STEPS)


def _big() -> Net:
    return Net(vocabulary=65536, width=WIDTH)


def uneven() -> None:
    """Blocks of 57 rows on eight ranks: padded to 64."""
    layers = [block(57) for _ in range(LAYERS)]
    train(sharded(Net(layers, vocabulary=32, width=57)), STEPS)


def nearly_even() -> None:
    """Blocks of 503 rows: padded to 504."""
    train(sharded(Net(layers=[block(503) for _ in range(LAYERS)], width=503)), STEPS)


class _Auxiliary(Net):
    """A network with a frozen head that only evaluation would use."""

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = nn.Linear(WIDTH, WIDTH).requires_grad_(False)


def idle_target() -> None:
    """The last block prefetches a head that training never calls."""
    model = _Auxiliary()
    fully_shard(model.auxiliary)
    whole: Any = chained(sharded(model))
    whole.layers[-1].set_modules_to_forward_prefetch([whole.auxiliary])
    train(whole, STEPS)


def unshards_for_nothing() -> None:
    """The same head, gathered and freed by hand in each step, and not called."""
    model = _Auxiliary()
    fully_shard(model.auxiliary)
    whole: Any = sharded(model)

    def gather(_micro_batch: int) -> None:
        whole.auxiliary.unshard()

    def free(_step: int) -> None:
        whole.auxiliary.reshard()

    train(whole, STEPS, before=gather, between=free)


def unused() -> None:
    """The same head, which nobody prefetches."""
    model = _Auxiliary()
    fully_shard(model.auxiliary)
    train(sharded(model), STEPS)


def micro_batch_dropped() -> None:
    """Rank 1 has no second micro-batch in step 5, and goes on."""
    model = sharded(_short())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        for micro_batch in range(2):
            if (step, micro_batch, dist.get_rank()) != (5, 1, 1):
                model(batch()).backward()
        optimizer.step()
        optimizer.zero_grad()


def dropped_together() -> None:
    """Every rank skips the same block in every second step."""
    model = sharded(Net(layers=[_Droppable() for _ in range(LAYERS)]))

    def choose(step: int) -> None:
        model.layers[2].dropped = step % 2 == 0

    train(model, STEPS, between=choose)


class _Droppable(nn.Module):
    """A block that may be left out of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = block()
        self.dropped = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block, or nothing."""
        return x if self.dropped else self.inner(x)


def autocast() -> None:
    """float32 parameters under bfloat16 autocast."""
    model = sharded()

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result: torch.Tensor = model(tokens)
        return result

    train(model, STEPS, loss=loss)


def mixed_precision() -> None:
    """A policy that gathers bfloat16 and reduces float32, under the same autocast."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    model = sharded(mp_policy=policy)

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result: torch.Tensor = model(tokens)
        return result

    train(model, STEPS, loss=loss)


def adapters() -> None:
    """A frozen model with small trainable adapters in each block."""
    train(sharded(_frozen_around([Adapted() for _ in range(LAYERS)])), STEPS)


def adapter_units() -> None:
    """Adapters of one vector, each a unit inside its block's unit."""
    model = _frozen_around([Scaled() for _ in range(LAYERS)])
    for layer in model.layers:
        fully_shard(layer.get_submodule("scale"))
    train(sharded(model), STEPS)


def _frozen_around(layers: list[nn.Module]) -> Net:
    model = Net(layers=layers)
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    return model


def half_frozen() -> None:
    """The first half of the blocks is frozen."""
    model = Net()
    model.embed.requires_grad_(False)
    for layer in list(model.layers)[: LAYERS // 2]:
        layer.requires_grad_(False)
    train(sharded(model), STEPS)


def frozen_masters() -> None:
    """The first half is frozen, and kept in float32 under a bfloat16 policy."""
    train(sharded(half_trained(), mp_policy=HALF), STEPS)


def frozen_narrow() -> None:
    """The same, stored in bfloat16."""
    model = half_trained()
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    train(sharded(model, mp_policy=HALF), STEPS)


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def frozen_backward() -> None:
    """The first half is frozen, and its input is made to require gradients."""
    model = half_trained()
    model.embed.register_forward_hook(lambda module, args, out: out.requires_grad_())
    train(sharded(model), STEPS)


def idle_head() -> None:
    """A trainable head that is a unit, and that training never calls."""
    model = _Auxiliary()
    model.auxiliary.requires_grad_(True)
    fully_shard(model.auxiliary)
    train(sharded(model), STEPS)


def registered() -> None:
    """The same method, registered with FSDP2."""
    model = sharded()
    register_fsdp_forward_method(model, "score")
    train(model, STEPS, loss=model.score)


def compiled_around() -> None:
    """The blocks sharded first, then the model compiled as a whole."""
    model = sharded()
    train(model, STEPS, loss=torch.compile(model, backend="eager"))


def compiled_inside() -> None:
    """Each block's layer compiled first, then the block sharded."""
    model = Net()
    for layer in model.layers:
        layer.linear = Wrapped(layer.get_submodule("linear"))
        layer.linear.compile(backend="eager")
    train(sharded(model), STEPS)


def evaluated() -> None:
    """An evaluation after every step, after which the root stays gathered."""
    _evaluating(reshard=False)


def evaluated_resharded() -> None:
    """The same evaluation, and reshard() after it."""
    _evaluating(reshard=True)


def _evaluating(*, reshard: bool) -> None:
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(STEPS):
        model(batch()).backward()
        with torch.no_grad():
            model(batch())
        if reshard:
            model.reshard()
        optimizer.step()
        optimizer.zero_grad()


CASES: dict[str, Case] = {
    case.__name__.replace("_", "-"): case
    for case in (
        blocks,
        chain,
        skip,
        kept_chain,
        root_only,
        accumulate,
        accumulate_once,
        fine,
        experts,
        big_tables,
        tables_apart,
        uneven,
        nearly_even,
        idle_target,
        unshards_for_nothing,
        unused,
        slow_loader,
        fast_loader,
        garbage,
        frozen_garbage,
        slow_optimizer,
        slow_script,
        short_script,
        gathering_optimizer,
        norm_by_hand,
        checkpoints,
        async_checkpoints,
        killed,
        dropped_together,
        micro_batch_dropped,
        autocast,
        mixed_precision,
        adapters,
        adapter_units,
        half_frozen,
        frozen_masters,
        frozen_narrow,
        frozen_backward,
        early_optimizer,
        idle_head,
        registered,
        compiled_around,
        compiled_inside,
        evaluated,
        evaluated_resharded,
    )
}


def job(name: str) -> Case:
    """A case in a job of its own."""

    def run() -> None:
        dist.init_process_group("gloo")
        CASES[name]()
        dist.destroy_process_group()

    return run


def main() -> None:
    """Train one case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    case = job(parser.parse_args().case)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.disable()  # it would collect whenever it pleases; some cases do it themselves
    case()


if __name__ == "__main__":
    main()
