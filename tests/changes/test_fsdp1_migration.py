"""Scripts of FSDP1, read as text, and the code that takes their wrapping's place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from fsdpdoctor.changes.fsdp1_migration import migration
from tests.models import MlpBlock, Stack

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"

WRAPPED = (
    IMPORT
    + """
mp = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
model = FSDP(
    model,
    auto_wrap_policy=policy,
    mixed_precision=mp,
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    cpu_offload=CPUOffload(offload_params=True),
    use_orig_params=True,
    ignored_modules=[model.norm],
)
with model.no_sync():
    pass
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
)


def test_each_argument_has_its_row() -> None:
    """In the order of the call, with the line; what torch keeps has none."""
    found = migration(WRAPPED)
    assert found is not None
    assert found.line == 5
    assert [(one.line, one.was, one.now) for one in found.replaced] == [
        (7, "auto_wrap_policy=policy", "fully_shard on each Block, then on the model"),
        (
            8,
            "mixed_precision=mp",
            (
                "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16); "
                "buffer_dtype: no counterpart (buffers keep theirs)"
            ),
        ),
        (
            9,
            "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
            "reshard_after_forward=False",
        ),
        (
            10,
            "cpu_offload=CPUOffload(offload_params=True)",
            "offload_policy=CPUOffloadPolicy()",
        ),
        (
            11,
            "use_orig_params=True",
            "is always so: FSDP2 keeps each parameter, as a DTensor",
        ),
        (
            12,
            "ignored_modules=[model.norm]",
            "ignored_params=, a set of parameters",
        ),
        (
            14,
            "model.no_sync",
            (
                "model.set_requires_gradient_sync(False) before a micro-batch that is "
                "not the last, True before the last"
            ),
        ),
    ]


def test_its_code_shards_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with a `fully_shard` that only looks: each block, then the root, alike."""
    found = migration(WRAPPED)
    assert found is not None
    calls: list[tuple[nn.Module, dict[str, Any]]] = []

    def look(module: nn.Module, **options: Any) -> nn.Module:
        calls.append((module, options))
        return module

    model = Stack([MlpBlock(8), MlpBlock(8)], 8)
    model.norm = nn.LayerNorm(8)
    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", look)
    exec(found.code, {"model": model, "torch": torch, "Block": MlpBlock})

    assert [module for module, _ in calls] == [*model.layers, model]
    for _, options in calls:
        assert options["reshard_after_forward"] is False
        assert options["mp_policy"] == MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        assert options["offload_policy"] == CPUOffloadPolicy()
        assert options["ignored_params"] == set(model.norm.parameters())


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("FULL_SHARD", ["reshard_after_forward=True"]),
        ("HYBRID_SHARD", ["reshard_after_forward=True", "mesh=mesh"]),
        ("_HYBRID_SHARD_ZERO2", ["reshard_after_forward=False", "mesh=mesh"]),
        ("NO_SHARD", []),
    ],
)
def test_a_strategy_is_resharding_and_a_mesh(strategy: str, options: list[str]) -> None:
    """Each of FSDP1's five, the fifth above."""
    call = f"FSDP(build(), sharding_strategy=ShardingStrategy.{strategy})\n"
    found = migration(IMPORT + call)
    assert found is not None
    lines = [line.strip().rstrip(",") for line in found.code.split("\n")]
    named = ("reshard_after_forward", "mesh=mesh")
    assert [line for line in lines if line.startswith(named)] == options
    assert "model = build()" in lines
    assert ("mesh = init_device_mesh(" in lines) == ("mesh=mesh" in options)


@pytest.mark.parametrize(
    "source",
    [
        "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n",
        "from elsewhere import FSDP\nmodel = FSDP(model)\n",
        "",
    ],
)
def test_what_is_not_of_fsdp1_has_none(source: str) -> None:
    """A name alone is no FSDP1: it has to come from torch."""
    assert migration(source) is None


def test_it_is_known_by_its_module_too() -> None:
    """As `fsdp.FullyShardedDataParallel`, under any name of the module."""
    source = "from torch.distributed import fsdp as f\n"
    found = migration(source + "f.FullyShardedDataParallel(self.net)\n")
    assert found is not None
    assert found.line == 2
    assert found.code.endswith(
        "fully_shard(self.net)  # in place; build the optimizer after it"
    )
