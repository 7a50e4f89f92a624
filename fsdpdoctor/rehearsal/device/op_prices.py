"""What an operator of torch takes on a device, from its arguments.

Products and attention go by FLOPs, everything else by the bytes that one kernel of
CUDA's reads and writes. An operator that is no kernel there has none here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from fsdpdoctor.rehearsal.device.pricing import attention
from fsdpdoctor.rehearsal.device.pricing.attention import Attention
from fsdpdoctor.rehearsal.device.pricing.matmul import matmul_ns, peak_tflops
from fsdpdoctor.rehearsal.device.pricing.memory import kernel_ns
from fsdpdoctor.rehearsal.device.spec import DeviceSpec
from fsdpdoctor.rehearsal.device.virtual_device import Kernel

Tensors = Sequence[torch.Tensor]
Price = Callable[[DeviceSpec, tuple[Any, ...], Tensors, Tensors], Kernel]

_aten: Any = torch.ops.aten


def tensor_bytes(tensor: torch.Tensor) -> int:
    """What a kernel reads of it: a value that is repeated, once."""
    if not tensor.numel():
        return 0
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count * tensor.element_size()


def _all_bytes(tensors: Tensors) -> int:
    return sum(tensor_bytes(tensor) for tensor in tensors)


def memory_kernel(spec: DeviceSpec, moved: float) -> Kernel:
    """A kernel that moves so many bytes."""
    return Kernel(length_ns=kernel_ns(spec, moved), kind="memory")


def price(
    spec: DeviceSpec, func: Any, args: tuple[Any, ...], ins: Tensors, outs: Tensors
) -> Kernel | None:
    """The kernel of an operator; None where there is none."""
    packet = func.overloadpacket
    if packet in NO_KERNEL or func.namespace.startswith("_c10d_functional"):
        return None
    special = _PRICES.get(packet)
    if special is not None:
        return special(spec, args, ins, outs)
    if packet in flop_registry:
        return _by_flops(spec, func, args, ins, outs)
    return memory_kernel(spec, _moved(func, ins, outs))


def _moved(func: Any, ins: Tensors, outs: Tensors) -> int:
    name = str(func.overloadpacket).rpartition(".")[2]
    if name in _WRITES_ONLY:
        return _all_bytes(outs or ins[:1])
    if name in _GATHERS:
        return 2 * _all_bytes(outs)
    read = _all_bytes(ins)
    written = _all_bytes(outs)
    return read + written


def _dtype(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "float32" and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return name


def _product(
    spec: DeviceSpec, a: torch.Tensor, shape: tuple[int, int, int, int]
) -> Kernel:
    length = matmul_ns(spec, _dtype(a), a.element_size(), shape)
    return Kernel(length_ns=length, kind="matmul")


def _mm(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    a, b = ins[-2], ins[-1]
    return _product(spec, a, (1, a.shape[0], b.shape[1], a.shape[1]))


def _scaled_mm(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    a, b = args[0], args[1]
    return _product(spec, a, (1, a.shape[0], b.shape[1], a.shape[1]))


def _bmm(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    a, b = ins[-2], ins[-1]
    return _product(spec, a, (a.shape[0], a.shape[1], b.shape[2], a.shape[2]))


def _grouped_mm(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    """Experts of even load."""
    a, b = args[0], args[1]
    if a.ndim == 2 and b.ndim == 3:
        experts = b.shape[0]
        rows = -(-a.shape[0] // experts)
        return _product(spec, a, (experts, rows, b.shape[2], a.shape[1]))
    if a.ndim == 2:  # weight gradients
        experts = outs[0].shape[0]
        inner = -(-a.shape[1] // experts)
        return _product(spec, a, (experts, a.shape[0], b.shape[1], inner))
    return _product(spec, a, (a.shape[0], a.shape[1], b.shape[-1], a.shape[2]))


def _by_flops(
    spec: DeviceSpec, func: Any, args: tuple[Any, ...], ins: Tensors, outs: Tensors
) -> Kernel:
    """Convolutions and the like."""
    result: Any = tuple(outs) if len(outs) != 1 else outs[0]
    if func.overloadpacket is _aten.convolution_backward:
        # A picture needs no gradient: what is not asked for has no place in `outs`.
        made = iter(outs)
        result = tuple(next(made) if asked else None for asked in args[-1])
    flops = flop_registry[func.overloadpacket](*args, out_val=result)
    rate = peak_tflops(spec, _dtype(ins[0])) * 1e3 * spec.matmul_share * 0.8
    moved = kernel_ns(spec, _all_bytes(ins) + _all_bytes(outs))
    return Kernel(length_ns=max(round(flops / rate), moved), kind="matmul")


def _attention(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    call = _call(ins[:3], causal=_flag(args, 4))
    return Kernel(length_ns=attention.forward_ns(spec, call), kind="attention")


def _attention_backward(
    spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors
) -> Kernel:
    call = _call(ins[1:4], causal=_flag(args, 11))
    return Kernel(length_ns=attention.backward_ns(spec, call), kind="attention")


def _efficient(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    call = _call(ins[:3], causal=_flag(args, 6), masked=True)
    return Kernel(length_ns=attention.forward_ns(spec, call), kind="attention")


def _efficient_backward(
    spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors
) -> Kernel:
    call = _call(ins[1:4], causal=_flag(args, 11), masked=True)
    return Kernel(length_ns=attention.backward_ns(spec, call), kind="attention")


def _flag(args: tuple[Any, ...], at: int) -> bool:
    """Whether attention is causal, as the operator's schema places it."""
    return len(args) > at and args[at] is True


