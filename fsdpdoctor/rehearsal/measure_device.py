"""Measures the device that is here: products, attention, memory, copies, launches.

Each is run until it has taken a while, and its median counts. On CUDA kernels are
timed by events on their stream, so that the host's own time is not in them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from fsdpdoctor.errors import UsageError
from fsdpdoctor.quantities import GIB
from fsdpdoctor.rehearsal.device.measured_spec import (
    AttentionTime,
    MatmulTime,
    Measured,
)
from fsdpdoctor.rehearsal.device.pricing.attention import Attention

_AT_LEAST = 5
"""Repetitions, whatever they take."""

_MOST = 200

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large what is measured is."""

    matmuls: tuple[tuple[int, int, int], ...]
    large: int  # rows, columns and inner size of the product for each type
    sequences: tuple[tuple[int, int], ...]  # batch, length
    heads: int
    moved: int  # bytes of a tensor that is read and of one that is written
    seconds: float  # for each measurement


GPU = Sizes(
    matmuls=tuple(
        (m, n, k)
        for m in (512, 4096, 16384)
        for n, k in ((1024, 4096), (4096, 4096), (14336, 4096), (4096, 14336))
    ),
    large=8192,
    sequences=((8, 1024), (2, 4096), (1, 16384)),
    heads=32,
    moved=GIB,
    seconds=0.5,
)

SMALL = Sizes(
    matmuls=((64, 256, 256), (256, 256, 256), (256, 512, 512)),
    large=256,
    sequences=((1, 256),),
    heads=2,
    moved=1 << 24,
    seconds=0.02,
)
"""For a processor, which is only there to try the command."""


def measure(
    device: str, sizes: Sizes | None = None, say: Say = lambda _: None
) -> Measured:
    """All of it. Raises UsageError where there is no such device."""
    kind = torch.device(device).type
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "there is no CUDA device here: calibrate runs on a machine that has one. "
            "--device cpu tries it on the processor"
        )
    if kind not in ("cuda", "cpu"):
        raise UsageError(f"--device {device}: only cuda and cpu can be measured")
    bench = _Bench(device, sizes or (GPU if kind == "cuda" else SMALL))
    return bench.all(say)


