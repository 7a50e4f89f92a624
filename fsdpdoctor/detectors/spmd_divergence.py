"""FD406: ranks did not issue the same collectives, or one stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from fsdpdoctor.analysis.clock_alignment import group_key
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_steps import NO_ROWS, place_of, rows_by_step
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import count, duration, size
from fsdpdoctor.run import Beat
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, Phase

LOST_PEER = re.compile(r"\b(peer|connection|timed? ?out|abort)", re.IGNORECASE)
"""How communication libraries say that another rank is gone."""

Issued = tuple[int, int]
"""A collective as every rank of its group must issue it: kind and bytes."""

GroupName = tuple[str, tuple[int, ...]]


@detector("FD406", "spmd-divergence", needs={Evidence.STEPS})
def spmd_divergence(m: Measures) -> Iterator[Finding]:
    """Ranks issued different collectives, or one stopped before the others.

    *Why it costs*: all ranks of a group must issue the same collectives in the same
    order. Where they do not, they hang, or mix one unit's bytes with another's. A
    rank that stops leaves the others waiting until a timeout.

    *What to try*: run every branch on every rank, with a dummy input where there is
    no data; keep modules that only some ranks use in the root unit; count
    micro-batches over all ranks. `TORCH_DISTRIBUTED_DEBUG=DETAIL` names the
    mismatch when it happens. For a rank that stopped, read its own log first.

    *When it is wrong*: only whole steps that all ranks recorded are compared. Which
    rank stopped first is told by how each ended and by the last event it wrote; of
    several killed at once any may be named.
    """
    findings = [*_stopped(m), *_sequences(m)]
    if not findings and len(m.ranks) < 2 and m.run.world_size > 1:
        raise CannotTell("only one rank left a record", Evidence.RANKS)
    yield from findings


def _stopped(m: Measures) -> Iterator[Finding]:
    """Ranks that ended early or left nothing, where others tell what happened."""
    recorded = any(rank.beats for rank in m.ranks)
    if recorded and m.missing_ranks:
        yield _missing(m)
    ended = {
        rank.rank: rank.header.ended for rank in m.ranks if not _only_detached(rank)
    }
    bad = [r for r in m.ranks if ended.get(r.rank, "done") != "done"]
    under_way = all(how == "running" for how in ended.values())
    if under_way and not any(rank.truncated for rank in m.ranks):
        return
    if bad and recorded:
        first = min(bad, key=_order)
        yield _stopped_finding(m, first, ended)


def _only_detached(rank: RankMeasures) -> bool:
    """Whether the recording stopped and the training went on: what that rank did
    later is not known, and no sign of a fault.
    """
    how = rank.header.ended
    return how.startswith("detached") and not LOST_PEER.search(how)


def _order(rank: RankMeasures) -> tuple[int, int]:
    """Who stopped first: a killed rank writes no word, and its end is the cause of
    the others'; then an exception of its own, then the earlier last event.
    """
    how = rank.header.ended
    guilt = 0 if how == "running" else 1 if how.startswith("exception") else 2
    return guilt, _last_time(rank)


def _last_time(rank: RankMeasures) -> int:
    """Unix time of the last event."""
    last = rank.beats[-1].time_ns if rank.beats else 0
    return last + rank.header.unix_minus_clock_ns


def _stopped_finding(m: Measures, rank: RankMeasures, ended: dict[int, str]) -> Finding:
    beat = rank.beats[-1] if rank.beats else None
    whole = rank.steps.step[rank.steps.complete == 1]
    last_step = int(whole[-1]) if len(whole) else None
    others = [r for r in m.ranks if r.rank != rank.rank]
    later = [_last_time(r) - _last_time(rank) for r in others if r.beats]
    how = ended[rank.rank]
    words = "was ended without a word" if how == "running" else f"ended ({how})"
    where = "" if beat is None else f" {_where(rank, beat)}"
    behind = max(later, default=0)
    gap = f", {duration(behind)} before the last event elsewhere" if behind > 0 else ""
    unit = rank.unit_name(beat.unit) if beat else None
    return Finding(
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if how == "running" else Confidence.MEDIUM,
        summary=f"rank {rank.rank} {words}{where}{gap}",
        units=(unit,) if unit else (),
        phase=_phase(beat.phase) if beat else None,
        ranks=(rank.rank,),
        evidence={
            "ended": dict(_texts(ended)),
            "last_whole_step": last_step,
            "last_event": None if beat is None else _where(rank, beat),
            "last_events": {
                str(r.rank): _where(r, r.beats[-1]) for r in m.ranks if r.beats
            },
            "broken_off": rank.truncated,
        },
        advice=(
            Advice(
                text=f"Read the log of rank {rank.rank} first: the other ranks' "
                "errors follow from its end."
            ),
        ),
        places=_last_place(rank, beat),
    )


def _texts(ended: dict[int, str]) -> Iterator[tuple[str, str]]:
    for rank, how in ended.items():
        yield str(rank), how


def _last_place(rank: RankMeasures, beat: Beat | None) -> tuple[Location, ...]:
    if beat is None:
        return ()
    return (
        Location(
            rank=rank.rank,
            step=beat.step,
            start_ns=beat.time_ns,
            end_ns=beat.time_ns,
            unit=rank.unit_name(beat.unit),
        ),
    )


def _phase(phase: int) -> str | None:
    return {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}.get(Phase(phase))


def _where(rank: RankMeasures, beat: Beat) -> str:
    """An event in words: `at all_gather of layers.2 (backward) in step 7`."""
    unit = rank.unit_name(beat.unit)
    what = Kind(beat.kind).key if beat.kind in set(Kind) else "start"
    phase = _phase(beat.phase)
    return (
        f"at {what}"
        + (f" of {unit}" if unit else "")
        + (f" ({phase})" if phase else "")
        + f" in step {beat.step}"
        + (f", micro-batch {beat.micro_batch}" if beat.micro_batch >= 0 else "")
    )


def _missing(m: Measures) -> Finding:
    """Ranks of a recorded job without a record."""
    ranks = ", ".join(str(rank) for rank in m.missing_ranks[:8])
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LOW,
        summary=f"{count(len(m.missing_ranks), 'rank')} of {m.run.world_size} left no "
        f"record: {ranks}{', ...' if len(m.missing_ranks) > 8 else ''}",
        ranks=m.missing_ranks,
        evidence={"missing": list(m.missing_ranks)},
        advice=(
            Advice(
                text="Give analyze the folders of all hosts; if these are all, the "
                "ranks ended before they were set up."
            ),
        ),
    )


def _sequences(m: Measures) -> Iterator[Finding]:
    """The first collective in which two ranks of a group differ."""
    members: dict[GroupName, dict[int, set[int]]] = {}
    for rank in m.ranks:
        for at, group in enumerate(rank.header.groups):
            if rank.rank in group.ranks:  # else who belongs together is not known
                ids = members.setdefault(group_key(group), {})
                ids.setdefault(rank.rank, set()).add(at)
    for (name, _), ids in members.items():
        sides = [_Side(m.of(r), ids[r]) for r in sorted(ids)]
        for other in sides[1:]:
            difference = _first_difference(sides[0], other)
            if difference is not None:
                yield _differs(m, name, difference)
                break


class _Side:
    """One rank of a group, whose indices in the rank's header are given."""

    def __init__(self, rank: RankMeasures, groups: set[int]) -> None:
        self.rank = rank
        table = rank.collectives
        rows = np.flatnonzero(
            np.isin(table.group, list(groups)) & (table.seq != UNKNOWN)
        )
        self._rows = rows[np.argsort(table.seq[rows], kind="stable")]
        self._of_step = rows_by_step(table.step[self._rows])

    def whole_steps(self) -> Int64s:
        return self.rank.steps.rows(self.rank.steps.complete == 1).step

    def issued(self, step: int) -> list[int]:
        """Rows of the group's collectives of one step, in their order in it."""
        rows: list[int] = self._rows[self._of_step.get(step, NO_ROWS)].tolist()
        return rows

    def what(self, row: int) -> Issued:
        table = self.rank.collectives
        return int(table.kind[row]), int(table.bytes[row])


