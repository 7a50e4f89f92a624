"""Tables of columns, and the ones that a step's record is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema.absent import NO_TIME, UNKNOWN

SPARSE = 8
"""Rows for each one that a mask names: then their numbers, which are looked up by every
column, take less time than the mask and no more memory.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Parallel numpy columns of one length. A table takes over its arrays and
    freezes them: selecting rows makes a new table, nothing edits one.
    """

    def __post_init__(self) -> None:
        length = -1
        for name, dtype in self.columns().items():
            column = np.asarray(getattr(self, name), dtype=dtype)
            if column.ndim != 1 or length not in (-1, len(column)):
                raise ValueError(
                    f"{type(self).__name__}.{name} has shape {column.shape}, "
                    f"expected ({'N' if length < 0 else length},)"
                )
            length = len(column)
            column = column.view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    @classmethod
    @cache  # tables are made by the thousand, a few for every step
    def columns(cls) -> Mapping[str, np.dtype[np.generic]]:
        """Column names with their dtypes, in the order of the files."""
        return MappingProxyType(
            {f.name: np.dtype(f.metadata["dtype"]) for f in fields(cls)}
        )

    @classmethod
    @cache
    def _absent(cls) -> Mapping[str, int]:
        """What each column holds where the source is silent."""
        return {f.name: f.metadata["absent"] for f in fields(cls)}

    @classmethod
    def build(cls, length: int | None = None, **given: npt.ArrayLike) -> Self:
        """A table from some columns; the others hold what "not said" looks like.

        `length` is needed only where every given column is a scalar.
        """
        arrays = {name: np.asarray(value) for name, value in given.items()}
        if length is None:
            length = max((len(a) for a in arrays.values() if a.ndim), default=0)
        columns: dict[str, npt.NDArray[np.generic]] = {}
        absent = cls._absent()
        for name, dtype in cls.columns().items():
            value = arrays.pop(name, None)
            if value is None:
                columns[name] = np.full(length, absent[name], dtype)
            elif value.shape == (length,):
                columns[name] = value.astype(dtype)
            elif value.ndim:
                columns[name] = np.broadcast_to(value, (length,)).astype(dtype)
            else:
                columns[name] = np.full(length, value, dtype)
        if arrays:
            raise ValueError(f"{cls.__name__} has no column {', '.join(arrays)}")
        return cls(**columns)

    @classmethod
    @cache
    def empty(cls) -> Self:
        """The table without rows: there is one of each kind, as nothing edits it."""
        return cls.build(0)

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        """The rows of several tables, in their order."""
        if not parts:
            return cls.empty()
        return cls(
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name in cls.columns()
            }
        )

    @classmethod
    def of_rows(cls, rows: Table, **given: npt.ArrayLike) -> Self:
        """A table of the columns that other rows have as well, and of those given."""
        shared = {
            name: getattr(rows, name)
            for name in cls.columns()
            if name in rows.columns() and name not in given
        }
        return cls.build(len(rows), **shared, **given)

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.columns()))))

    def items(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """The columns with their names."""
        return ((name, getattr(self, name)) for name in self.columns())

    def rows(
        self, which: npt.NDArray[np.bool_] | npt.NDArray[np.integer] | slice
    ) -> Self:
        """The rows that a mask, an index array or a slice names."""
        if isinstance(which, np.ndarray) and which.dtype == np.bool_:
            count = np.count_nonzero(which)
            if count == len(which) == len(self):
                return self
            if count * SPARSE <= len(which) == len(self):
                which = np.flatnonzero(which)
        # Made past `__post_init__`: what it checks holds for rows of a checked table,
        # and a step's measures select rows fifty times.
        chosen = object.__new__(type(self))
        for name in self.columns():
            column = getattr(self, name)[which]
            column.flags.writeable = False
            object.__setattr__(chosen, name, column)
        return chosen


def column(dtype: str, absent: int) -> Any:
    """A table's column: its dtype and what it holds where the source is silent."""
    return field(metadata={"dtype": dtype, "absent": absent})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimedTable(Table):
    """A table whose rows begin and end. Times are ns on the rank's clock."""

    start_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    end_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)

    @property
    def duration_ns(self) -> npt.NDArray[np.int64]:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans(Table):
    """What a rank did, one row per span. Times are ns on that rank's clock."""

    kind: npt.NDArray[np.int8] = column("int8", 0)  # a Kind
    lane: npt.NDArray[np.int8] = column("int8", 0)  # a Lane
    phase: npt.NDArray[np.int8] = column("int8", 0)  # a Phase
    flags: npt.NDArray[np.int16] = column("int16", 0)  # Flag bits
    micro_batch: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # within the step
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # index in RankHeader.units
    by_unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # whose hook issued it
    op: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # joins the spans of one
    # unshard (issue, copy-in, all-gather, wait, copy-out, window) or one reduction
    start_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    end_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    issued_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)  # on the host
    bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # of the large side:
    # a gather's output, a reduce-scatter's input, an all-reduce's tensor
    group: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # in RankHeader.groups
    seq: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # number within the group
    stream: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    name: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # index in the rank's names
    value: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # by kind, see Kind

    @property
    def duration_ns(self) -> npt.NDArray[np.int64]:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemorySamples(Table):
    """Memory at unit boundaries, one row per sample."""

    time_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    phase: npt.NDArray[np.int8] = column("int8", 0)
    allocated_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    reserved_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    # Since the last sample.
    peak_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    unsharded_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # live(t)
    rss_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # of the process


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counters(Table):
    """Named whole numbers at a time: allocator retries, graph breaks, tokens."""

    name: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    time_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    value: npt.NDArray[np.int64] = column("int64", UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes(Table):
    """Steps that were timed and not recorded, one row per step."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    start_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    end_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallSites(Table):
    """Who issued the collectives that are not FSDP2's, one row per `Spans.op`."""

    op: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    within: npt.NDArray[np.int8] = column("int8", 0)  # a Within
    site: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # name: "train.py:43"
    via: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # name: what it called there


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackSamples(Table):
    """Where the training thread was at some moments outside all spans."""

    time_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    activity: npt.NDArray[np.int8] = column("int8", 0)  # an Activity
    site: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # name: "train.py:43"
    via: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # name: what it called there
