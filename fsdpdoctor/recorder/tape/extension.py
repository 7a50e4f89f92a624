"""What `_tape.c` gives, where it was built."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

_VERSION = 1
"""Of its rows."""

Row = tuple[int, int, int, int, Any, int, int]
"""Code, call, time in nanoseconds, facts, subject, and two numbers of its own."""


class Tape(Protocol):
    """Rows that hooks have written, and the hooks' own state."""

    off: bool
    """Whether nothing is written any more."""

    def take_error(self) -> Exception | None:
        """What turned it off, an error of ours; once."""
        ...

    def take(self) -> list[Row]:
        """Take all rows."""
        ...

    def take_cost(self) -> int:
        """The nanoseconds that hooks took since the last call."""
        ...

    def __len__(self) -> int: ...


def extension() -> Any:
    """The compiled module; None where it was not built."""
    try:
        made = importlib.import_module("fsdpdoctor._tape")
    except ImportError:
        return None
    return made if getattr(made, "VERSION", None) == _VERSION else None