class _Bench:
    def __init__(self, device: str, sizes: Sizes) -> None:
        self._device = torch.device(device)
        self._cuda = self._device.type == "cuda"
        self._sizes = sizes
        if self._cuda:
            # Events and streams are those of the device that is current.
            torch.cuda.set_device(self._device.index or 0)
            self._device = torch.device("cuda", torch.cuda.current_device())

    def all(self, say: Say) -> Measured:
        context = self._context_gib()
        say("matrix products")
        matmuls = list(self._matmuls())
        rates = dict(self._rates())
        say("attention")
        attention = [self._attention(*one) for one in self._sizes.sequences]
        say("memory, copies and launches")
        pinned, pageable = self._copies()
        kernel_us, launch_us, dispatch_us = self._launches()
        name, capability, sms, memory = self._facts()
        return Measured(
            name=name,
            capability=capability,
            sms=sms,
            memory_gib=memory,
            context_gib=context,
            matmuls=matmuls,
            rates=rates,
            attention=attention,
            bandwidth_gb_s=self._bandwidth(),
            copy_gb_s=pinned,
            pageable_gb_s=pageable,
            launch_us=launch_us,
            kernel_us=kernel_us,
            dispatch_us=dispatch_us,
        )

    def _facts(self) -> tuple[str, tuple[int, int], int, float]:
        if self._cuda:
            p: Any = torch.cuda.get_device_properties(self._device)
            memory = p.total_memory / GIB
            return p.name, (p.major, p.minor), p.multi_processor_count, memory
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return "CPU", (0, 0), os.cpu_count() or 1, pages / GIB

    def _context_gib(self) -> float:
        """Taken of the device before anything of the script's own is there."""
        if not self._cuda:
            return 0.0
        torch.empty(1, device=self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        return (total - free - torch.cuda.memory_reserved(self._device)) / GIB

    # Times

    def _sync(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def ns(self, act: Callable[[], object]) -> float:
        """The median time that a call's kernels take."""
        for _ in range(3):
            act()
        self._sync()
        times: list[float] = []
        # One after the other, so that the host's launch is hidden behind kernels.
        calls = _calls_for(self._once(act, 1)) if self._cuda else 1
        until = time.perf_counter() + self._sizes.seconds
        while len(times) < _AT_LEAST or (
            time.perf_counter() < until and len(times) < _MOST
        ):
            times.append(self._once(act, calls))
        return max(median(times), 1.0)

    def _once(self, act: Callable[[], object], calls: int) -> float:
        """Nanoseconds of a call, the mean of so many."""
        if not self._cuda:
            began = time.perf_counter_ns()
            act()
            return float(time.perf_counter_ns() - began)
        event: Any = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            act()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e6 / calls

    # What is measured

    def _random(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(*shape, device=self._device).to(dtype)

    def _product_ns(self, m: int, n: int, k: int, dtype: torch.dtype) -> float:
        a, b = self._random(m, k, dtype=dtype), self._random(k, n, dtype=dtype)
        return self.ns(lambda: torch.mm(a, b))

    def _matmuls(self) -> Iterator[MatmulTime]:
        for m, n, k in self._sizes.matmuls:
            ns = self._product_ns(m, n, k, torch.bfloat16)
            yield MatmulTime(dtype="bfloat16", itemsize=2, shape=(1, m, n, k), ns=ns)

    def _rates(self) -> Iterator[tuple[str, float]]:
        """TFLOP/s of a large product, by type."""
        size = self._sizes.large
        flops = 2.0 * size**3

        def rate(ns: float) -> float:
            return flops / ns / 1e3

        for dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            yield name, rate(self._product_ns(size, size, size, dtype))
        before = torch.get_float32_matmul_precision()
        try:
            for name, precision in (("float32", "highest"), ("tf32", "high")):
                torch.set_float32_matmul_precision(precision)
                yield name, rate(self._product_ns(size, size, size, torch.float32))
        finally:
            torch.set_float32_matmul_precision(before)
        if self._cuda and torch.cuda.get_device_capability(self._device) >= (8, 9):
            yield "float8_e4m3fn", rate(self._fp8_ns(size))

    def _fp8_ns(self, size: int) -> float:
        a = self._random(size, size, dtype=torch.float8_e4m3fn)
        b = self._random(size, size, dtype=torch.float8_e4m3fn).t()
        one = torch.ones((), device=self._device)

        def act() -> object:
            return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)

        return self.ns(act)

    def _attention(self, batch: int, length: int) -> AttentionTime:
        heads, head_dim = self._sizes.heads, 128
        shape = (batch, heads, length, head_dim)
        q, k, v = (
            self._random(*shape, dtype=torch.bfloat16).requires_grad_()
            for _ in range(3)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradient = torch.ones_like(out)

        def forward() -> None:
            with torch.no_grad():
                F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def backward() -> None:
            torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

        call = Attention(
            batch=batch,
            heads=heads,
            kv_heads=heads,
            queries=length,
            keys=length,
            head_dim=head_dim,
            value_dim=head_dim,
            itemsize=2,
            causal=True,
        )
        return AttentionTime(
            call=call, forward_ns=self.ns(forward), backward_ns=self.ns(backward)
        )

    def _bandwidth(self) -> float:
        """Bytes read and written per nanosecond, which is GB/s."""
        source = torch.ones(self._sizes.moved // 4, device=self._device)
        target = torch.empty_like(source)
        ns = self.ns(lambda: torch.mul(source, 2.0, out=target))
        return 2 * self._sizes.moved / ns

    def _copies(self) -> tuple[float, float]:
        """From host to device, out of pinned and out of pageable memory."""
        size = self._sizes.moved // 4
        target = torch.empty(size, dtype=torch.uint8, device=self._device)
        pageable, pinned = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
        if self._cuda:
            pinned = pinned.pin_memory()

        def speed(source: torch.Tensor) -> float:
            return size / self.ns(lambda: target.copy_(source, non_blocking=True))

        return speed(pinned), speed(pageable)

    def _launches(self) -> tuple[float, float, float]:
        """Microseconds: the shortest kernel, until one starts, a call of the host's."""
        small = torch.zeros(8, device=self._device)

        def act() -> None:
            small.add_(1)

        def many() -> None:
            for _ in range(100):
                small.add_(1)

        each = self.ns(many) / 100 / 1e3
        dispatch = _host_ns(many, self._sync) / 100 / 1e3
        round_trip = _host_ns(act, self._sync, and_wait=True) / 1e3
        kernel = self._kernel_us(many) / 100 if self._cuda else each
        return kernel, max(round_trip - dispatch - kernel, 0.5), dispatch

    def _kernel_us(self, many: Callable[[], object]) -> float:
        """Of launches that wait behind a long kernel: the host is ahead of them."""
        size = self._sizes.large
        long = self._random(size, size, dtype=torch.bfloat16)
        event: Any = torch.cuda.Event
        times = []
        for _ in range(_AT_LEAST):
            begin, end = event(enable_timing=True), event(enable_timing=True)
            for _ in range(8):
                torch.mm(long, long)
            begin.record()
            many()
            end.record()
            end.synchronize()
            times.append(float(begin.elapsed_time(end)) * 1e3)
        return median(times)


_LONG_NS = 2e6
"""A stretch of kernels beside which the first one's launch is nothing."""


def _calls_for(ns: float) -> int:
    """How often something that takes so long is called in a stretch."""
    return max(1, min(50, round(_LONG_NS / max(ns, 1.0))))


def _host_ns(
    act: Callable[[], object], sync: Callable[[], None], *, and_wait: bool = False
) -> float:
    """The host's median time for a call, with the device idle before it."""
    times = []
    for _ in range(50):
        sync()
        began = time.perf_counter_ns()
        act()
        if and_wait:
            sync()
        times.append(time.perf_counter_ns() - began)
    sync()
    return float(median(times))
