"""Units of collectives that no label covers, from their sizes and their order.

A trace without host annotations has none, and a CUDA graph replays its collectives
without the Python that would annotate them. What is left is the schedule: FSDP2 gathers
its units in forward order, and reduces their gradients in the reverse of it, in the
same sizes. Where a group's collectives of a step mirror each other so, and only there,
units are told apart; nothing is guessed where sizes leave a choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsdpdoctor.schema import Kind, Phase

MIN_UNITS = 2
"""One gather and one reduction in turn is also what sequence parallelism does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The units of one step by forward order, and each collective's place in them."""

    gather_bytes: tuple[int, ...]  # of each unit
    places: tuple[tuple[int | None, Phase], ...]  # a unit's index and the phase


def read_schedule(kinds: Sequence[Kind], sizes: Sequence[int]) -> Schedule | None:
    """Read one group's collectives of a step, in the order in which they ran.

    None where they are not FSDP's, or their sizes are not known. A collective's index
    is None where several units could be meant.
    """
    gathers = [i for i, kind in enumerate(kinds) if kind == Kind.ALL_GATHER]
    scatters = [i for i, kind in enumerate(kinds) if kind == Kind.REDUCE_SCATTER]
    if len(gathers) + len(scatters) < len(kinds) or not scatters or min(sizes) <= 0:
        return None
    gathered = [sizes[i] for i in gathers]
    scattered = [sizes[i] for i in scatters]
    units = _count_units(gathered, scattered, sum(i < scatters[0] for i in gathers))
    if units is None:
        return None
    batches = len(scattered) // units
    per_batch, rest = divmod(len(gathered), batches)
    if rest or not units <= per_batch <= 2 * units:
        return None
    forward = gathered[:units]
    places: dict[int, tuple[int | None, Phase]] = {}
    for batch in range(batches):
        mine = gathers[batch * per_batch : (batch + 1) * per_batch]
        if [sizes[i] for i in mine[:units]] != forward:
            return None
        again = _regathered(forward, [sizes[i] for i in mine[units:]])
        if again is None:
            return None
        for unit, i in enumerate(mine[:units]):
            places[i] = (unit, Phase.FORWARD)
        reduced = scatters[batch * units : (batch + 1) * units][::-1]
        for unit, i in enumerate(reduced):
            places[i] = (unit, Phase.BACKWARD)
        for one, i in zip(again, mine[units:], strict=True):
            if i > reduced[0 if one is None else one]:
                return None  # gathered for a backward that is over
            places[i] = (one, Phase.BACKWARD)
    return Schedule(
        gather_bytes=tuple(forward),
        places=tuple(places[i] for i in range(len(kinds))),
    )


def _count_units(gathered: list[int], scattered: list[int], ahead: int) -> int | None:
    """How many units there are: no more than were gathered before the first reduction,
    and as many as make gathers and reductions mirror each other.
    """
    for units in range(min(ahead, len(scattered)), MIN_UNITS - 1, -1):
        if len(scattered) % units:
            continue
        backward = scattered[:units]
        if scattered != backward * (len(scattered) // units):
            continue
        # Gathers and reductions have dtypes of their own, and so a common ratio.
        forward = gathered[:units]
        pairs = zip(forward, reversed(backward), strict=True)
        if all(
            gather * backward[-1] == forward[0] * scatter for gather, scatter in pairs
        ):
            return units
    return None


def _regathered(forward: list[int], sizes: list[int]) -> list[int | None] | None:
    """The units gathered again in backward, which goes from the last to the first.

    The earliest and the latest choice of units must agree; where they do not, it is
    not known which is meant. None where no choice fits at all.
    """
    earliest = _match(list(range(len(forward) - 1, -1, -1)), forward, sizes)
    if earliest is None:
        return None
    latest = _match(list(range(len(forward))), forward, sizes[::-1])
    assert latest is not None
    pairs = zip(earliest, latest[::-1], strict=True)
    return [one if one == other else None for one, other in pairs]


def _match(order: list[int], forward: list[int], sizes: list[int]) -> list[int] | None:
    """For each size the next unit of that size, in some order of units."""
    left = iter(order)
    found = [next((u for u in left if forward[u] == size), None) for size in sizes]
    return None if None in found else [unit for unit in found if unit is not None]
