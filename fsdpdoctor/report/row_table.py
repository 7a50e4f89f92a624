"""A report's rows as a table that pandas, polars and pyarrow take as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


class RowTable(Generic[Row]):
    """Rows of one dataclass, in order; to Arrow's readers, a table of their fields.

    A column is named for its place in the report's JSON (`exposed_ns.forward`). Lists
    of numbers or names are lists; what has no one type is JSON text. It is no
    `Sequence` to Python: libraries ask for that first, and would then see objects.
    """

    __slots__ = ("_row", "_rows")

    def __init__(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._row = row
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __getitem__(self, at: int) -> Row:
        return self._rows[at]

    def __repr__(self) -> str:
        return f"<RowTable of {self._row.__name__}, {len(self)} rows>"

    @property
    def columns(self) -> tuple[str, ...]:
        """Their names, also where there are no rows."""
        return tuple(self._arrays())

    def _arrays(self) -> dict[str, Any]:
        from fsdpdoctor.storage.arrow_columns import columns_of

        return columns_of(self._row, self._rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's own protocol for tables, the PyCapsule interface."""
        from fsdpdoctor.storage.arrow_columns import stream_of

        return stream_of(self._arrays(), len(self), requested_schema)
