"""Sharded modules that were used past FSDP2's hooks.

A method other than `forward`, or `forward` called by name, meets sharded
parameters; torch then refuses to mix them with plain tensors. The script ends of
that error, or goes on: what is looked at here is the error that ended it.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from torch import nn

from fsdpdoctor.recorder import border

_MIXED = "mixed torch.Tensor and DTensor"
"""In the message of torch.distributed.tensor's refusal, in torch 2.6 to 2.13."""

_CALL = nn.Module._call_impl.__code__


def bypassed_method(error: BaseException | None, module_class: Any) -> str | None:
    """The method of a sharded module that ran without its hooks; None: none did."""
    if error is None or module_class is None:
        return None
    if _MIXED not in border.words_of(error):
        return None
    calls: list[tuple[Any, CodeType]] = []
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        calls.append((frame.f_locals.get("self"), frame.f_code))
        trace = trace.tb_next
    sharded = [owner for owner, _ in calls if isinstance(owner, module_class)]
    if not sharded:
        return None
    own = [code for owner, code in calls if owner is sharded[-1]]
    # Called as a module, its hooks ran: it is another module's weight that it read.
    return None if _CALL in own else own[0].co_name
