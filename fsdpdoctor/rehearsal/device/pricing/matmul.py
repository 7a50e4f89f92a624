"""Matrix products: FLOPs, tiles and waves.

A kernel cuts the output into tiles, and gives each SM one at a time. So the time is
that of the tiles of the busiest SM: the last wave may be nearly empty, and tiles at
the edges are computed whole. Where whole waves run, half of that loss is taken:
kernels of today spread the last wave's work (stream-K), and clocks rise where SMs
stand still. Small outputs with a long inner dimension are split along it.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fsdpdoctor.rehearsal.device.pricing.memory import bytes_ns
from fsdpdoctor.rehearsal.device.spec import DeviceSpec

# Of the largest tile's rate: smaller ones load more for each product. In the order
# of CUTLASS's profiles for large bf16 products.
_SMALLER = ((1, 1, 1.0), (2, 1, 0.93), (2, 2, 0.80), (4, 2, 0.60))

_RAMP = 192
"""What filling and emptying a tile's pipeline costs, in steps of the inner size."""

_SPLITS = (1, 2, 4, 8)

_TAIL = 0.5
"""How much of the last wave's idle SMs is lost, once there is a whole wave."""


def peak_tflops(spec: DeviceSpec, dtype: str) -> float:
    """The data sheet's rate of products of an element type."""
    return {
        "bfloat16": spec.bf16_tflops,
        "float16": spec.fp16_tflops,
        "tf32": spec.tf32_tflops,
        "float8_e4m3fn": spec.fp8_tflops,
        "float8_e5m2": spec.fp8_tflops,
        "int8": spec.fp8_tflops,
        "float64": spec.fp32_tflops / 2,
    }.get(dtype, spec.fp32_tflops)


@lru_cache(maxsize=4096)
def matmul_ns(
    spec: DeviceSpec, dtype: str, itemsize: int, shape: tuple[int, int, int, int]
) -> int:
    """Of a batch of products, `shape` being batch, rows, columns and inner size."""
    batch, m, n, k = shape
    if 0 in shape:
        return 0
    rate = peak_tflops(spec, dtype) * 1e3 * spec.matmul_share / spec.sms  # FLOP/ns, SM
    best = math.inf
    tall, wide = spec.tile
    if m < n:
        tall, wide = wide, tall
    for rows, columns, share in _SMALLER:
        height, width = tall // rows, wide // columns
        tiles = batch * math.ceil(m / height) * math.ceil(n / width)
        for split in _SPLITS:
            if split > 1 and (tiles * split > spec.sms or k // split < 4 * _RAMP):
                break
            per_tile = 2 * height * width * (k / split + _RAMP) / (rate * share)
            best = min(best, _waves(tiles * split, spec.sms) * per_tile)
    moved = batch * (m * k + k * n + m * n) * itemsize
    return round(max(best, bytes_ns(spec, moved)) + spec.kernel_us * 1e3)


def _waves(tiles: int, sms: int) -> float:
    exact = tiles / sms
    whole = math.ceil(exact)
    return 1.0 if whole == 1 else exact + _TAIL * (whole - exact)
