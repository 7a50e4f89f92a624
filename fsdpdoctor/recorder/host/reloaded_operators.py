"""Operators that FSDP2 defines anew, where its module is imported again.

torch keeps what it has handed out of an operator, and forgets it by the operator's name
as the operator goes. `_fsdp_collectives` defines `all_gather_copy_in` over several
lines, and the name that is kept for it begins with an end of line (torch 2.13): it is
not forgotten, and leads to memory that has been given back. Without us a job of two
ranks that imports it again and again fails of it nine times of ten, within 28 times
(`std::bad_alloc`, or the schema of another operator); with what we allocate besides it
fails sooner. So the names are put right while we record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fsdpdoctor.recorder.patching import unseen

LIBRARY: Any = torch.library
FORGETS = "_clear_torch_ops_cache"
"""What forgets them; not in every torch."""


def by_right_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """Have it forget those that are meant."""

    @unseen
    def forget(names: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(names, set):
            names = {"".join(name.split()) for name in names}
        return original(names, *args, **kwargs)

    return forget
