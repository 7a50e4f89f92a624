"""The first collective of FSDP2's, among ranks' last events, that is not the same one
on every rank: collectives are numbered alike on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsdpdoctor.hang.standing import Event, Group, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """One number of a group, and what ranks issued under it."""

    group: Group
    seq: int
    versions: Mapping[tuple[int, ...], Event]  # by ranks; the most first
    left_out: str | None = None  # what the fewer left out, where it can be told
    extra: str | None = None  # what they issued beyond the others

    @property
    def most(self) -> tuple[int, ...]:
        return next(iter(self.versions))

    @property
    def blamed(self) -> tuple[int, ...]:
        """Those that are fewer; all of them where no side is."""
        sides = list(self.versions)
        if len(sides[0]) == len(sides[1]):
            return tuple(sorted(rank for side in sides for rank in side))
        return tuple(sorted(rank for side in sides[1:] for rank in side))


def first_divergence(ranks: Sequence[Standing]) -> Divergence | None:
    """The earliest that their rings of last events still hold."""
    found: list[tuple[int, Divergence]] = []
    seen: set[Group] = set()
    for (group, seq), issued in sorted(
        _by_number(ranks).items(), key=lambda item: item[0][1]
    ):
        if group in seen:
            continue
        versions = _versions(issued)
        if len(versions) > 1:
            seen.add(group)
            step = min(event.step for event in versions.values())
            found.append((step, _divergence(ranks, group, seq, versions)))
    return min(found, key=lambda one: one[0])[1] if found else None


def _by_number(
    ranks: Sequence[Standing],
) -> dict[tuple[Group, int], list[tuple[int, Event]]]:
    """By group and number: the ranks that issued under it, and what."""
    found: dict[tuple[Group, int], list[tuple[int, Event]]] = {}
    for one in ranks:
        for number, event in one.issued.items():
            found.setdefault(number, []).append((one.rank, event))
    return found


def _versions(
    issued: Sequence[tuple[int, Event]],
) -> dict[tuple[int, ...], Event]:
    """What ranks issued under a number, by who did."""
    sides: dict[tuple[int, int, str], tuple[list[int], Event]] = {}
    for rank, event in issued:
        key = (event.step, event.micro_batch, event.what)
        sides.setdefault(key, ([], event))[0].append(rank)
    ordered = sorted(sides.values(), key=lambda side: (-len(side[0]), side[0]))
    return {tuple(side): event for side, event in ordered}


def _divergence(
    ranks: Sequence[Standing],
    group: Group,
    seq: int,
    versions: dict[tuple[int, ...], Event],
) -> Divergence:
    by_rank = {one.rank: one for one in ranks}
    (most, usual), (few, other) = list(versions.items())[:2]
    later = by_rank[most[0]].issued.get((group, seq + 1))
    later_other = by_rank[few[0]].issued.get((group, seq + 1))
    skipped = later is not None and _same(later, other)
    added = later_other is not None and _same(later_other, usual)
    return Divergence(
        group=group,
        seq=seq,
        versions=versions,
        left_out=usual.what if skipped and not added else None,
        extra=other.what if added and not skipped else None,
    )


def _same(one: Event, other: Event) -> bool:
    return (one.step, one.micro_batch, one.what) == (
        other.step,
        other.micro_batch,
        other.what,
    )
