"""Functions with one kernel of CUDA's run as that kernel, and keep what it keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.rig.virtual_device import Log, launched

attention: Any = F.scaled_dot_product_attention
rms_norm: Any = F.rms_norm
FLASH = "aten._scaled_dot_product_flash_attention"
EFFICIENT = "aten._scaled_dot_product_efficient_attention"


def heads(count: int, size: int = 64, **more: Any) -> torch.Tensor:
    """Two sequences of 128."""
    more = {"dtype": torch.bfloat16, **more}
    return torch.ones(2, count, 128, size, device="cuda", **more)


def names(log: Log, since: int) -> list[str]:
    """Of the kernels from one on."""
    return [name for name, _ in launched(log, since)]


def test_attention_in_half_precision_is_flash_attention(log: Log) -> None:
    """One kernel forward, one backward, whatever torch itself would take apart here."""
    q = heads(8, requires_grad=True)
    since = len(log.device.kernels)
    out = attention(q, q, q, is_causal=True)
    assert names(log, since) == [FLASH]
    assert (out.shape, out.dtype, out.is_cuda) == (q.shape, q.dtype, True)

    since = len(log.device.kernels)
    out.backward(torch.ones_like(out))
    assert f"{FLASH}_backward" in names(log, since)
    assert q.grad is not None
    assert q.grad.shape == q.shape


def test_a_causal_call_takes_about_half_the_time(log: Log) -> None:
    """The flag reaches the price, by position as by name; a kernel's start remains."""
    q = torch.ones(8, 32, 4096, 128, device="cuda", dtype=torch.bfloat16)
    times = []
    for given in ((), (None, 0.0, True)):
        since = len(log.device.kernels)
        attention(q, q, q, *given)
        ((_, length),) = launched(log, since)
        times.append(length - 4000)
    assert times[0] == pytest.approx(2 * times[1], rel=1e-4)


def test_query_groups_share_their_heads_without_a_copy(log: Log) -> None:
    """No kernel repeats keys; their gradient is summed over a group's queries."""
    q, kv = heads(8), heads(2, requires_grad=True)
    since = len(log.device.kernels)
    out = attention(q, kv, kv, enable_gqa=True)
    assert names(log, since) == [FLASH]
    assert out.shape == q.shape

    out.sum().backward()
    assert kv.grad is not None
    assert kv.grad.shape == kv.shape


def test_odd_heads_are_padded(log: Log) -> None:
    """To a multiple of 8, as the kernel takes them; what comes out is as it was."""
    q = heads(8, 60)
    since = len(log.device.kernels)
    out = attention(q, q, q)
    assert names(log, since) == ["aten.constant_pad_nd"] * 3 + [FLASH]
    assert out.shape == q.shape


def test_a_mask_and_float32_take_the_other_kernel(log: Log) -> None:
    """A truth mask becomes numbers, and one for all heads is not written out."""
    q, whole = heads(8), heads(8, dtype=torch.float32)
    mask = torch.ones(128, 128, device="cuda", dtype=torch.bool)
    since = len(log.device.kernels)
    assert attention(q, q, q, attn_mask=mask).shape == q.shape
    assert names(log, since) == ["aten._to_copy", EFFICIENT]

    since = len(log.device.kernels)
    assert attention(whole, whole, whole).dtype == torch.float32
    assert names(log, since) == [EFFICIENT]


def test_without_fused_kernels_it_is_taken_apart(log: Log) -> None:
    """As a script chooses: products, a softmax, and the scores between them."""
    q = heads(8)
    since = len(log.device.kernels)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert attention(q, q, q).shape == q.shape
    ran = names(log, since)
    assert ran.count("aten.bmm") == 2
    assert FLASH not in ran
    assert EFFICIENT not in ran


def test_on_the_host_attention_is_torchs_own(log: Log) -> None:
    """Numbers of the host are computed: a mean of ones is one."""
    host = torch.ones(1, 2, 4, 8)
    since = len(log.device.kernels)
    assert attention(host, host, host).unique().tolist() == [1.0]
    assert rms_norm(host, (8,)).unique().numel() == 1
    assert names(log, since) == []


def test_rms_norm_is_one_kernel_and_keeps_a_number_a_row(log: Log) -> None:
    """Forward and backward, with a weight and without one."""
    x = heads(8, 64, requires_grad=True)
    weight = torch.ones(64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    assert log.rig is not None
    allocator = log.rig.device.allocator
    before, since = allocator.allocated, len(log.device.kernels)
    out = rms_norm(x, (64,), weight)
    assert names(log, since) == ["aten.native_layer_norm"]
    rows = 2 * 8 * 128 * 4
    result = out.numel() * 2
    assert allocator.allocated - before == result + rows

    since = len(log.device.kernels)
    out.backward(torch.ones_like(out))
    assert names(log, since)[-1] == "aten.native_layer_norm_backward"
    assert weight.grad is not None
    assert x.grad is not None
    assert (weight.grad.shape, x.grad.shape) == (weight.shape, x.shape)
    assert rms_norm(x, (64,)).shape == x.shape
