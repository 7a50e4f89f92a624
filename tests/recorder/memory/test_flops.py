"""Floating point operations, by torch's formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from fsdpdoctor.recorder.memory.flops import FlopCount
from fsdpdoctor.recorder.memory.live_storages import LiveStorages, Place
from fsdpdoctor.recorder.memory.storage_mode import StorageMode
from fsdpdoctor.schema import UNKNOWN, Bucket, Phase

PLACE = Place(Bucket.OTHER, UNKNOWN, UNKNOWN, Phase.OTHER)


def counted(train: Any) -> FlopCount:
    """What a mode of ours counts in it."""
    mode = StorageMode(LiveStorages(lambda: PLACE), listener=None)  # type: ignore[arg-type]
    mode.begin()
    try:
        train()
    finally:
        assert mode.end()
    return mode.flops


def test_a_step_has_as_many_as_torch_counts() -> None:
    """Two layers, forward and backward: 2 * 3 * 4 * 5 for each product."""
    layer = torch.nn.Linear(4, 5)
    data = torch.ones(3, 4, requires_grad=True)

    def train() -> None:
        layer(data).sum().backward()

    with FlopCounterMode(display=False) as theirs:
        train()

    ours = counted(train)

    assert ours.total == theirs.get_total_flops() == 3 * 2 * 3 * 4 * 5
    assert ours.recomputed == 0


def test_products_of_the_same_shapes_are_asked_once() -> None:
    """Each counts all the same; another shape is another number."""
    count = FlopCount()
    asked = []
    formulas = dict(count._formulas)
    product = torch.ops.aten.mm

    def formula(*args: Any, **kwargs: Any) -> int:
        asked.append(args)
        return int(formulas[product](*args, **kwargs))

    count._formulas = {product: formula}
    small, large = torch.ones(2, 3), torch.ones(3, 4)
    for left, right in ((small, large), (small, large), (large.T, large)):
        result = torch.mm(left, right)
        count.saw(product.default, (left, right), {}, result)

    assert count.total == 2 * (2 * 3 * 4) * 2 + 2 * (4 * 3 * 4)
    assert len(asked) == 2


def test_recomputation_is_told_apart() -> None:
    """The forward's product once more in backward."""
    layer = torch.nn.Linear(4, 5)
    data = torch.ones(3, 4, requires_grad=True)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(layer(x))

    def train() -> None:
        out: Any = checkpoint(inner, data, use_reentrant=False)
        out.sum().backward()

    ours = counted(train)

    assert ours.recomputed == 2 * 3 * 4 * 5
    assert ours.total == 4 * ours.recomputed


def test_attention_on_a_cpu_is_counted() -> None:
    """Torch has no formula for its kernel: two products forward, five backward."""
    query = torch.ones(1, 2, 8, 16, requires_grad=True)

    def train() -> None:
        out: Any = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        out.sum().backward()

    product = 2 * 2 * 8 * 8 * 16

    assert counted(train).total == 7 * product


def test_a_formula_that_does_not_fit_ends_it() -> None:
    """No number is better than a wrong one."""
    count = FlopCount()
    mm: Any = torch.ops.aten.mm.default
    count.saw(mm, (), {}, None)
    count.saw(mm, (torch.ones(2, 2), torch.ones(2, 2)), {}, torch.ones(2, 2))

    assert count.total == count.recomputed == UNKNOWN
