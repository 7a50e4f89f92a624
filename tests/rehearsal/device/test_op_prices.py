"""What an operator is charged: the right FLOPs and bytes reach the right formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fsdpdoctor.rehearsal.device import operators
from fsdpdoctor.rehearsal.device.op_prices import price, tensor_bytes
from fsdpdoctor.rehearsal.device.pricing import attention
from fsdpdoctor.rehearsal.device.pricing.attention import Attention
from fsdpdoctor.rehearsal.device.pricing.matmul import matmul_ns
from fsdpdoctor.rehearsal.device.pricing.memory import kernel_ns
from fsdpdoctor.rehearsal.device.spec import load_spec
from fsdpdoctor.rehearsal.device.virtual_device import Kernel

SPEC = load_spec("h100")
aten: Any = torch.ops.aten


def t(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor that is only looked at."""
    return torch.empty(shape, dtype=dtype, device="meta")


def priced(func: Any, *args: Any, outs: tuple[torch.Tensor, ...]) -> Kernel | None:
    """The kernel of a call."""
    return price(SPEC, func, args, operators.tensors_of(args, {}), outs)


def product(*shape: int, dtype: str = "bfloat16", itemsize: int = 2) -> Kernel:
    """A matrix product of batch, rows, columns and inner size."""
    batch, m, n, k = shape
    length = matmul_ns(SPEC, dtype, itemsize, (batch, m, n, k))
    return Kernel(length_ns=length, kind="matmul")


def moves(size: int) -> Kernel:
    """A kernel that moves so many bytes."""
    return Kernel(length_ns=kernel_ns(SPEC, size), kind="memory")


EIGHT_BIT = t(64, 256).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("func", "args", "outs", "expected"),
    [
        (aten.mm.default, (t(64, 256), t(256, 512)), (64, 512), (1, 64, 512, 256)),
        (
            aten.addmm.default,
            (t(512), t(64, 256), t(256, 512)),
            (64, 512),
            (1, 64, 512, 256),
        ),
        (
            aten.bmm.default,
            (t(8, 64, 256), t(8, 256, 512)),
            (8, 64, 512),
            (8, 64, 512, 256),
        ),
        (
            aten.baddbmm.default,
            (t(8, 64, 512), t(8, 64, 256), t(8, 256, 512)),
            (8, 64, 512),
            (8, 64, 512, 256),
        ),
        # Experts: rows of all in one tensor, evenly; their weights' gradients; batches.
        (
            aten._grouped_mm.default,
            (t(4096, 256), t(8, 256, 512), t(8, dtype=torch.int32)),
            (4096, 512),
            (8, 512, 512, 256),
        ),
        (
            aten._grouped_mm.default,
            (t(256, 4096), t(4096, 512), t(8, dtype=torch.int32)),
            (8, 256, 512),
            (8, 256, 512, 512),
        ),
        (
            aten._grouped_mm.default,
            (t(8, 64, 256), t(8, 256, 512)),
            (8, 64, 512),
            (8, 64, 512, 256),
        ),
    ],
)
def test_products_go_by_their_shape(
    func: Any,
    args: tuple[torch.Tensor, ...],
    outs: tuple[int, ...],
    expected: tuple[int, int, int, int],
) -> None:
    """Batch, rows, columns and inner size; what is added is no part of it."""
    assert priced(func, *args, outs=(t(*outs),)) == product(*expected)


