"""Who a hung job waits for, from what every rank had pending.

Each rank stands at its oldest pending operation and waits for the members that have
not come to it. Following who waits for whom ends at the ranks that wait for nobody:
they hold up the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fsdpdoctor.hang.flight_recorder import Dump, Entry, peer_of


class Why(StrEnum):
    """Why a rank is named."""

    NEVER_JOINED = "never joined"  # it did not enqueue what others wait in
    BEHIND = "behind"  # it enqueued it, and its device stopped at something earlier
    MISMATCH = "mismatch"  # it enqueued something else under the same number


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation that ranks stand at."""

    group: str
    members: tuple[int, ...]
    seq: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A rank that holds up others."""

    rank: int
    why: Why
    operation: Operation | None  # what others wait in, or what it stopped at
    waiting: tuple[int, ...]  # ranks that wait for it, directly or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One number of a group, and what different ranks take it for."""

    group: str
    seq: int
    versions: Mapping[str, tuple[int, ...]]  # what, to the ranks that say so


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What dumps say of a hang."""

    ranks: tuple[int, ...]  # that left a dump
    without_dump: tuple[int, ...]  # members of groups that left none
    standing_at: Mapping[int, Operation]  # each rank's oldest pending operation
    culprits: tuple[Culprit, ...]
    mismatches: tuple[Mismatch, ...]
    in_a_circle: tuple[int, ...]  # ranks that wait for each other
    stuck: tuple[Operation, ...]  # all members are in it, and it does not end


def diagnose(dumps: Sequence[Dump]) -> Diagnosis:
    """Find who holds up whom. Nothing is named where nothing is pending."""
    by_rank = {dump.rank: dump for dump in dumps}
    members = _members(dumps)
    heads = {dump.rank: dump.pending[0] for dump in dumps if dump.pending}
    waits = {rank: _waits_for(rank, heads[rank], by_rank, members) for rank in heads}
    mismatches = _mismatches(dumps)
    held_up = {rank for others in waits.values() for rank in others}
    at_the_end = sorted(rank for rank in held_up if not waits.get(rank))
    culprits = [
        Culprit(
            rank=rank,
            why=Why.BEHIND if rank in heads else Why.NEVER_JOINED,
            operation=_operation_of(rank, heads, waits, members),
            waiting=_all_waiting_for(rank, waits),
        )
        for rank in at_the_end
    ]
    explained = {rank for one in culprits for rank in one.waiting}
    circle = sorted(r for r in waits if waits[r] and r not in explained)
    everyone = {rank for ranks in members.values() for rank in ranks}
    return Diagnosis(
        ranks=tuple(sorted(by_rank)),
        without_dump=tuple(sorted(everyone - set(by_rank))),
        standing_at={rank: _operation(head, members) for rank, head in heads.items()},
        culprits=(*_of_mismatch(mismatches, by_rank), *culprits),
        mismatches=mismatches,
        in_a_circle=tuple(circle),
        stuck=_stuck(heads, waits, held_up, members),
    )


def _members(dumps: Sequence[Dump]) -> dict[str, tuple[int, ...]]:
    """The ranks of every group, from whoever knows them."""
    found: dict[str, tuple[int, ...]] = {}
    for dump in dumps:
        for name, ranks in dump.groups.items():
            if len(ranks) > len(found.get(name, ())):
                found[name] = ranks
    return found


def _operation(entry: Entry, members: Mapping[str, tuple[int, ...]]) -> Operation:
    return Operation(
        group=entry.group,
        members=members.get(entry.group, ()),
        seq=entry.seq,
        name=entry.operation,
    )


def _waits_for(
    rank: int,
    head: Entry,
    by_rank: Mapping[int, Dump],
    members: Mapping[str, tuple[int, ...]],
) -> tuple[int, ...]:
    """The ranks with a dump that have not come to where `rank` stands."""
    ranks = members.get(head.group, ())
    if head.point_to_point:
        peer = peer_of(head, ranks, rank)
        return (peer,) if peer is not None and peer in by_rank else ()
    return tuple(
        other
        for other in ranks
        if other != rank and other in by_rank and not _has_come_to(by_rank[other], head)
    )


def _has_come_to(dump: Dump, head: Entry) -> bool:
    """Whether a rank stands at the same operation, or has finished it."""
    mine = [e for e in dump.entries if not e.point_to_point and e.group == head.group]
    same = [entry for entry in mine if entry.seq == head.seq]
    if same:
        return not same[0].pending or dump.pending[0].order == same[0].order
    # Not in its ring: finished and retired, or never enqueued.
    last = dump.enqueued.get(head.group)
    return last is None or last >= head.seq


def _all_waiting_for(
    rank: int, waits: Mapping[int, tuple[int, ...]]
) -> tuple[int, ...]:
    """Ranks from which following who waits for whom leads to `rank`."""
    found: set[int] = set()
    while more := {
        one
        for one, others in waits.items()
        if one not in found and one != rank and (found | {rank}) & set(others)
    }:
        found |= more
    return tuple(sorted(found))


def _operation_of(
    rank: int,
    heads: Mapping[int, Entry],
    waits: Mapping[int, tuple[int, ...]],
    members: Mapping[str, tuple[int, ...]],
) -> Operation | None:
    """What a rank stopped at; where it has nothing pending, what it did not join."""
    if rank in heads:
        return _operation(heads[rank], members)
    direct = [heads[one] for one, others in sorted(waits.items()) if rank in others]
    joined = [entry for entry in direct if not entry.point_to_point] or direct
    return _operation(joined[0], members) if joined else None


def _stuck(
    heads: Mapping[int, Entry],
    waits: Mapping[int, tuple[int, ...]],
    held_up: set[int],
    members: Mapping[str, tuple[int, ...]],
) -> tuple[Operation, ...]:
    """Operations at which every member stands: the fault is in the operation."""
    found: dict[tuple[str, int], Operation] = {}
    for rank, head in heads.items():
        here = members.get(head.group, ())
        together = here and all(
            other in heads
            and (heads[other].group, heads[other].seq) == (head.group, head.seq)
            for other in here
        )
        if together and not waits[rank] and rank not in held_up:
            found[head.group, head.seq] = _operation(head, members)
    return tuple(found.values())


def _mismatches(dumps: Sequence[Dump]) -> tuple[Mismatch, ...]:
    """Numbers under which ranks of one group enqueued different collectives."""
    said: dict[tuple[str, int], dict[str, list[int]]] = {}
    for dump in dumps:
        for entry in dump.entries:
            if entry.point_to_point:
                continue
            # Sizes may differ by rank in all_to_all and in scatters of uneven parts.
            what = f"{entry.operation} ({entry.dtypes})"
            versions = said.setdefault((entry.group, entry.seq), {})
            versions.setdefault(what, []).append(dump.rank)
    return tuple(
        Mismatch(
            group=group,
            seq=seq,
            versions={what: tuple(ranks) for what, ranks in versions.items()},
        )
        for (group, seq), versions in sorted(said.items())
        if len(versions) > 1
    )


def _of_mismatch(
    mismatches: Sequence[Mismatch], by_rank: Mapping[int, Dump]
) -> list[Culprit]:
    """The minority of the first mismatch of each group; nobody where it is a draw."""
    found: dict[int, Culprit] = {}
    for mismatch in mismatches:
        ranked = sorted(mismatch.versions.items(), key=lambda item: -len(item[1]))
        (what, most), (_, fewer) = ranked[0], ranked[1]
        if len(most) == len(fewer):
            continue
        for _, ranks in ranked[1:]:
            for rank in ranks:
                operation = Operation(
                    group=mismatch.group,
                    members=by_rank[rank].groups.get(mismatch.group, ()),
                    seq=mismatch.seq,
                    name=what,
                )
                found.setdefault(
                    rank,
                    Culprit(
                        rank=rank,
                        why=Why.MISMATCH,
                        operation=operation,
                        waiting=most,
                    ),
                )
    return list(found.values())
