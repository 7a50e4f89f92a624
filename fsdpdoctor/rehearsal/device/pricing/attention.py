"""Attention as one kernel, as CUDA's flash attention has it."""

from __future__ import annotations

from dataclasses import dataclass

from fsdpdoctor.rehearsal.device.pricing.memory import bytes_ns
from fsdpdoctor.rehearsal.device.spec import DeviceSpec

_RAMP = 256
"""Rows of keys that a kernel takes to get to its rate."""

_MASKED = 0.75
"""Of the rate, where an arbitrary mask is read: the memory-efficient kernel's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One call: heads are the queries'."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    itemsize: int
    causal: bool
    masked: bool = False

    @property
    def flops(self) -> int:
        """Of the forward pass."""
        full = 2 * self.batch * self.heads * self.queries * self.keys
        full *= self.head_dim + self.value_dim
        return full // 2 if self.causal else full

    @property
    def moved(self) -> int:
        """Bytes of queries, keys, values and output."""
        ours = self.batch * self.heads * self.queries * (self.head_dim + self.value_dim)
        theirs = self.batch * self.kv_heads * self.keys
        return (ours + theirs * (self.head_dim + self.value_dim)) * self.itemsize


def forward_ns(spec: DeviceSpec, call: Attention) -> int:
    """The forward kernel."""
    return _ns(spec, call, call.flops, spec.attention_forward_tflops, call.moved)


def backward_ns(spec: DeviceSpec, call: Attention) -> int:
    """The backward kernel: five products for the forward's two."""
    flops = call.flops * 5 // 2
    return _ns(spec, call, flops, spec.attention_backward_tflops, 3 * call.moved)


def _ns(
    spec: DeviceSpec, call: Attention, flops: int, tflops: float, moved: int
) -> int:
    rate = tflops * 1e3  # FLOP per ns
    # Smaller heads leave the tensor cores waiting for softmax, which does not shrink:
    # FlashAttention-2 reaches a tenth less at 64 than at 128.
    rate *= min(1.0, 0.8 + call.head_dim / 640)
    rate *= call.keys / (call.keys + _RAMP)
    if call.masked:
        rate *= _MASKED
    if call.itemsize > 2:
        rate *= spec.tf32_tflops / spec.bf16_tflops
    return round(max(flops / rate, bytes_ns(spec, moved)) + 2 * spec.kernel_us * 1e3)