def test_eight_bits_and_tf32_have_rates_of_their_own() -> None:
    """Of the element type, and of what a script allows float32 to be."""
    a, b = EIGHT_BIT, t(256, 512).to(torch.float8_e4m3fn)
    scale = t(1, dtype=torch.float32)
    eight = priced(aten._scaled_mm.default, a, b, scale, scale, outs=(t(64, 512),))
    assert eight == product(1, 64, 512, 256, dtype="float8_e4m3fn", itemsize=1)

    whole = (t(64, 256, dtype=torch.float32), t(256, 512, dtype=torch.float32))
    before = torch.get_float32_matmul_precision()
    try:
        for precision, name in (("highest", "float32"), ("high", "tf32")):
            torch.set_float32_matmul_precision(precision)
            found = priced(aten.mm.default, *whole, outs=(t(64, 512),))
            assert found == product(1, 64, 512, 256, dtype=name, itemsize=4)
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_convolution_goes_by_its_flops() -> None:
    """Two for each weight and output pixel, at four fifths of the products' rate."""
    image, weight = t(32, 64, 56, 56), t(128, 64, 3, 3)
    args = (image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    found = priced(aten.convolution.default, *args, outs=(t(32, 128, 56, 56),))
    flops = 2 * 32 * 128 * 56 * 56 * 64 * 9
    rate = SPEC.bf16_tflops * 1e3 * SPEC.matmul_share * 0.8
    assert found == Kernel(length_ns=round(flops / rate), kind="matmul")


def test_a_picture_needs_no_gradient() -> None:
    """The first convolution's backward makes the weight's alone: half the work."""
    image, weight, grad = t(32, 64, 56, 56), t(128, 64, 3, 3), t(32, 128, 56, 56)
    stride, pad, one, none = [1, 1], [1, 1], [1, 1], [0, 0]
    args = (grad, image, weight, [128], stride, pad, one, False, none, 1)
    backward = aten.convolution_backward.default
    both = (t(32, 64, 56, 56), t(128, 64, 3, 3), t(128))
    whole = priced(backward, *args, [True, True, True], outs=both)
    half = priced(backward, *args, [False, True, True], outs=both[1:])

    assert whole is not None
    assert half is not None
    assert whole.length_ns == pytest.approx(2 * half.length_ns, abs=1)


Q = t(2, 32, 1024, 128)
KV = t(2, 8, 1024, 128)
STATS = t(2, 32, 1024, dtype=torch.float32)
SEED = t(1, dtype=torch.int64)
flash = aten._scaled_dot_product_flash_attention
efficient = aten._scaled_dot_product_efficient_attention


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_attention_goes_by_its_call(causal: bool, masked: bool, backward: bool) -> None:
    """Heads of each side, lengths, whether half is left out, and which kernel it is."""
    call = Attention(
        batch=2,
        heads=32,
        kv_heads=8,
        queries=1024,
        keys=1024,
        head_dim=128,
        value_dim=128,
        itemsize=2,
        causal=causal,
        masked=masked,
    )
    if backward:
        length = attention.backward_ns(SPEC, call)
        if masked:
            func: Any = aten._scaled_dot_product_efficient_attention_backward.default
            given: Any = (
                Q,
                Q,
                KV,
                KV,
                None,
                Q,
                STATS,
                SEED,
                SEED,
                0.0,
                [True] * 3,
                causal,
            )
        else:
            func = aten._scaled_dot_product_flash_attention_backward.default
            lengths = (None, None, 1024, 1024)
            given = (Q, Q, KV, KV, Q, STATS, *lengths, 0.0, causal, SEED, SEED)
    else:
        length = attention.forward_ns(SPEC, call)
        func = efficient.default if masked else flash.default
        given = (Q, KV, KV, *((None, True) if masked else ()), 0.0, causal)
    found = priced(func, *given, outs=(Q, STATS))
    assert found == Kernel(length_ns=length, kind="attention")


ROWS, WIDTH = 4096, 1024
X = t(ROWS, WIDTH)
SIZE = ROWS * WIDTH * 2
TABLE = t(32000, WIDTH)
TOKENS = t(ROWS, dtype=torch.int64)
F32 = [t(WIDTH, WIDTH, dtype=torch.float32) for _ in range(4)]
STEP = [t(dtype=torch.float32)]


@pytest.mark.parametrize(
    ("func", "args", "outs", "size"),
    [
        (aten.add.Tensor, (X, X), (X,), 3 * SIZE),
        (aten.add.Tensor, (X, t(1, 1).expand(ROWS, WIDTH)), (X,), 2 * SIZE + 2),
        (aten.zeros_like.default, (X,), (X,), SIZE),
        (aten.normal_.default, (X,), (), SIZE),
        (aten.embedding.default, (TABLE, TOKENS), (X,), 2 * SIZE),
        (
            aten.embedding_dense_backward.default,
            (X, TOKENS, 32000, -1, False),
            (TABLE,),
            32000 * WIDTH * 2 + 3 * (SIZE + ROWS * 8),
        ),
        (aten._softmax.default, (X, -1, False), (X,), 3 * SIZE),
        (aten._log_softmax.default, (X, -1, False), (X,), 3 * SIZE),
        (
            aten.nll_loss_forward.default,
            (X, TOKENS, None, 1, -100),
            (t(), t()),
            32 * ROWS,
        ),
        (
            aten.native_layer_norm_backward.default,
            (X, X, [WIDTH], t(ROWS), t(ROWS), None, None, [True, False, False]),
            (X,),
            2 * (2 * SIZE + 2 * ROWS * 2) + SIZE,
        ),
        # Reads parameter, gradient, both moments and a step; writes all but gradients.
        (
            aten._fused_adamw_.default,
            (F32[:1], F32[1:2], F32[2:3], F32[3:], [], STEP),
            (),
            (8 - 1) * WIDTH * WIDTH * 4 + 2 * 4,
        ),
    ],
)
def test_the_rest_goes_by_the_bytes_of_one_kernel(
    func: Any, args: tuple[Any, ...], outs: tuple[torch.Tensor, ...], size: int
) -> None:
    """Read and written, each once but where CUDA's kernels take more."""
    assert priced(func, *args, outs=outs) == moves(size)


def test_what_is_no_kernel_is_free() -> None:
    """Memory that is asked for, and collectives, which the wire prices."""
    assert priced(aten.empty_like.default, X, outs=(X,)) is None
    collective = torch.ops._c10d_functional.all_reduce.default
    assert priced(collective, X, "sum", "0", outs=(X,)) is None


def test_a_repeated_value_is_read_once() -> None:
    """By strides; what has no elements has no bytes."""
    assert tensor_bytes(X) == SIZE
    assert tensor_bytes(t(1, WIDTH).expand(ROWS, WIDTH)) == WIDTH * 2
    assert tensor_bytes(t(0, 8)) == 0
