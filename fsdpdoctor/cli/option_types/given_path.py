"""A path on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class GivenPath(click.Path):
    """A path that is one: an empty word, as of a shell's variable that is not set,
    would be the current folder.
    """

    def __init__(
        self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True
    ) -> None:
        super().__init__(
            exists=exists, file_okay=file_okay, dir_okay=dir_okay, path_type=Path
        )

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The path. Fails as click's own types do."""
        if value == "":
            self.fail("an empty name: expected a path.", param, ctx)
        return super().convert(value, param, ctx)
