"""What a step and its tables may say; ids of what the header lacks are not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Activity,
    Kind,
    Lane,
    Phase,
    StepRecord,
    Table,
    Within,
)
from fsdpdoctor.untrusted.headers import MOST

MOST_STEPS = 1 << 40
MOST_MICRO_BATCHES = 1 << 20
"""More than a training of years has, and a step."""

_CODES: Mapping[str, npt.NDArray[np.int64]] = {
    name: np.array(sorted(kinds), dtype=np.int64)
    for name, kinds in {
        "kind": {0, *Kind},
        "lane": set(Lane),
        "phase": set(Phase),
        "within": set(Within),
        "activity": set(Activity),
    }.items()
}
_LARGEST: Mapping[str, int] = {
    "micro_batch": MOST_MICRO_BATCHES,
    "micro_batches": MOST_MICRO_BATCHES,
    "step": MOST_STEPS,
}
_NAMES = ("name", "site", "via")

_Table = TypeVar("_Table", bound=Table)


class Lists(dict[str, int]):
    """How many there are of what an id column names."""

    def __init__(self, *, units: int, groups: int) -> None:
        super().__init__(unit=units, by_unit=units, group=groups)


def check_scalars(scalars: Mapping[str, int]) -> None:
    """A step's own numbers. Raises ValueError."""
    for name, number in scalars.items():
        largest = _LARGEST.get(name, MOST)
        least = -MOST if name.endswith("_ns") else UNKNOWN
        if not least <= number < largest:
            raise ValueError(f"{name} of a step is {number}, which is out of range")
    for start, end in (("start_ns", "end_ns"), ("host_start_ns", "host_end_ns")):
        if scalars[end] < scalars[start]:
            raise ValueError(f"a step ends before it starts ({end} < {start})")


def checked_table(table: _Table, lists: Lists) -> _Table:
    """A table, ids that name nothing made UNKNOWN. Raises ValueError where it lies."""
    if not len(table):
        return table
    unknown: dict[str, npt.NDArray[np.generic]] = {}
    for name, column in table.items():
        least, largest = int(column.min()), int(column.max())
        if name in lists:
            if least < UNKNOWN or largest >= lists[name]:
                ids = column.astype(np.int64)
                known = (ids >= 0) & (ids < lists[name])
                unknown[name] = np.where(known, ids, UNKNOWN)
        elif name in _CODES:
            codes = _CODES[name]
            if (
                least < codes[0]
                or largest > codes[-1]
                or not np.isin(column, codes).all()
            ):
                raise ValueError(f"{name} of a row is {largest}, which is no {name}")
        elif name.endswith("_ns") or column.dtype == np.int64 or name in _LARGEST:
            _check_range(name, column, least, largest)
    if "end_ns" in table.columns():
        _check_order(table)
    return replace(table, **unknown) if unknown else table


def _check_order(table: Any) -> None:
    start, end = table.start_ns, table.end_ns
    backwards = (end < start) & (end != NO_TIME)
    if backwards.any():
        raise ValueError("a row ends before it starts")


def _check_range(
    name: str, column: npt.NDArray[np.generic], least: int, largest: int
) -> None:
    if largest >= _LARGEST.get(name, MOST):
        raise ValueError(f"{name} of a row is {largest}, which is out of range")
    if least <= -MOST and (least != NO_TIME or not name.endswith("_ns")):
        raise ValueError(f"{name} of a row is {least}, which is out of range")
    if least == NO_TIME:
        said = column[column != NO_TIME]
        if len(said) and int(said.min()) <= -MOST:
            raise ValueError(f"{name} of a row is out of range")


def with_known_names(record: StepRecord, names: int) -> StepRecord:
    """A step whose tables name only what the stream holds: `names` of them."""
    changed: dict[str, Any] = {}
    for name in ("spans", "counters", "call_sites", "stack_samples"):
        table: Table = getattr(record, name)
        columns = {c: getattr(table, c) for c in _NAMES if c in table.columns()}
        beyond = {
            c: np.where((column >= 0) & (column < names), column, UNKNOWN)
            for c, column in columns.items()
            if len(column) and not -1 <= column.min() <= column.max() < names
        }
        if beyond:
            changed[name] = replace(table, **beyond)
    return replace(record, **changed) if changed else record