class _Difference(NamedTuple):
    """A step and a place in it, and each side's row (UNKNOWN: it has none)."""

    one: RankMeasures
    other: RankMeasures
    step: int
    place: int
    row: int
    other_row: int


def _first_difference(one: _Side, other: _Side) -> _Difference | None:
    for step in np.intersect1d(one.whole_steps(), other.whole_steps()).tolist():
        pairs = zip_longest(one.issued(step), other.issued(step), fillvalue=UNKNOWN)
        for place, (a, b) in enumerate(pairs):
            if UNKNOWN in (a, b) or one.what(a) != other.what(b):
                return _Difference(one.rank, other.rank, step, place, a, b)
    return None


def _differs(m: Measures, group: str, difference: _Difference) -> Finding:
    one, other, step, at, row, other_row = difference
    says, there = _words(one, row), _words(other, other_row)
    units = [
        name
        for rank, r in ((one, row), (other, other_row))
        if r != UNKNOWN
        and (name := rank.unit_name(int(rank.collectives.unit[r]))) is not None
    ]
    sides = [(r, i) for r, i in ((one, row), (other, other_row)) if i != UNKNOWN]
    rank, index = sides[0]
    table = rank.collectives
    # Captures drop events and begin at different moments; a record does neither.
    captured = Evidence.KERNELS in m.evidence
    return Finding(
        severity=Severity.WARNING if captured else Severity.CRITICAL,
        confidence=Confidence.LOW if captured else Confidence.HIGH,
        summary=f"ranks {one.rank} and {other.rank} differ in step {step}, collective "
        f"{at} of group {group}: {says}, {there}",
        units=tuple(dict.fromkeys(units)),
        phase=_phase(int(table.phase[index])),
        ranks=(one.rank, other.rank),
        evidence={
            "group": group,
            "step": step,
            "position": at,
            str(one.rank): says,
            str(other.rank): there,
        },
        advice=(
            Advice(
                text="Run the same modules on every rank in every step; where a rank "
                "has no data for a branch, give it a dummy input."
            ),
        ),
        places=(place_of(rank, table, index),),
    )


def _words(rank: RankMeasures, row: int) -> str:
    """A side of the difference."""
    if row == UNKNOWN:
        return f"rank {rank.rank} has no more"
    table = rank.collectives
    unit = rank.unit_name(int(table.unit[row])) or "an unknown unit"
    kind = Kind(int(table.kind[row])).key
    return f"rank {rank.rank} has {kind} of {unit} ({size(int(table.bytes[row]))})"
