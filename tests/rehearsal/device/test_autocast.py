"""`torch.autocast("cuda")` casts as it does where the device is real."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.rig.virtual_device import Log, launched

BF16, FLOAT32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        (lambda x: x @ x, FLOAT32, BF16),
        (lambda x: torch.einsum("ij,jk->ik", [x, x]), FLOAT32, BF16),
        (lambda x: F.linear(input=x, weight=x), FLOAT32, BF16),
        (lambda x: torch.softmax(x, -1), BF16, FLOAT32),
        (lambda x: x.pow(2), BF16, FLOAT32),
        (torch.relu, BF16, BF16),
        (torch.relu, FLOAT32, FLOAT32),
        (lambda x: x.sum(), torch.int64, torch.int64),
    ],
)
def test_results_are_of_the_type_that_cuda_gives(
    function: Callable[[torch.Tensor], torch.Tensor],
    given: torch.dtype,
    expected: torch.dtype,
    log: Log,
) -> None:
    """Products in bf16, sums and powers in float32, the rest as it comes."""
    x = torch.ones(8, 8, device="cuda", dtype=given)
    with torch.autocast("cuda", dtype=BF16):
        assert function(x).dtype == expected


def test_outside_of_it_and_on_the_host_nothing_is_cast(log: Log) -> None:
    """Also in a region of its own that says so."""
    x, host = torch.ones(8, 8, device="cuda"), torch.ones(8, 8)
    with torch.autocast("cuda", dtype=BF16):
        assert F.linear(host, host).dtype == FLOAT32
        with torch.autocast("cuda", enabled=False):
            assert F.linear(x, x).dtype == FLOAT32
    assert F.linear(x, x).dtype == FLOAT32


def test_a_weight_is_cast_once_a_region(log: Log) -> None:
    """An input is cast each time; the next region casts the weight anew."""
    x = torch.ones(8, 8, device="cuda")
    weight = nn.Parameter(torch.ones(8, 8, device="cuda"))

    def kernels_of_region() -> list[str]:
        since = len(log.device.kernels)
        with torch.autocast("cuda", dtype=BF16):
            F.linear(x, weight)
            F.linear(x, weight)
        return [name for name, _ in launched(log, since)]

    cast, product = "aten._to_copy", "aten.mm"
    once = [cast, cast, product, cast, product]
    assert kernels_of_region() == once
    assert kernels_of_region() == once


def test_a_weight_that_is_not_kept_is_cast_each_time(log: Log) -> None:
    """As a script asks for it, in the words of `torch.autocast`."""
    x = torch.ones(8, 8, device="cuda")
    weight = nn.Parameter(torch.ones(8, 8, device="cuda"))
    since = len(log.device.kernels)
    with torch.autocast("cuda", dtype=BF16, cache_enabled=False):
        F.linear(x, weight)
        F.linear(x, weight)
    names = [name for name, _ in launched(log, since)]
    assert names == ["aten._to_copy", "aten._to_copy", "aten.mm"] * 2
