"""`torch.autocast("cuda")` for tensors that C++ does not know to be CUDA's.

The lists are those of torch.amp's documentation for CUDA; a weight's cast is kept as
long as autocast keeps it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.rehearsal.device.memory.storages import is_shape, on_device

_on: Callable[[str], bool] = torch.is_autocast_enabled
_dtype: Callable[[str], torch.dtype] = torch.get_autocast_dtype
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _named(owners: tuple[Any, ...], names: str) -> frozenset[Any]:
    found = [getattr(o, n, None) for o in owners for n in names.split()]
    return frozenset(f for f in found if f is not None)


_OWNERS = (torch, torch.Tensor, F)
LOWER = _named(
    _OWNERS,
    "matmul __matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear mm "
    "mv prelu einsum multi_head_attention_forward scaled_dot_product_attention",
)
FLOAT32 = _named(
    _OWNERS,
    "acos asin cosh cumprod cumsum dist erfinv exp expm1 group_norm layer_norm log "
    "log10 log1p log2 norm pow __pow__ prod reciprocal rsqrt sinh softplus sum tan "
    "softmax log_softmax softmin renorm binary_cross_entropy_with_logits cosine_"
    "similarity cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss kl_div gaussian_"
    "nll_loss poisson_nll_loss cosine_embedding_loss cdist hinge_embedding_loss",
)


class Autocast:
    """What arguments become before a function sees them."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[weakref.ref[Any], torch.Tensor]] = {}

    @staticmethod
    def on() -> bool:
        """Whether the script asked for it."""
        return _on("cuda")

    def forget(self) -> None:
        """The outermost region has ended."""
        self._casts.clear()

    def take_over(self, patches: Patches) -> None:
        """Hear of that end."""
        clear = torch.clear_autocast_cache

        def clear_autocast_cache() -> None:
            self.forget()
            clear()

        patches.put(torch, "clear_autocast_cache", clear_autocast_cache)

    def cast(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The arguments of a call."""
        if func in LOWER:
            dtype = _dtype("cuda")
        elif func in FLOAT32:
            dtype = torch.float32
        else:
            return args, kwargs
        return (
            tuple(self._cast(arg, dtype) for arg in args),
            {name: self._cast(arg, dtype) for name, arg in kwargs.items()},
        )

    def _cast(self, arg: Any, dtype: torch.dtype) -> Any:
        if isinstance(arg, list | tuple):
            return type(arg)(self._cast(one, dtype) for one in arg)
        if not isinstance(arg, torch.Tensor):
            return arg
        if arg.dtype == dtype or arg.dtype not in _FLOATS or not _is_cuda(arg):
            return arg
        kept = arg.is_leaf and arg.requires_grad and arg.dtype == torch.float32
        if not (kept and torch.is_autocast_cache_enabled()):
            return arg.to(dtype)
        found = self._casts.get(id(arg))
        if found is not None and found[0]() is arg and found[1].dtype == dtype:
            return found[1]
        result = arg.to(dtype)
        self._casts[id(arg)] = weakref.ref(arg), result
        return result


def _is_cuda(tensor: torch.Tensor) -> bool:
    local = getattr(tensor, "_local_tensor", None)
    tensor = tensor if local is None else local
    return is_shape(tensor) and on_device(tensor)
