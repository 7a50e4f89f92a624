"""FD406 and FD408 share one verdict: whose fault it was that a run ended, or hangs.

What makes it is imported where a record says how it ended: a trace never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity

if TYPE_CHECKING:
    from fsdpdoctor.hang.blame import Verdict
    from fsdpdoctor.hang.standing import Standing


def says_how_it_ended(m: Measures) -> bool:
    """Whether any rank's record does; a capture does not."""
    return any(rank.beats or rank.header.end is not None for rank in m.ranks)


def verdict_of(m: Measures) -> tuple[Verdict, list[Standing]] | None:
    """The verdict on a recorded run; None for a capture, or where nothing is wrong."""
    if not says_how_it_ended(m):
        return None
    from fsdpdoctor.hang.blame import judge
    from fsdpdoctor.hang.standing import standings

    ranks = standings(m.ranks)
    verdict = judge(ranks)
    return None if verdict is None else (verdict, ranks)


def differs_by_what_ranks_did(verdict: Verdict) -> bool:
    """Whether it is FD406's, not FD408's."""
    from fsdpdoctor.hang.blame import BY_WHAT_RANKS_DID

    return verdict.cause in BY_WHAT_RANKS_DID


def ending(m: Measures, verdict: Verdict, ranks: list[Standing]) -> Finding:
    """The finding that a verdict is."""
    from fsdpdoctor.hang.blame import PROVED, Cause
    from fsdpdoctor.hang.verdict_words import advice_of, called, summary_of

    one = next(r for r in ranks if r.rank == verdict.ranks[0])
    event = one.last
    if verdict.divergence is not None:
        event = next(iter(verdict.divergence.versions.values()))
    surely = verdict.cause in PROVED
    unproved = verdict.cause in (Cause.ENDED_OUTSIDE, Cause.ALL_GONE)
    unproved |= _may_go_on(verdict, ranks)
    return Finding(
        severity=Severity.WARNING if unproved else Severity.CRITICAL,
        confidence=Confidence.HIGH if surely else Confidence.MEDIUM,
        summary=summary_of(verdict, ranks),
        units=(event.unit,) if event is not None and event.unit else (),
        phase=event.phase if event is not None else None,
        ranks=verdict.ranks,
        evidence={
            "cause": verdict.cause.value,
            "ended": {str(r.rank): r.ended for r in ranks},
            "states": {str(r.rank): r.state.value for r in ranks},
            "last_whole_step": _last_whole_step(m, one.rank),
            "last_events": {
                str(r.rank): r.last.what for r in ranks if r.last is not None
            },
            "lines": {
                str(r.rank): called(r) for r in ranks if r.user_frame is not None
            },
            "waits_for": {str(w.rank): list(w.waits_for) for w in verdict.graph},
        },
        advice=(Advice(text=advice_of(verdict, ranks)),),
        places=_places(m, one.rank),
    )


def _may_go_on(verdict: Verdict, ranks: list[Standing]) -> bool:
    """Whether ranks that run still only wait in groups of their own, in no circle: one
    of them may yet be slow, and come.
    """
    from fsdpdoctor.hang.blame import Cause

    groups = {one.waits_in for one in ranks if one.waits_in is not None}
    return verdict.live and verdict.cause == Cause.OTHER_CALL and len(groups) > 1


def _last_whole_step(m: Measures, number: int) -> int | None:
    rank = next(r for r in m.ranks if r.rank == number)
    whole = rank.steps.step[rank.steps.complete == 1]
    return int(whole[-1]) if len(whole) else None


def _places(m: Measures, number: int) -> tuple[Location, ...]:
    rank = next(r for r in m.ranks if r.rank == number)
    if not rank.beats:
        return ()
    beat = rank.beats[-1]
    return (
        Location(
            rank=rank.rank,
            step=beat.step,
            start_ns=beat.time_ns,
            end_ns=beat.time_ns,
            unit=rank.unit_name(beat.unit),
        ),
    )
