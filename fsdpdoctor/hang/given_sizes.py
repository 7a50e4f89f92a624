"""What ranks gave to one collective: whose size is another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from fsdpdoctor.hang.standing import Standing, State
from fsdpdoctor.schema import element_bytes


def sides_by_size(inside: Sequence[Standing]) -> dict[Any, list[Standing]]:
    """The ranks by what they gave, in the first of three ways that tells any apart;
    empty where none does.
    """
    for sides in (_by_size(inside), _by_operands(inside), _by_bytes(inside)):
        if len(sides) > 1:
            return sides
    return {}


def _by_size(inside: Sequence[Standing]) -> dict[Any, list[Standing]]:
    """By the bytes that each noted, of one number of a group; empty where one did not:
    who has crashed can be asked for nothing else.
    """
    places = {(one.last.group, one.last.seq) for one in inside if one.last is not None}
    if len(places) != 1 or not all(one.issued_bytes for one in inside):
        return {}
    sides: dict[Any, list[Standing]] = {}
    for one in inside:
        sides.setdefault(one.issued_bytes, []).append(one)
    return sides if len(sides) > 1 else {}


def _by_operands(inside: Sequence[Standing]) -> dict[Any, list[Standing]]:
    """By the tensors that each gave. Who crashed in it was sent more than it waits for,
    so that it is not on the side of the most.
    """
    sides: dict[Any, list[Standing]] = {}
    for one in inside:
        if one.operands is not None:
            sides.setdefault(one.operands, []).append(one)
    return _with_crashed(sides, inside, _elements)


def _by_bytes(inside: Sequence[Standing]) -> dict[Any, list[Standing]]:
    """By what each said or noted, whichever there is; of who crashed as above."""
    sides: dict[Any, list[Standing]] = {}
    for one in inside:
        if given := one.issued_bytes or _operand_bytes(one.operands or ""):
            sides.setdefault(given, []).append(one)
    return _with_crashed(sides, inside, int)


def _with_crashed(
    sides: dict[Any, list[Standing]],
    inside: Sequence[Standing],
    amount: Callable[[Any], int],
) -> dict[Any, list[Standing]]:
    """The sides, where there are several; who crashed and is on none, on that of the
    least.
    """
    if len(sides) > 1:
        known = {one.rank for side in sides.values() for one in side}
        sides[min(sides, key=amount)] += [
            one
            for one in inside
            if one.rank not in known and one.state == State.CRASHED
        ]
    return sides


_OPERAND = re.compile(r"(\w*)\[([\d, ]*)\]")


def _operand_bytes(operands: str) -> int:
    """Of all tensors; 0: not known."""
    sizes = [(element_bytes(dtype) or 0) * n for dtype, n in _tensors(operands)]
    return sum(sizes) if all(sizes) else 0


def _elements(operands: str) -> int:
    """Of all tensors."""
    return sum(count for _, count in _tensors(operands))


def _tensors(operands: str) -> list[tuple[str, int]]:
    """The dtype and elements of each, said as `float32[2, 4]`."""
    return [
        (dtype, math.prod(int(n) for n in shape.split(",") if n.strip()))
        for dtype, shape in _OPERAND.findall(operands)
    ]


def sizes_must_agree(inside: Sequence[Standing]) -> bool:
    """Whether all are in one collective, of a kind in which each gives as much."""
    names = {one.call for one in inside if one.call is not None}
    return len(names) == 1 and not any(
        word in name for name in names for word in ("to_all", "scatter", "object")
    )
