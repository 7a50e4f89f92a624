"""Which FSDP unit a hung collective is of, by a record of the same training.

Sizes come first: a group's collective of a kind and size belongs to a unit that the
record shows with both. Where several units do, the order decides: what the dump holds
before the collective is laid over the record's step, and units stay that fit it all.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from fsdpdoctor.hang.diagnose import Operation
from fsdpdoctor.hang.flight_recorder import Dump, Entry
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COLLECTIVE_KINDS,
    UNKNOWN,
    Kind,
    Phase,
    Spans,
    element_bytes,
    one_of,
)

KINDS = {
    "_all_gather_base": Kind.ALL_GATHER,
    "_allgather_base": Kind.ALL_GATHER,
    "all_gather": Kind.ALL_GATHER,
    "_reduce_scatter_base": Kind.REDUCE_SCATTER,
    "reduce_scatter": Kind.REDUCE_SCATTER,
    "all_reduce": Kind.ALL_REDUCE,
}
"""Operations of dumps that may be FSDP2's."""


class MatchedBy(StrEnum):
    """What was enough to tell the unit."""

    SIZE = "size"
    ORDER = "size and order"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMatch:
    """The units that a collective can be of: one, unless size and order leave more."""

    units: tuple[str, ...]
    phases: tuple[str, ...]
    by: MatchedBy


class _Call(NamedTuple):
    """What two collectives must have in common to be the same place of a step."""

    kind: int
    bytes: int


def match_units(
    operation: Operation, dumps: Sequence[Dump], data: RankData
) -> UnitMatch | None:
    """The units that an operation can be of, None where none fits it."""
    before = _before(operation, dumps)
    if before is None:
        return None
    call = _call(before[-1])
    step = _step(data, operation.members)
    calls = _calls(step)
    places = [at for at, one in enumerate(calls) if one == call]
    if not places:
        return None
    units = {int(step.unit[at]) for at in places}
    by = MatchedBy.SIZE
    if len(units) > 1:
        # Collectives of other owners share the group: only FSDP2's sizes count.
        known = set(calls)
        history = [one for entry in before if (one := _call(entry)) in known]
        places = _fitting(places, calls, history)
        by = MatchedBy.ORDER
    rows = sorted(set(places))
    return UnitMatch(
        units=_once(data.unit_name(int(step.unit[at])) or "?" for at in rows),
        phases=_once(Phase(int(step.phase[at])).key for at in rows),
        by=by,
    )


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _before(operation: Operation, dumps: Sequence[Dump]) -> list[Entry] | None:
    """The longest history of the operation's group that ends with it."""
    found: list[Entry] | None = None
    for dump in dumps:
        mine = [
            entry
            for entry in dump.entries
            if entry.group == operation.group
            and not entry.point_to_point
            and entry.seq <= operation.seq
        ]
        mine.sort(key=lambda entry: entry.seq)
        if mine and mine[-1].seq == operation.seq and len(mine) > len(found or ()):
            found = mine
    return found


def _call(entry: Entry) -> _Call | None:
    kind = KINDS.get(entry.operation)
    size = bytes_of(entry)
    return None if kind is None or size is None else _Call(kind, size)


def bytes_of(entry: Entry) -> int | None:
    """Bytes of an entry's larger side, None where the dump does not say."""
    sides = [
        _side(sizes, dtypes)
        for sizes, dtypes in zip(
            entry.sizes.split(" -> "), entry.dtypes.split(" -> "), strict=False
        )
    ]
    known = [side for side in sides if side is not None]
    return max(known, default=None)


def _side(sizes: str, dtypes: str) -> int | None:
    try:
        shapes: list[list[int]] = ast.literal_eval(sizes)
        types: list[object] = ast.literal_eval(dtypes)
        widths = [_width(name) for name in types]
        if len(widths) == 1:
            widths *= len(shapes)
        size: float = sum(
            math.prod(shape) * width
            for shape, width in zip(shapes, widths, strict=True)
        )
    # A parser's words for brackets in brackets are of the last two.
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        return None
    return size if isinstance(size, int) else None


def _width(name: object) -> int:
    width = element_bytes(name) if isinstance(name, str) else None
    if width is None:
        raise KeyError(name)
    return width


def _step(data: RankData, members: tuple[int, ...]) -> Spans:
    """The last whole step's collectives of the groups with these ranks, in order."""
    groups = [
        index
        for index, group in enumerate(data.header.groups)
        if group.ranks == members
    ]
    whole = [record for record in data.steps if record.complete]
    if not whole:
        return Spans.build(0)
    spans = whole[-1].spans
    of_units = one_of(spans.kind, COLLECTIVE_KINDS) & (spans.unit != UNKNOWN)
    mine = spans.rows(of_units & one_of(spans.group, groups))
    return mine.rows(np.argsort(mine.start_ns, kind="stable"))


def _calls(step: Spans) -> list[_Call]:
    return [
        _Call(kind, size)
        for kind, size in zip(step.kind.tolist(), step.bytes.tolist(), strict=True)
    ]


def _fitting(
    places: list[int], calls: Sequence[_Call], history: Sequence[_Call | None]
) -> list[int]:
    """The places before which the step, which repeats, looks as the history does.

    Where none fits all of it, those that fit the longest end of it.
    """
    for back in range(1, min(len(history), len(calls))):
        wanted = history[-1 - back]
        left = [at for at in places if calls[(at - back) % len(calls)] == wanted]
        if not left:
            break
        places = left
    return places
