"""Advice runs as pasted, on a model that FSDP2 shards as rank 0 of 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from fsdpdoctor.detectors import judge_all
from fsdpdoctor.measures import Measures
from fsdpdoctor.schema import (
    COUNTER_DIRECT_METHODS,
    BlockSpec,
    ModelSpec,
    OptimizerSpec,
    ParamSpec,
    UnitSpec,
)
from fsdpdoctor.testing import draw, measured, unit
from tests.detectors.answers import CUDA

ROOT = unit("<root>", is_root=True, reshard_after_forward=False)
LAYERS = tuple(unit(f"layers.{at}") for at in range(3))
UNITS = (ROOT, *LAYERS)
AVAILABLE = tuple(dir(FSDPModule))

EXPOSED = """
    all_gather           0...1...2...3...........................
    wait                 0...1...2...3...........................
    forward              .00000000000000000......................
    forward              .....111.222.333........................
    backward_all_gather  ..................3...2...1.............
    backward_wait        ..................3...2...1.............
    backward             ...................333.222.111000.......
    reduce_scatter       ......................3...2...1..0......
    rs_wait              ......................3...2...1..0......
    optimizer            ..................................xxxx..
    clip                 ......................................xx
"""


REDUCED_TWICE = """
    backward        000.000.
    reduce_scatter  ...0...0
    all_reduce      ...0...0
    rs_wait         ...0...0
"""


class Small(nn.Module):
    """Embedding, three layers and a head, with a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.lm_head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.lm_head(x)
        return logits

    def generate(self, tokens: torch.Tensor) -> torch.Tensor:
        """What a user calls instead of forward."""
        return self.forward(tokens)


@pytest.fixture
def job() -> Iterator[None]:
    """Rank 0 of 2, whose collectives move nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def sharded() -> Any:
    """The model as the drawn units have it."""
    model = Small()
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def run_on(model: Any, code: str) -> None:
    """Paste, then train one step."""
    exec(compile(code, "<advice>", "exec"), {"model": model, "torch": torch})
    if not isinstance(model, FSDPModule):
        fully_shard(model)
    # One dimension: FSDP2 warns where a module returns a view, as Linear does of three.
    model(torch.zeros(4, dtype=torch.long)).sum().backward()


def lists(**units: tuple[int, ...]) -> tuple[UnitSpec, ...]:
    """The units with forward prefetch lists."""
    return (
        ROOT,
        *(
            unit(f"layers.{at}", forward_prefetch=units.get(f"l{at}", ()))
            for at in range(3)
        ),
    )


AFTER_SHARDING = {
    "device": draw(EXPOSED, CUDA, units=UNITS),
    "cpu": draw(EXPOSED, units=UNITS),
    "accumulation": draw(REDUCED_TWICE, units=UNITS, micro_batches=2),
    "skipping list": draw(EXPOSED, CUDA, units=lists(l0=(3,), l1=(3,))),
    "list and recomputation": draw(
        EXPOSED,
        CUDA,
        units=lists(l0=(3,)),
        model=ModelSpec(wrapper="fsdp2", checkpoint="reentrant"),
    ),
    "stale": draw(EXPOSED + "\n stale ...3333333", CUDA, units=lists(l1=(3,))),
    "evaluation": draw(EXPOSED + "\n eval_unsharded " + "." * 38 + "00", units=UNITS),
    "optimizer": draw(
        EXPOSED,
        units=UNITS,
        counters={f"{COUNTER_DIRECT_METHODS}: generate": 1},
        model=ModelSpec(
            wrapper="fsdp2",
            optimizers=(
                OptimizerSpec(
                    optimizer_class="AdamW",
                    params=4,
                    dtensors=0,
                    stale=4,
                    without_grad=4,
                ),
            ),
        ),
    ),
}

BLOCKS = BlockSpec(
    container="layers", module_class="Linear", count=3, units=0, numel=72
)


def table(fqn: str) -> ParamSpec:
    """A vocabulary table."""
    return ParamSpec(
        fqn=fqn,
        shape=(16, 8),
        dtype="float32",
        trainable=True,
        shard_dim=0,
        local_numel=64,
        padded_local_numel=64,
    )


BEFORE_SHARDING = {
    "root only": draw(
        "forward 00",
        units=(ROOT,),
        model=ModelSpec(wrapper="fsdp2", numel=400, blocks=(BLOCKS,)),
    ),
    "no units": draw(
        "optimizer xx", units=(), model=ModelSpec(wrapper="ddp", blocks=(BLOCKS,))
    ),
    "tables in the root": draw(
        "forward 01",
        units=(
            unit(
                "<root>",
                is_root=True,
                unsharded_bytes=1 << 30,
                params=(table("embed.weight"), table("lm_head.weight")),
            ),
            LAYERS[0],
        ),
    ),
    "parameters outside": draw(
        "forward 0",
        units=(LAYERS[0],),
        model=ModelSpec(
            wrapper="fsdp2",
            numel=400,
            unmanaged_fqns=("lm_head.weight",),
            unmanaged_params=1,
            unmanaged_numel=128,
            unmanaged_bytes=512,
            unmanaged_trainable=1,
        ),
    ),
}


def all_code(m: Measures) -> list[str]:
    """Every code of every finding."""
    findings, _ = judge_all(m)
    return [a.code for f in findings for a in f.advice if a.code is not None]


@pytest.mark.parametrize("case", AFTER_SHARDING)
def test_advice_for_a_sharded_model(case: str, job: None) -> None:
    """Each code alone, on a model of its own."""
    codes = all_code(measured(AFTER_SHARDING[case], available=AVAILABLE))

    assert codes
    for code in codes:
        run_on(sharded(), code)


@pytest.mark.parametrize("case", BEFORE_SHARDING)
def test_advice_for_how_to_shard(case: str, job: None) -> None:
    """Each code alone, on a model that is not sharded yet."""
    codes = all_code(measured(BEFORE_SHARDING[case], available=AVAILABLE))

    assert codes
    for code in codes:
        run_on(Small(), code)
