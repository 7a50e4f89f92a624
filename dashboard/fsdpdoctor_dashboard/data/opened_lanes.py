"""What stands under a lane that is opened: its operators, calls and kernels, line by
line, in as many marks as a screen can show; and one of them with its arguments.

Times are whole nanoseconds from the store's origin on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.reader.event_index import EventIndex, Line, host_event
from fsdpdoctor.importers.reader.trace_file import Cat
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.renderers.formatting import unit_name
from fsdpdoctor.schema import UNKNOWN
from fsdpdoctor_dashboard.data.series import Row
from fsdpdoctor_dashboard.data.trace_events import RankEvents

Json = dict[str, Any]

LANES = (
    Row.COMPUTE,
    Row.ALL_GATHER,
    Row.REDUCE_SCATTER,
    Row.ALL_REDUCE,
    Row.OTHER_COMM,
    Row.COPIES,
    Row.HOST,
)
"""The rows that can be opened."""

MOST_LINES = 48
"""Of one lane: threads have some ten lines each. That there are more is said."""

MOST_RELATED = 20
MOST_ARGUMENTS = 60

_KINDS = {
    Cat.KERNEL: "kernel",
    Cat.MEMCPY: "memcpy",
    Cat.MEMSET: "memset",
    Cat.RUNTIME: "call",
    Cat.ANNOTATION: "annotation",
    Cat.CPU_OP: "operator",
}


class LaneLines(NamedTuple):
    """The lines of a lane, as they stand under each other."""

    shown: tuple[Line, ...]
    more: int  # that are not shown


def lane_lines(events: RankEvents, row: int) -> LaneLines:
    """The streams that a lane's spans ran on, busiest first. Of the host, and of a lane
    that no stream is known of, the threads; they are under compute where the host has
    no row.
    """
    lines = events.index.lines
    streams = events.streams.get(row, frozenset())
    device = [line for line in lines if line.device is not None and line.id in streams]
    host = [line for line in lines if line.device is None]
    if row == Row.HOST or not device:
        found = _in_order(host)
    else:
        found = _in_order(device)
        if row == Row.COMPUTE and Row.HOST not in events.rows:
            found += _in_order(host)
    return LaneLines(tuple(found[:MOST_LINES]), max(0, len(found) - MOST_LINES))


def _in_order(lines: Sequence[Line]) -> list[Line]:
    """Threads or streams with most events first, each by depth."""
    counts: Counter[tuple[int | None, int]] = Counter()
    for line in lines:
        counts[line.device, line.id] += line.last - line.first
    return sorted(
        lines,
        key=lambda line: (
            -counts[line.device, line.id],
            line.device or 0,
            line.id,
            line.depth,
        ),
    )


def lanes_of(events: RankEvents, line: Line) -> list[int]:
    """The rows under which a line is shown, if they are opened."""
    return [
        int(row)
        for row in LANES
        if row in events.rows and line in lane_lines(events, row).shown
    ]


def line_key(line: Line) -> str:
    """By what a page knows a line again."""
    place = "t" if line.device is None else f"d{line.device}"
    return f"{place}.{line.id}.{line.depth}"


def _line_label(line: Line, names: Sequence[str]) -> str:
    if line.device is not None:
        return f"stream {line.id}"
    if line.id <= -2:  # a thread that the trace gives a name, and no number
        return unit_name(names[-2 - line.id])
    return f"thread {line.id}"


def window(
    events: RankEvents, lines: LaneLines, t0: int, t1: int, pixel_ns: int
) -> Json:
    """What the lines of a lane held within `[t0, t1)`. Events that are shorter than a
    pixel and begin in the same one stand for each other, with their number.
    """
    index = events.index
    own = events.own(t0), events.own(t1)
    rows = [_row(events, line, own, pixel_ns) for line in lines.shown]
    used = sorted({name for row in rows for name in row["name"]})
    return {
        "rows": rows,
        "more": lines.more,
        "names": {str(name): unit_name(index.names[name]) for name in used},
    }


def _row(events: RankEvents, line: Line, own: tuple[int, int], pixel_ns: int) -> Json:
    index = events.index
    here = index.between(line, *own)
    start = events.on_timeline(index.start_ns[here])
    end = start + index.duration_ns[here]
    first, count = _merged(start, end, max(1, pixel_ns))
    last = first + count - 1
    return {
        "key": line_key(line),
        "label": _line_label(line, index.names) if line.depth == 0 else "",
        "start": start[first].tolist(),
        "end": end[last].tolist(),
        "event": (first + here.start).tolist(),
        "count": count.tolist(),
        "name": index.name[here][first].tolist(),
        "cat": index.cat[here][first].tolist(),
    }


def _merged(start: Int64s, end: Int64s, pixel_ns: int) -> tuple[Int64s, Int64s]:
    """The first of each group, and how many are in it."""
    if not len(start):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    alone = end - start >= pixel_ns
    pixel = start // pixel_ns
    new = np.ones(len(start), dtype=np.bool_)
    new[1:] = alone[1:] | alone[:-1] | (pixel[1:] != pixel[:-1])
    first = np.flatnonzero(new)
    return first, np.diff(first, append=len(start))


def event_details(rank: int, events: RankEvents, event: int) -> Json:
    """An event with its arguments, what it is within, and its launch."""
    index = events.index
    said = [
        [unit_name(str(name)), "text", _argument(value)]
        for name, value in list(index.arguments(event).items())[:MOST_ARGUMENTS]
    ]
    linked = index.correlated(event)
    on_host = host_event(int(index.cat[event]))
    others = [e for e in linked if host_event(int(index.cat[e])) != on_host]
    mine = brief(rank, events, event)
    return {
        **mine,
        "place": _place(index, event),
        "arguments": said,
        "within": [brief(rank, events, e) for e in index.around(event)],
        "launch": [brief(rank, events, e) for e in others[:MOST_RELATED]],
    }


def _place(index: EventIndex, event: int) -> str:
    line = index.line_of(event)
    label = _line_label(line, index.names)
    return label if line.device is None else f"{label} of device {line.device}"


def _argument(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return unit_name(text)


def brief(rank: int, events: RankEvents, event: int) -> Json:
    """An event as another one names it, and where it can be seen."""
    index = events.index
    start = int(events.on_timeline(index.start_ns[event : event + 1])[0])
    line = index.line_of(event)
    return {
        "rank": rank,
        "event": event,
        "title": unit_name(index.names[int(index.name[event])]),
        "kind": _KINDS[Cat(int(index.cat[event]))],
        "start": start,
        "end": start + int(index.duration_ns[event]),
        "key": line_key(line),
        "lanes": lanes_of(events, line),
    }


class Hits(NamedTuple):
    """The events that a text finds, in the order of time."""

    start: Int64s  # as the timeline counts
    rank: Int64s
    event: Int64s


def hits(ranks: Iterable[tuple[int, RankEvents]], text: str) -> Hits:
    """All events whose name holds a text, whatever its case, of some ranks together."""
    parts = []
    wanted = text.casefold()
    for rank, events in ranks:
        index = events.index
        named: npt.NDArray[np.bool_] = np.array(
            [wanted in name.casefold() for name in index.names], dtype=np.bool_
        )
        found = index.named(named)
        start = events.on_timeline(index.start_ns[found])
        parts.append((start, np.full(len(found), rank, dtype=np.int64), found))
    start, rank_of, event = (
        np.concatenate([part[at] for part in parts])
        if parts
        else np.empty(0, dtype=np.int64)
        for at in range(3)
    )
    order = np.lexsort((event, rank_of, start))
    return Hits(start[order], rank_of[order], event[order])


def hit_at(found: Hits, time: int, forward: bool) -> int:
    """The first hit that begins at a moment or after it, or the last before it; from 1
    on, 0 where there is none.
    """
    at = int(np.searchsorted(found.start, time, "left"))
    if forward:
        return at + 1 if at < len(found.start) else 0
    return at


def next_event(index: EventIndex, event: int, forward: bool) -> int:
    """The event beside another on its line, or UNKNOWN."""
    line = index.line_of(event)
    other = event + (1 if forward else -1)
    return other if line.first <= other < line.last else UNKNOWN
