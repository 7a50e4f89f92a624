"""Floating point operations of the counted step, by torch's own formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import flop_counter

from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.recorder.fsdp2.internals import in_backward
from fsdpdoctor.schema import UNKNOWN

Formula = Callable[..., int]

_aten: Any = torch.ops.aten
_BY_SHAPES = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm}
"""Nothing but the shapes of their tensors counts; a model has few different ones."""


class FlopCount:
    """What has been computed; UNKNOWN once a formula did not fit."""

    def __init__(self) -> None:
        self._formulas = _formulas()
        self._of: dict[Any, Formula | None] = {}  # by operator, as they come
        self.total = 0
        self.recomputed = 0

    def saw(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operator has run."""
        try:
            formula = self._of[func]
        except KeyError:
            formula = self._of[func] = self._formula_of(func)
        if formula is None or self.total == UNKNOWN:
            return
        try:
            found = int(formula(*args, **(kwargs or {}), out_val=result))
        except (TypeError, ValueError, AssertionError, IndexError) as error:
            let_through(error)
            self.total = self.recomputed = UNKNOWN
            return
        self.total += found
        # Derivatives are computed without gradients of their own.
        if in_backward() and torch.is_grad_enabled():
            self.recomputed += found

    def _formula_of(self, func: Any) -> Formula | None:
        packet = getattr(func, "overloadpacket", None)
        formula = self._formulas.get(packet)
        if formula is None or packet not in _BY_SHAPES:
            return formula
        return _kept(formula)


def _kept(formula: Formula) -> Formula:
    """The same, asked once of tensors of the same shapes: it takes 20 us."""
    counts: dict[tuple[torch.Size, ...], int] = {}

    def counted(*args: Any, **kwargs: Any) -> int:
        shapes = tuple(one.shape for one in args if isinstance(one, torch.Tensor))
        if shapes not in counts:
            counts[shapes] = formula(*args, **kwargs)
        return counts[shapes]

    return counted


def _formulas() -> Mapping[Any, Formula]:
    """Those of `torch.utils.flop_counter`, and attention's of the CPU, which has none
    there.
    """
    known: dict[Any, Formula] = dict(flop_counter.flop_registry)
    of: Any = flop_counter
    forward = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    backward = getattr(
        _aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None
    )
    if forward is None or backward is None:
        return known

    def attended(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
        return int(of.sdpa_flop_count(q.shape, k.shape, v.shape))

    def derived(grad: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
        shapes = grad.shape, q.shape, k.shape, v.shape
        return int(of.sdpa_backward_flop_count(*shapes))

    return {forward: attended, backward: derived, **known}
