"""A value with other fields: a dataclass or a Struct, of which tests change both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # which checks the fields of both
    from dataclasses import replace
else:
    import dataclasses

    from msgspec import structs

    def replace(value, /, **changes):
        """The same as `dataclasses.replace`, of either kind."""
        if dataclasses.is_dataclass(value):
            return dataclasses.replace(value, **changes)
        return structs.replace(value, **changes)


__all__ = ["replace"]
