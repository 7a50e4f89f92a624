"""Scripts for the test of advice: one for each kind of model and of fault."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

from tests.changes.scripts import ROOT, Call, Script, layers_of
from tests.gallery import network
from tests.gallery.network import LAYERS, WIDTH, Net, block, half_trained

BLOCKS: list[Call] = [((f"layers.{at}",), {}) for at in range(LAYERS)]

FAST = "1GB/s@100us"


class Tied(Net):
    """The head is the embedding."""

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self.head.weight = self.embed.weight


class Inner(nn.Module):
    """A network inside the user's own, under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Net()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss."""
        loss: torch.Tensor = self.model(tokens)
        return loss


class Towers(nn.Module):
    """Two networks side by side, each a root of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left = Net([block() for _ in range(2)])
        self.right = Net([block() for _ in range(3)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The sum of both losses."""
        loss: torch.Tensor = self.left(tokens) + self.right(tokens)
        return loss


class Checkpointed(nn.Module):
    """A block whose forward runs again in backward."""

    def __init__(self, inner: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.inner = inner
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the inner one."""
        y: torch.Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return y


class Lora(nn.Module):
    """A frozen block and an adapter of low rank, in one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.base = block().requires_grad_(False)
        self.lora_a = nn.Linear(WIDTH, 8, bias=False)
        self.lora_b = nn.Linear(8, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both."""
        y: torch.Tensor = self.base(x) + self.lora_b(self.lora_a(x))
        return y


def big(**known: Any) -> Net:
    """Tables of 16 MiB each."""
    return Net(vocabulary=16384, width=WIDTH, **known)


def frozen_tables() -> Net:
    """The same, and they do not learn."""
    model = big()
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    return model


def lora() -> Net:
    """Only the adapters learn."""
    model = Net([Lora() for _ in range(LAYERS)])
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    return model


def asking_for_gradients() -> Net:
    """Its frozen half has an input that requires gradients."""
    model = half_trained()
    model.embed.register_forward_hook(lambda module, args, out: out.requires_grad_())
    return model


def scaled() -> Net:
    """Adapters of one vector."""
    model = Net([network.Scaled() for _ in range(LAYERS)])
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    return model


def around(model: Net, wrap: Any) -> Net:
    """Each layer in a wrapper."""
    for at, layer in enumerate(list(model.layers)):
        model.layers[at] = wrap(layer)
    return model


def compiled_layers() -> Net:
    """Each layer compiled in place of itself: names get `_orig_mod`."""
    model = Net([network.Wrapped(block()) for _ in range(LAYERS)])
    return around(model, partial(torch.compile, backend="eager"))


def bf16() -> Mapping[str, Any]:
    """Computed and gathered in bfloat16."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    return {"mp_policy": policy}


def hsdp() -> Mapping[str, Any]:
    """Two replicas."""
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    return {"mesh": mesh}


def offloaded() -> Mapping[str, Any]:
    """Parameters on the host: on CPU that is where they are."""
    return {"offload_policy": CPUOffloadPolicy(pin_memory=False)}


def listed(ahead: int) -> Any:
    """Forward lists that skip some blocks."""

    def settle(model: Any) -> None:
        layers = list(model.layers)
        for layer, target in zip(layers, layers[ahead:], strict=False):
            layer.set_modules_to_forward_prefetch([target])

    return settle


def listed_async(model: Any) -> None:
    """The same lists, where they matter on CPU."""
    model._set_unshard_async_op(True)
    listed(2)(model)


def adamw(model: Any) -> torch.optim.Optimizer:
    """What most people take."""
    return torch.optim.AdamW(model.parameters(), lr=1e-6)


class Own(torch.optim.Optimizer):
    """A user's own optimizer, with an argument that it needs."""

    def __init__(self, params: Any, pace: float) -> None:
        super().__init__(params, {"pace": pace})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """A small step down."""
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.sub_(p.grad * group["pace"])


def own(model: Any) -> torch.optim.Optimizer:
    """It."""
    return Own(model.parameters(), pace=1e-6)


def adamax(model: Any) -> torch.optim.Optimizer:
    """One of torch's that has no fused step."""
    return torch.optim.Adamax(model.parameters(), lr=1e-6)


def slowly(make: Any) -> Any:
    """Any optimizer, whose step takes much of the step's time."""

    def slow(model: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = make(model)
        optimizer.register_step_pre_hook(lambda *_: time.sleep(0.2))
        return optimizer

    return slow


REDUCE = "1GB/s@100us,reduce-scatter=10MB/s@100us"

FINE: list[Call] = [
    ((f"layers.{at}.parts.{part}",), {}) for at in range(3) for part in range(4)
]


def fine() -> Net:
    """Four modules in each block."""
    return Net([network.Fine() for _ in range(3)])


SCRIPTS: dict[str, Script] = {
    "blocks": Script(build=Net, calls=[*BLOCKS, ROOT]),
    "bf16": Script(build=Net, calls=[*BLOCKS, ROOT], options=bf16),
    "hsdp": Script(build=Net, calls=[*BLOCKS, ROOT], options=hsdp),
    "offload": Script(build=Net, calls=[*BLOCKS, ROOT], options=offloaded),
    "one unit": Script(build=Net, calls=[ROOT]),
    "one unit, bf16": Script(build=Net, calls=[ROOT], options=bf16),
    "one unit, hsdp": Script(build=Net, calls=[ROOT], options=hsdp),
    "grouped": Script(
        build=Net,
        calls=[
            (("layers.0", "layers.1"), {}),
            (("layers.2", "layers.3"), {}),
            (("embed",), {}),
            ROOT,
        ],
    ),
    "nested": Script(
        build=Inner,
        calls=[*((("model." + path[0],), {}) for path, _ in BLOCKS), ROOT],
    ),
    "two roots": Script(
        build=Towers,
        calls=[
            *layers_of(Towers(), "left.layers"),
            (("left",), {}),
            *layers_of(Towers(), "right.layers"),
            (("right",), {}),
        ],
    ),
    "fine": Script(build=fine, calls=[*FINE, ROOT], bandwidth="10MB/s@2ms"),
    "fine, bf16": Script(
        build=fine, calls=[*FINE, ROOT], bandwidth="10MB/s@2ms", options=bf16
    ),
    "tables": Script(build=big, calls=[*BLOCKS, ROOT], bandwidth="200MB/s@100us"),
    "tables, bf16": Script(
        build=big, calls=[*BLOCKS, ROOT], bandwidth="200MB/s@100us", options=bf16
    ),
    "tables, hsdp": Script(
        build=big, calls=[*BLOCKS, ROOT], bandwidth="200MB/s@100us", options=hsdp
    ),
    "tied": Script(
        build=partial(Tied, vocabulary=16384),
        calls=[*BLOCKS, ROOT],
        bandwidth="200MB/s@100us",
    ),
    "frozen tables": Script(
        build=frozen_tables, calls=[*BLOCKS, ROOT], bandwidth="200MB/s@100us"
    ),
    "lora": Script(build=lora, calls=[*BLOCKS, ROOT]),
    "frozen masters": Script(
        build=half_trained,
        calls=[*BLOCKS, ROOT],
        options=lambda: {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
    ),
    "frozen in backward": Script(
        build=asking_for_gradients, calls=[*BLOCKS, ROOT], bandwidth="40MB/s@100us"
    ),
    "adapter units": Script(
        build=scaled,
        calls=[*(((f"layers.{at}.scale",), {}) for at in range(LAYERS)), *BLOCKS, ROOT],
    ),
    "checkpoint wrapped": Script(
        build=lambda: around(Net(), checkpoint_wrapper), calls=[*BLOCKS, ROOT]
    ),
    "unit inside a wrapper": Script(
        build=lambda: around(Net(), checkpoint_wrapper),
        calls=[
            *(
                ((f"layers.{at}._checkpoint_wrapped_module",), {})
                for at in range(LAYERS)
            ),
            ROOT,
        ],
    ),
    "not reentrant, listed": Script(
        build=lambda: around(Net(), partial(Checkpointed, reentrant=False)),
        calls=[*(((f"layers.{at}.inner",), {}) for at in range(LAYERS)), ROOT],
        settle=lambda model: _chain_inner(model),
    ),
    "reentrant, listed": Script(
        build=lambda: around(Net(), partial(Checkpointed, reentrant=True)),
        calls=[*(((f"layers.{at}.inner",), {}) for at in range(LAYERS)), ROOT],
        settle=lambda model: _chain_inner(model),
    ),
    "compiled names": Script(build=compiled_layers, calls=[*BLOCKS, ROOT]),
    "compiled whole": Script(build=Net, calls=[*BLOCKS, ROOT], compiles_whole=True),
    "skipping lists": Script(build=Net, calls=[*BLOCKS, ROOT], settle=listed(2)),
    "accumulation": Script(
        build=Net, calls=[*BLOCKS, ROOT], micro_batches=3, bandwidth=REDUCE
    ),
    "accumulation, hsdp": Script(
        build=Net,
        calls=[*BLOCKS, ROOT],
        micro_batches=3,
        bandwidth=REDUCE,
        options=hsdp,
    ),
    "accumulation, two roots": Script(
        build=Towers,
        calls=[
            *layers_of(Towers(), "left.layers"),
            (("left",), {}),
            *layers_of(Towers(), "right.layers"),
            (("right",), {}),
        ],
        micro_batches=3,
        bandwidth=REDUCE,
    ),
    "autocast": Script(build=Net, calls=[*BLOCKS, ROOT], autocast=True),
    "early optimizer": Script(
        build=Net, calls=[*BLOCKS, ROOT], early_optimizer=True, optimizer=adamw
    ),
    "own optimizer, early": Script(
        build=Net, calls=[*BLOCKS, ROOT], early_optimizer=True, optimizer=own
    ),
    "slow AdamW": Script(
        build=Net, calls=[*BLOCKS, ROOT], optimizer=slowly(adamw), bandwidth=FAST
    ),
    "slow Adamax": Script(
        build=Net, calls=[*BLOCKS, ROOT], optimizer=slowly(adamax), bandwidth=FAST
    ),
    "slow optimizer of one's own": Script(
        build=Net, calls=[*BLOCKS, ROOT], optimizer=slowly(own), bandwidth=FAST
    ),
    "evaluation": Script(build=Net, calls=[*BLOCKS, ROOT], evaluates=True),
    "padded": Script(
        build=lambda: Net([block(57) for _ in range(LAYERS)], vocabulary=32, width=57),
        calls=[*BLOCKS, ROOT],
    ),
    "padded vocabulary": Script(
        build=lambda: Net(vocabulary=57), calls=[*BLOCKS, ROOT]
    ),
    "one unit, fast": Script(build=Net, calls=[ROOT], bandwidth=FAST),
    "one unit, fast, bf16": Script(
        build=Net, calls=[ROOT], bandwidth=FAST, options=bf16
    ),
    "one unit, fast, hsdp": Script(
        build=Net, calls=[ROOT], bandwidth=FAST, options=hsdp
    ),
    "one unit, fast, offload": Script(
        build=Net, calls=[ROOT], bandwidth=FAST, options=offloaded
    ),
    "nested, one unit": Script(build=Inner, calls=[ROOT], bandwidth=FAST),
    "tables, fast": Script(build=big, calls=[*BLOCKS, ROOT], bandwidth="20GB/s@10us"),
    "tables, fast, bf16": Script(
        build=big, calls=[*BLOCKS, ROOT], bandwidth="20GB/s@10us", options=bf16
    ),
    "tables, fast, hsdp": Script(
        build=big, calls=[*BLOCKS, ROOT], bandwidth="20GB/s@10us", options=hsdp
    ),
    "skipping lists, async": Script(
        build=Net,
        calls=[*BLOCKS, ROOT],
        settle=listed_async,
    ),
    "slow all-reduce": Script(
        build=Net,
        calls=[*BLOCKS, ROOT],
        micro_batches=3,
        bandwidth="1GB/s@100us,all-reduce=2MB/s@100us",
        options=hsdp,
    ),
    "own clipping": Script(
        build=Net, calls=[*BLOCKS, ROOT], clips=True, bandwidth=FAST
    ),
    "only the blocks": Script(build=Net, calls=BLOCKS, bandwidth=FAST),
}
"""By name."""


def _chain_inner(model: Any) -> None:
    layers = [layer.inner for layer in model.layers]
    for layer, target in itertools.pairwise(layers):
        layer.set_modules_to_forward_prefetch([target])
