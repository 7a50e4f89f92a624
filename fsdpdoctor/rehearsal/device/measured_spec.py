"""A device's file from what was measured on it. No torch in here.

The rates that the file gives are those with which the prices of `pricing/` come to
the measured times: a share is found by asking what a price would be at a share of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from fsdpdoctor.rehearsal.device.pricing.attention import (
    Attention,
    backward_ns,
    forward_ns,
)
from fsdpdoctor.rehearsal.device.pricing.matmul import matmul_ns
from fsdpdoctor.rehearsal.device.spec import DeviceSpec

COMM_SMS = 16
"""NCCL's default of channels: one device alone communicates with nobody."""

NCCL_GIB = 1.0
"""Of buffers, beside the context that one process alone has."""

TILE = (128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulTime:
    """One product."""

    dtype: str
    itemsize: int
    shape: tuple[int, int, int, int]  # batch, rows, columns, inner
    ns: float

    @property
    def tflops(self) -> float:
        batch, m, n, k = self.shape
        return 2 * batch * m * n * k / self.ns / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTime:
    """One call of attention, forward and backward."""

    call: Attention
    forward_ns: float
    backward_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that was measured on a device."""

    name: str
    capability: tuple[int, int]
    sms: int
    memory_gib: float
    context_gib: float
    matmuls: Sequence[MatmulTime]  # bfloat16, from small to large
    rates: Mapping[str, float]  # TFLOP/s of one large product, by type
    attention: Sequence[AttentionTime]
    bandwidth_gb_s: float
    copy_gb_s: float
    pageable_gb_s: float
    launch_us: float
    kernel_us: float
    dispatch_us: float  # of the host, for an operation

    @property
    def host_scale(self) -> float:
        """What `rehearse --host` is to be for this machine's processor."""
        from fsdpdoctor.rehearsal.device.host_costs import HostCosts

        return self.dispatch_us * 1000 / HostCosts().op_ns


def spec_of(measured: Measured, price_per_hour: float | None = None) -> DeviceSpec:
    """The device, so that its prices are the measured times."""
    peak = max(time.tflops for time in measured.matmuls)
    large = measured.rates["bfloat16"]
    of_type = {name: rate / large * peak for name, rate in measured.rates.items()}
    start = DeviceSpec(
        name=f"{measured.name} (modelled)",
        sources=("measured on the device itself by fsdpdoctor calibrate",),
        capability=measured.capability,
        sms=measured.sms,
        memory_gib=round(measured.memory_gib, 2),
        context_gib=round(measured.context_gib + NCCL_GIB, 2),
        bandwidth_gb_s=_rounded(measured.bandwidth_gb_s),
        bandwidth_share=1.0,
        bf16_tflops=_rounded(peak),
        fp16_tflops=_rounded(of_type.get("float16", peak)),
        tf32_tflops=_rounded(of_type.get("tf32", peak / 2)),
        fp32_tflops=_rounded(of_type.get("float32", peak / 16)),
        fp8_tflops=_rounded(of_type.get("float8_e4m3fn", peak)),
        matmul_share=1.0,
        tile=TILE,
        attention_forward_tflops=_rounded(peak),
        attention_backward_tflops=_rounded(peak),
        copy_gb_s=_rounded(measured.copy_gb_s),
        pageable_gb_s=_rounded(measured.pageable_gb_s),
        launch_us=_rounded(measured.launch_us),
        kernel_us=_rounded(measured.kernel_us),
        comm_sms=min(COMM_SMS, max(measured.sms // 8, 1)),
        price_per_hour=price_per_hour,
    )
    return _with_attention(_with_matmuls(start, measured), measured)


def _with_matmuls(spec: DeviceSpec, measured: Measured) -> DeviceSpec:
    """The larger half say what share of the peak is kept up; small ones wait for more
    than arithmetic.
    """
    large = sorted(measured.matmuls, key=lambda time: time.shape)[-_half(measured) :]
    share = median(_price(spec, time) / time.ns for time in large)
    return replace(spec, matmul_share=_rounded(share))


def _half(measured: Measured) -> int:
    return max(1, len(measured.matmuls) // 2)


def _price(spec: DeviceSpec, time: MatmulTime) -> float:
    return matmul_ns(spec, time.dtype, time.itemsize, time.shape)


def _with_attention(spec: DeviceSpec, measured: Measured) -> DeviceSpec:
    forward = median(
        forward_ns(spec, a.call) / a.forward_ns for a in measured.attention
    )
    backward = median(
        backward_ns(spec, a.call) / a.backward_ns for a in measured.attention
    )
    return replace(
        spec,
        attention_forward_tflops=_rounded(spec.attention_forward_tflops * forward),
        attention_backward_tflops=_rounded(spec.attention_backward_tflops * backward),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def errors_of(spec: DeviceSpec, measured: Measured) -> dict[str, list[float]]:
    """How far each price is from its measurement, by kind: 0.1 is a tenth too long."""
    return {
        "matrix products": [_price(spec, t) / t.ns - 1 for t in measured.matmuls],
        "attention": [
            part
            for a in measured.attention
            for part in (
                forward_ns(spec, a.call) / a.forward_ns - 1,
                backward_ns(spec, a.call) / a.backward_ns - 1,
            )
        ],
    }


def to_toml(spec: DeviceSpec, comment: str) -> str:
    """As `load_spec` reads it back."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name} = {_toml(value)}" for name, value in _values(spec)]
    return "\n".join(lines) + "\n"


def _values(spec: DeviceSpec) -> Iterator[tuple[str, Any]]:
    for name in spec.__dataclass_fields__:
        value = getattr(spec, name)
        if value is not None:
            yield name, value


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
