"""Functions that CUDA has one kernel for, and that torch would take apart here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.rehearsal.device.memory.storages import is_shape, on_device

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_aten: Any = torch.ops.aten
_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_FLASH_HEAD = 256
_IMPORTED: Any = torch.backends.cuda


def handlers() -> dict[Any, Handler]:
    """By the function that Python calls."""
    found: dict[Any, Handler] = {F.scaled_dot_product_attention: _attention}
    for owner in (F, torch):
        if hasattr(owner, "rms_norm"):
            found[getattr(owner, "rms_norm")] = _rms_norm  # noqa: B009
    return found


def take_over(patches: Patches) -> None:
    """Stand where functions of torch's that are written in Python look for it."""
    attention: Any = F.scaled_dot_product_attention

    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        tensors = (*args, *kwargs.values())
        if torch._C._len_torch_function_stack() or any(
            hasattr(t, "_local_tensor") for t in tensors
        ):
            return attention(*args, **kwargs)
        return _attention(attention, args, kwargs)

    patches.put(F, "scaled_dot_product_attention", scaled_dot_product_attention)


def _plain(*tensors: Any) -> bool:
    return all(
        t is None or (is_shape(t) and on_device(t) and not hasattr(t, "_local_tensor"))
        for t in tensors
    )


# Attention


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    q, k, v = given["query"], given["key"], given["value"]
    mask = given.get("attn_mask")
    if not _plain(q, k, v, mask) or q.ndim != 4:
        return func(*args, **kwargs)
    dropout, causal = given.get("dropout_p", 0.0), given.get("is_causal", False)
    scale = given.get("scale")
    if given.get("enable_gqa") and k.shape[1] != q.shape[1]:
        k, v = (_repeated(t, q.shape[1]) for t in (k, v))
    fits = q.dtype in _FLASH_DTYPES and q.shape[-1] <= _FLASH_HEAD
    if mask is None and fits and _IMPORTED.flash_sdp_enabled():
        q, k, v = (_padded(t) for t in (q, k, v))
        out = _aten._scaled_dot_product_flash_attention(
            q, k, v, dropout, causal, False, scale=scale
        )[0]
        return out[..., : given["value"].shape[-1]]
    if _IMPORTED.mem_efficient_sdp_enabled():
        bias = _bias(mask, q, k)
        grads = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        return _aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, grads, dropout, causal, scale=scale
        )[0]
    return _aten._scaled_dot_product_attention_math(
        q, k, v, mask, dropout, causal, None, scale=scale
    )[0]


def _repeated(kv: torch.Tensor, heads: int) -> torch.Tensor:
    """Each head for its group of queries: flash attention reads it in place."""
    return _ShareHeads.apply(kv, heads)  # type: ignore[no-untyped-call, no-any-return]


class _ShareHeads(torch.autograd.Function):
    """Heads repeated without a copy; gradients of a group are added by the kernel."""

    @staticmethod
    def forward(ctx: Any, kv: torch.Tensor, heads: int) -> torch.Tensor:
        batch, own, length, size = kv.shape
        ctx.shape = (batch, own, heads // own, length, size)
        return (
            kv.unsqueeze(2)
            .expand(ctx.shape)
            .as_strided(
                (batch, heads, length, size),
                (kv.stride(0), 0, kv.stride(2), kv.stride(3)),
            )
        )

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        batch, _, length, size = grads[0].shape
        return grads[0].reshape(batch, *ctx.shape[1:3], length, size).sum(2), None


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """Heads whose size is no multiple of 8 are padded."""
    odd = tensor.shape[-1] % 8
    return F.pad(tensor, (0, 8 - odd)) if odd else tensor


def _bias(mask: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = mask.to(q.dtype)
    return mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


# RMSNorm


def _rms_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("input", "normalized_shape", "weight", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, weight = given["input"], given.get("weight")
    if not _plain(x, weight):
        return func(*args, **kwargs)
    if weight is None:
        return _RmsNorm.apply(x, x.new_empty(()))  # type: ignore[no-untyped-call]
    return _RmsNorm.apply(x, weight)  # type: ignore[no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    """CUDA's fused kernels: it keeps the input and one number a row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        shape = x.shape[x.ndim - weight.ndim :] if weight.ndim else x.shape[-1:]
        out, _, rstd = _aten.native_layer_norm(x, list(shape), None, None, 1e-5)
        ctx.save_for_backward(x, weight, rstd)
        ctx.shape = list(shape)
        result: torch.Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, rstd = ctx.saved_tensors
        affine = weight if weight.ndim else None
        mask = [True, affine is not None and ctx.needs_input_grad[1], False]
        dx, dw, _ = _aten.native_layer_norm_backward(
            grads[0], x, ctx.shape, rstd, rstd, affine, None, mask
        )
        return dx, dw if affine is not None else None
