"""Products are priced by tiles and waves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.rehearsal.device.pricing.attention import (
    Attention,
    backward_ns,
    forward_ns,
)
from fsdpdoctor.rehearsal.device.pricing.matmul import matmul_ns
from fsdpdoctor.rehearsal.device.pricing.memory import copy_ns, kernel_ns
from fsdpdoctor.rehearsal.device.spec import load_spec

H100 = replace(load_spec("h100"), kernel_us=0.0)


def share(*shape: int) -> float:
    """Of the data sheet's rate, that a bf16 product gets."""
    batch, m, n, k = shape
    length = matmul_ns(H100, "bfloat16", 2, (batch, m, n, k))
    return 2 * batch * m * n * k / (length * H100.bf16_tflops * 1e3)


def test_a_large_product_runs_at_the_devices_share() -> None:
    """But for what its last wave leaves idle, and the pipeline's filling."""
    assert share(1, 16384, 16384, 16384) == pytest.approx(0.594, abs=0.005)


def test_a_nearly_empty_second_wave_costs_most() -> None:
    """132 SMs make 12 x 11 tiles at once. For another column, tiles of half the size
    are best: 288 of them are two waves and a third, of which half the rest is lost.
    """
    full = matmul_ns(H100, "bfloat16", 2, (1, 12 * 128, 11 * 256, 8192))
    over = matmul_ns(H100, "bfloat16", 2, (1, 12 * 128, 12 * 256, 8192))
    assert over / full == pytest.approx((288 / 132 + 3) / 2 / 2 / 0.93, abs=0.002)


def test_a_small_product_is_bound_by_memory() -> None:
    """One row by a matrix: its bytes at the device's bandwidth."""
    length = matmul_ns(H100, "bfloat16", 2, (1, 1, 8192, 8192))
    moved = 2 * (8192 + 8192 * 8192 + 8192)
    assert length == pytest.approx(kernel_ns(H100, moved), rel=0.01)


def test_nothing_takes_no_time() -> None:
    """An empty product is no kernel."""
    assert matmul_ns(H100, "bfloat16", 2, (1, 0, 5, 5)) == 0


def test_attention_backward_has_five_products_for_two() -> None:
    """At the backward kernel's own rate; a causal mask halves both."""
    call = Attention(
        batch=2,
        heads=32,
        kv_heads=32,
        queries=8192,
        keys=8192,
        head_dim=128,
        value_dim=128,
        itemsize=2,
        causal=True,
    )
    ratio = backward_ns(H100, call) / forward_ns(H100, call)
    assert ratio == pytest.approx(2.5 * 380 / 300, rel=1e-3)
    full = forward_ns(H100, replace(call, causal=False))
    assert full / forward_ns(H100, call) == pytest.approx(2, rel=1e-3)


def test_pageable_copies_are_slower() -> None:
    """As the device's file says."""
    pinned = copy_ns(H100, 1 << 30, pinned=True)
    assert copy_ns(H100, 1 << 30, pinned=False) / pinned == pytest.approx(55 / 12)
