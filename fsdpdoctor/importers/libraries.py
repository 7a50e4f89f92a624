"""Which kernels are a communication library's, and which are known to compute.

A library that has a namespace of its own for communication is known by it, whatever
the function: DeepEP's `notify_dispatch` and `cached_notify` wait for other ranks, too.
Where a namespace holds compute as well (aiter, FlashInfer), the functions are named.
"""

from __future__ import annotations

import re
from functools import cache

from fsdpdoctor.importers.known_libraries import COMPUTE, LIBRARIES


@cache  # where it is first asked for: NCCL's kernels ask for no other library's
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.X)


def library_of(kernel: str) -> str | None:
    """The library that a kernel's name belongs to; None: no communication."""
    found = (one.name for one in LIBRARIES if _compiled(one.pattern).search(kernel))
    return next(found, None)


def computes(kernel: str) -> bool:
    """Whether a kernel is known to compute, wherever it runs."""
    return _compiled(COMPUTE).search(kernel) is not None
