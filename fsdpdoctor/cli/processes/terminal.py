"""The terminal, or the pipe, that a command's answer is shown on."""

from __future__ import annotations

from rich.console import Console


class Terminal(Console):
    """What is shown is text as it stands: names may look like markup."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """The reader has gone: not an error, which rich would make of it."""
        raise BrokenPipeError
