"""Communication libraries, and what their kernels' names look like: `libraries.toml`.

A library that has a namespace of its own for communication is known by it, whatever
the function: DeepEP's `notify_dispatch` and `cached_notify` wait for other ranks, too.
Where a namespace holds compute as well (aiter, FlashInfer), the functions are named.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache  # read where the first kernel is: most commands see none
def _patterns() -> tuple[dict[str, re.Pattern[str]], re.Pattern[str]]:
    """By library, the first match wins; and of kernels that compute."""
    import tomllib

    path = Path(__file__).with_suffix(".toml")
    table = tomllib.loads(path.read_text(encoding="utf-8"))

    def compiled(pattern: str) -> re.Pattern[str]:
        return re.compile(pattern.replace("<namespace>", table["namespace"]), re.X)

    libraries = {one["name"]: compiled(one["pattern"]) for one in table["library"]}
    return libraries, compiled(table["compute"])


def library_of(kernel: str) -> str | None:
    """The library that a kernel's name belongs to; None: no communication."""
    libraries, _ = _patterns()
    return next((name for name, one in libraries.items() if one.search(kernel)), None)


def computes(kernel: str) -> bool:
    """Whether a kernel is known to compute, wherever it runs."""
    return _patterns()[1].search(kernel) is not None