def _call(tensors: Tensors, *, causal: bool, masked: bool = False) -> Attention:
    q, k, v = tensors
    batch, heads, queries, head_dim = q.shape
    return Attention(
        batch=batch,
        heads=heads,
        kv_heads=k.shape[1],
        queries=queries,
        keys=k.shape[2],
        head_dim=head_dim,
        value_dim=v.shape[3],
        itemsize=q.element_size(),
        causal=causal,
        masked=masked,
    )


def _softmax(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    """Long rows are read twice: for the largest and the sum, then to write."""
    return memory_kernel(spec, 2 * _all_bytes(ins) + _all_bytes(outs))


def _embedding_backward(
    spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors
) -> Kernel:
    """Zeros, and the rows added in the order of their indices."""
    return memory_kernel(spec, _all_bytes(outs) + 3 * _all_bytes(ins))


def _norm_backward(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    """The weight's gradient is a second kernel over gradient and input."""
    return memory_kernel(spec, 2 * _all_bytes(ins) + _all_bytes(outs))


def _adam(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    """Reads all, writes all but the gradients."""
    read = _all_bytes(ins)
    return memory_kernel(spec, 2 * read - _all_bytes(args[1]))


def _nll(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    """Reads one number of each row."""
    return memory_kernel(spec, 32 * ins[1].numel())


def _copy_in(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    return memory_kernel(spec, 2 * _all_bytes(args[0]))


def _copy_out(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    return memory_kernel(spec, 2 * tensor_bytes(args[0]))


def _cat_out(spec: DeviceSpec, args: Any, ins: Tensors, outs: Tensors) -> Kernel:
    return memory_kernel(spec, _all_bytes(ins))


NO_KERNEL = {
    getattr(_aten, name)
    for name in (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
        "lift_fresh",
        "is_same_size",
    )
}

_WRITES_ONLY = {
    "zero_", "fill_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like",
    "new_zeros", "new_ones", "new_full", "arange", "normal_", "uniform_", "bernoulli_",
    "random_", "randn", "rand", "randint", "randn_like", "rand_like", "eye", "linspace",
    "scalar_tensor", "exponential_", "log_normal_", "trunc_normal_", "erfinv_",
    "randperm", "_foreach_zero_",
}  # fmt: skip

_GATHERS = {"embedding", "index_select", "index", "gather", "take"}

_PRICES: dict[Any, Price] = {
    _aten.mm: _mm,
    _aten.addmm: _mm,
    _aten.bmm: _bmm,
    _aten.baddbmm: _bmm,
    _aten._scaled_mm: _scaled_mm,
    _aten._scaled_dot_product_flash_attention: _attention,
    _aten._scaled_dot_product_flash_attention_backward: _attention_backward,
    _aten._scaled_dot_product_efficient_attention: _efficient,
    _aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
    _aten._softmax: _softmax,
    _aten._log_softmax: _softmax,
    _aten.embedding_dense_backward: _embedding_backward,
    _aten.native_layer_norm_backward: _norm_backward,
    _aten.nll_loss_forward: _nll,
}
for _name, _of_name in {
    "_grouped_mm": _grouped_mm,
    "_fused_adamw_": _adam,
    "_fused_adam_": _adam,
}.items():
    if hasattr(_aten, _name):
        _PRICES[getattr(_aten, _name)] = _of_name


def add_fsdp_prices() -> None:
    """FSDP2's own operators, which exist once it is imported."""
    fsdp: Any = torch.ops.fsdp
    for name, of_name in (
        ("all_gather_copy_in", _copy_in),
        ("split_with_sizes_copy", _copy_out),
        ("chunk_cat", _cat_out),
    ):
        if hasattr(fsdp, name):
            _PRICES[getattr(fsdp, name)] = of_name
