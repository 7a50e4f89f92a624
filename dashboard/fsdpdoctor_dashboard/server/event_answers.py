"""What an opened lane asks: its events, one of them, and the hits of a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsdpdoctor.schema import UNKNOWN
from fsdpdoctor_dashboard.data import opened_lanes
from fsdpdoctor_dashboard.data.run_registry import Picture
from fsdpdoctor_dashboard.data.trace_events import (
    NoEventsError,
    RankEvents,
    TraceEvents,
)
from fsdpdoctor_dashboard.server.query_params import Args, BadQueryError, whole
from fsdpdoctor_dashboard.server.responses import ranks_asked, tag_of

Json = dict[str, Any]

LONGEST_TEXT = 200
"""Of what is searched for."""

MOST_SEARCHED = 16
"""Ranks in one search: each is a file that has to be read first."""


class EventAnswers:
    """Answers about the events of runs."""

    def __init__(self) -> None:
        self._events = TraceEvents()
        self._searched: tuple[object, opened_lanes.Hits] | None = None

    @property
    def by_name(self) -> dict[str, Callable[[Picture, Args], Json]]:
        """Each question's answer."""
        return {
            "lane": self._lane,
            "event": self._event,
            "event-beside": self._beside,
            "find-event": self._find,
        }

    def _of(self, run: Picture, rank: int) -> RankEvents | Json:
        """The events, or what to answer instead."""
        try:
            found = self._events.of(run, rank)
        except NoEventsError as error:
            return {"why": str(error)}
        return {"reading": found} if isinstance(found, str) else found

    def _lane(self, run: Picture, args: Args) -> Json:
        rank, row = _rank(run, args), whole(args, "row")
        t0, t1, pixel = whole(args, "t0"), whole(args, "t1"), whole(args, "pixel")
        if row not in opened_lanes.LANES:
            raise BadQueryError("this row cannot be opened")
        found = self._of(run, rank)
        if isinstance(found, dict):
            return found
        lines = opened_lanes.lane_lines(found, row)
        return opened_lanes.window(found, lines, t0, t1, pixel)

    def _event(self, run: Picture, args: Args) -> Json:
        rank = _rank(run, args)
        found = self._of(run, rank)
        if isinstance(found, dict):
            return found
        event = _event_asked(found, args)
        return opened_lanes.event_details(rank, found, event)

    def _beside(self, run: Picture, args: Args) -> Json:
        rank, forward = _rank(run, args), whole(args, "forward", 1) != 0
        found = self._of(run, rank)
        if isinstance(found, dict):
            return found
        event = _event_asked(found, args)
        other = opened_lanes.next_event(found.index, event, forward)
        if other == UNKNOWN:
            return {"event": None}
        return {"event": opened_lanes.brief(rank, found, other)}

    def _find(self, run: Picture, args: Args) -> Json:
        """A hit by its place among all, or the one nearest to a moment."""
        text = args.get("text", "")[:LONGEST_TEXT]
        opened: dict[int, RankEvents] = {}
        for rank in ranks_asked(run, args)[:MOST_SEARCHED]:
            found = self._of(run, rank)
            if isinstance(found, dict):
                return found
            opened[rank] = found
        hits = self._hits((tag_of(run), tuple(opened), text), opened, text)
        at = whole(args, "at", 0)
        if not at:
            forward = whole(args, "forward", 1) != 0
            at = opened_lanes.hit_at(hits, whole(args, "time"), forward)
        total = len(hits.start)
        if not 1 <= at <= total:
            return {"event": None, "at": 0, "total": total}
        rank, event = int(hits.rank[at - 1]), int(hits.event[at - 1])
        found_event = opened_lanes.brief(rank, opened[rank], event)
        return {"event": found_event, "at": at, "total": total}

    def _hits(
        self, key: object, opened: dict[int, RankEvents], text: str
    ) -> opened_lanes.Hits:
        """Those of the last search stay: one goes from hit to hit."""
        last = self._searched
        if last is not None and last[0] == key:
            return last[1]
        found = opened_lanes.hits(opened.items() if text else (), text)
        self._searched = (key, found)
        return found


def _rank(run: Picture, args: Args) -> int:
    rank = whole(args, "rank")
    if rank not in run.store.spans:
        raise BadQueryError("the run has no such rank")
    return rank


def _event_asked(found: RankEvents, args: Args) -> int:
    event = whole(args, "event")
    if not 0 <= event < len(found.index):
        raise BadQueryError("the rank has no such event")
    return event
