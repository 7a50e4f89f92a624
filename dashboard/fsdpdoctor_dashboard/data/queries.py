"""What the timeline asks about one place: JSON-ready answers from a store.

Times go out as whole nanoseconds from the store's origin on. `local_source.js` holds
the same questions for a page that has no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import Flag, Kind, Lane, Phase
from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.data.store import RankTable, Series, Store
from fsdpdoctor_dashboard.data.tiles import BINS, BITS, bin_edges, whole_level

Json = dict[str, Any]

MEMORY_CURVES = ("allocated_bytes", "unsharded_bytes", "rss_bytes")
"""What the memory curve shows: the first of these that the rank has."""


MOST_PEERS = 512
"""Ranks on which the same collective is looked for; of each, the columns of a rank are
read."""


def _mark(series: Series, row: int) -> Json:
    start = int(series.start[row])
    return {
        "rank": series.rank,
        "series": series.series,
        "start": start,
        "end": start + int(series.length[row]),
        "span": int(series.span[row]),
        "unit": int(series.unit[row]),
    }


def _of_row(store: Store, rank: int, row: int) -> list[Series]:
    return [s for s in store.series(rank) if SERIES[s.series].row == row]


def under(store: Store, rank: int, row: int, t0: int, t1: int) -> Json:
    """What a row held within `[t0, t1)`: the mark, or how many and how busy."""
    parts = _of_row(store, rank, row)
    marks = [
        _mark(part, at)
        for part in parts
        if (here := part.between(t0, t1)).stop - here.start <= 2
        for at in range(here.start, here.stop)
    ]
    busy = sum(part.area(t0, t1).busy_ns for part in parts)
    count = sum(
        max(0, here.stop - here.start)
        for here in (part.between(t0, t1) for part in parts)
    )
    return {"marks": marks if count <= 2 else [], "count": count, "busy": busy}


def neighbour(store: Store, rank: int, row: int, time: int, forward: bool) -> Json:
    """The first mark of a row that starts after, or the last before, a moment."""
    return _nearest(_of_row(store, rank, row), time, forward)


def next_exposed(
    store: Store, ranks: Iterable[int], time: int, forward: bool, at_least: int
) -> Json:
    """The nearest exposed stretch of some ranks that is long enough to matter."""
    parts = [s for rank in ranks for s in _of_row(store, rank, Row.EXPOSED)]
    return _nearest(parts, time, forward, at_least)


def _nearest(
    parts: Sequence[Series], time: int, forward: bool, at_least: int = 0
) -> Json:
    found: list[Json] = []
    for part in parts:
        if forward:
            first = int(np.searchsorted(part.start, time, "right"))
            long = np.flatnonzero(part.length[first:] >= at_least)
            if len(long):
                found.append(_mark(part, first + int(long[0])))
        else:
            last = int(np.searchsorted(part.start, time, "left"))
            long = np.flatnonzero(part.length[:last] >= at_least)
            if len(long):
                found.append(_mark(part, int(long[-1])))
    if not found:
        return {"mark": None}
    pick = min if forward else max
    return {"mark": pick(found, key=lambda mark: int(mark["start"]))}


def find(
    store: Store,
    ranks: Iterable[int],
    units: npt.NDArray[np.int64],
    time: int,
    forward: bool,
) -> Json:
    """The nearest mark of some units on the device, its place among all of them, and
    their number. What the host did for a unit is not what one looks for by its name.
    """
    skipped = (
        Row.HOST,
        Row.UNSHARDED_ROOT,
        Row.UNSHARDED_EVEN,
        Row.UNSHARDED_ODD,
        Row.STEP,
        Row.MICRO_BATCH,
    )
    best: Json | None = None
    every: list[Int64s] = []
    for rank in ranks:
        for part in store.series(rank):
            if SERIES[part.series].row in skipped:
                continue
            mine = np.flatnonzero(np.isin(part.unit, units))
            starts = part.start[mine]
            every.append(starts)
            if forward:
                at = int(np.searchsorted(starts, time, "right"))
            else:
                at = int(np.searchsorted(starts, time, "left")) - 1
            if not 0 <= at < len(mine):
                continue
            mark = _mark(part, int(mine[at]))
            if best is None or (mark["start"] < best["start"]) == forward:
                best = mark
    found = np.concatenate(every) if every else np.zeros(0, dtype=np.int64)
    before = 0 if best is None else int((found < best["start"]).sum())
    return {"mark": best, "total": len(found), "at": before + 1}


def largest_exposed(
    store: Store, ranks: Iterable[int], t0: int, t1: int, unit_count: int
) -> list[tuple[int, int]]:
    """(unit, ns) of the units that were waited for most within an area."""
    totals = np.zeros(unit_count + 1, dtype=np.int64)
    for rank in ranks:
        for part in _of_row(store, rank, Row.EXPOSED):
            here = part.between(t0, t1)
            if here.stop <= here.start:
                continue
            start = np.maximum(part.start[here], t0)
            end = np.minimum(part.start[here] + part.length[here], t1)
            known = np.where(part.unit[here] < 0, unit_count, part.unit[here])
            np.add.at(totals, np.minimum(known, unit_count), end - start)
    order = np.argsort(totals[:unit_count])[::-1][:5]
    return [(int(unit), int(totals[unit])) for unit in order if totals[unit]]


class Details:
    """What one mark was: every column that the source filled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names = store.names

    def of(self, rank: int, series: int, span: int) -> Json:
        """The mark's span, its flow on this rank and its peers on the others."""
        if SERIES[series].row == Row.STEP:
            return {"title": f"step {span}", "facts": [], "flow": [], "peers": []}
        if SERIES[series].row == Row.EXPOSED:
            return self._stall(rank, series, span)
        table = self._store.spans[rank]
        return {
            "title": _title(series, self._names[rank].unit(table.value("unit", span))),
            "start": self._time(table, "start_ns", span),
            "end": self._time(table, "end_ns", span),
            "facts": self._facts(rank, table, span),
            "flow": self._flow(rank, table, span),
            **self._peers(rank, table, span),
        }

    def _time(self, table: RankTable, name: str, row: int) -> int | None:
        value = table.value(name, row)
        return None if value is None else value - self._store.origin_ns

    def _stall(self, rank: int, series: int, row: int) -> Json:
        table = self._store.exposed[rank]
        collective = table.value("span", row)
        spans = self._store.spans[rank]
        unit = self._names[rank].unit(table.value("unit", row))
        known = collective is not None
        return {
            "title": _title(series, unit),
            "start": self._time(table, "start_ns", row),
            "end": self._time(table, "end_ns", row),
            "causes": [[c, table.value(c, row) or 0] for c in CAUSES],
            "first": bool((table.value("flags", row) or 0) & Flag.FIRST),
            "facts": self._facts(rank, spans, collective) if known else [],
            "flow": self._flow(rank, spans, collective) if known else [],
            **(self._peers(rank, spans, collective) if known else {"peers": []}),
        }

    def _facts(self, rank: int, table: RankTable, row: int | None) -> list[list[Any]]:
        if row is None:
            return []
        names = self._names[rank]
        value = table.value
        issued, start = value("issued_ns", row), value("start_ns", row)
        lead = start - issued if issued is not None and start is not None else None
        flags = Flag(value("flags", row) or 0)
        facts: list[tuple[str, str, object]] = [
            ("kind", "text", Kind(value("kind", row) or 0).key),
            ("lane", "text", Lane(value("lane", row) or 0).key),
            ("phase", "text", Phase(value("phase", row) or 0).key),
            ("unit", "text", names.unit(value("unit", row))),
            ("issued by", "text", names.unit(value("by_unit", row))),
            ("issued before its start", "ns", lead),
            ("bytes", "bytes", value("bytes", row)),
            ("group", "text", names.group(value("group", row))),
            ("number in group", "text", value("seq", row)),
            ("micro-batch", "text", value("micro_batch", row)),
            ("stream", "text", value("stream", row)),
            ("name", "text", names.name(value("name", row))),
            ("flags", "text", _flag_words(flags)),
        ]
        return [list(fact) for fact in facts if fact[2] is not None]

    def _flow(self, rank: int, table: RankTable, row: int | None) -> list[Json]:
        """The spans of the same unshard or reduction, by start."""
        op = None if row is None else table.value("op", row)
        if op is None:
            return []
        rows = np.flatnonzero(table.column("op") == op)
        found = [self._place(rank, table, int(other)) for other in rows[:32]]
        return sorted((f for f in found if f), key=lambda place: int(place["start"]))

    def _peers(self, rank: int, table: RankTable, row: int | None) -> Json:
        """The same collective on the other ranks; of too many on those next to this
        one, and how many others were not looked at.
        """
        if row is None or table.value("seq", row) is None:
            return {"peers": []}
        seq, kind = table.value("seq", row), table.value("kind", row)
        group = self._names[rank].group(table.value("group", row))
        found: list[Json] = []
        near = nearest(self._store.ranks, rank)
        for other in near if group is not None else ():
            there = self._store.spans[other]
            mine = (there.column("seq") == seq) & (there.column("kind") == kind)
            for at in np.flatnonzero(mine)[:4].tolist():
                if self._names[other].group(there.value("group", at)) == group:
                    found.append(self._place(other, there, at))
        left_out = len(self._store.ranks) - 1 - len(near)
        return {"peers": [place for place in found if place]} | (
            {"others": left_out} if left_out and group is not None else {}
        )

    def _place(self, rank: int, table: RankTable, row: int) -> Json:
        start, end = (
            self._time(table, "start_ns", row),
            self._time(table, "end_ns", row),
        )
        if start is None or end is None:
            return {}
        kind, lane = Kind(table.value("kind", row) or 0), table.value("lane", row) or 0
        return {
            "rank": rank,
            "row": row_of(kind, Lane(lane)),
            "kind": kind.key,
            "start": start,
            "end": end,
            "span": row,
        }

    def live(self, rank: int, time: int) -> list[Json]:
        """The units whose unshard window holds a moment, the largest first."""
        # The spans and not the marks: marks of one row are cut where windows overlap.
        table = self._store.spans[rank]
        at = time + self._store.origin_ns
        open_now = (
            (table.column("kind") == Kind.UNSHARDED)
            & (table.column("start_ns") <= at)
            & (table.column("end_ns") > at)
        )
        found: list[Json] = [
            {
                "unit": self._names[rank].unit(table.value("unit", row)),
                "bytes": table.value("bytes", row),
            }
            for row in np.flatnonzero(open_now).tolist()
        ]
        return sorted(found, key=lambda live: -(live["bytes"] or 0))


def nearest(ranks: Sequence[int], rank: int) -> list[int]:
    """The ranks that stand next to one, without itself, ascending."""
    at = ranks.index(rank)
    first = max(0, min(at - MOST_PEERS // 2, len(ranks) - MOST_PEERS - 1))
    return [other for other in ranks[first : first + MOST_PEERS + 1] if other != rank]


def _title(series: int, unit: str | None) -> str:
    name = SERIES[series].name
    return name if unit is None else f"{name} {unit}"


def _flag_words(flags: Flag) -> str | None:
    words = [flag.name.lower().replace("_", " ") for flag in flags if flag.name]
    return ", ".join(words) or None


def row_of(kind: Kind, lane: Lane) -> int:
    """The row of the picture in which a span is."""
    if kind in (Kind.ALL_GATHER_WAIT, Kind.REDUCE_SCATTER_WAIT, Kind.ALL_REDUCE_WAIT):
        return Row.EXPOSED
    return {
        Lane.HOST: Row.HOST,
        Lane.COMPUTE: Row.COMPUTE,
        Lane.COPY_IN: Row.COPIES,
        Lane.COPY: Row.COPIES,
        Lane.ALL_GATHER: Row.ALL_GATHER,
        Lane.REDUCE_SCATTER: Row.REDUCE_SCATTER,
        Lane.ALL_REDUCE: Row.ALL_REDUCE,
        Lane.OTHER_COMM: Row.OTHER_COMM,
        Lane.UNSHARDED: Row.UNSHARDED_EVEN,
    }[lane]


def memory_curve(store: Store, rank: int, level: int, indices: range) -> Json:
    """The lowest and highest value in each bin of some tiles, and the peak of the rank.

    A sample holds until the next one, so a bin without any carries the last.
    """
    table = store.memory[rank]
    curve = next((c for c in MEMORY_CURVES if _has(table, c)), None)
    if curve is None:
        return {"curve": None}
    times = table.column("time_ns") - store.origin_ns
    values = table.column(curve)
    known = values >= 0
    times, values = times[known], values[known]
    edges = bin_edges(level, indices.start, len(indices))
    low, high = _envelope(times, values, edges)
    peak = int(np.argmax(values))
    return {
        "curve": curve,
        "low": low.tolist(),
        "high": high.tolist(),
        "top": int(values.max()),
        "peak": {"time": int(times[peak]), "bytes": int(values[peak])},
    }


def _has(table: RankTable, name: str) -> bool:
    """A curve of nothing but zeros is of a run that has no such thing."""
    return len(table) > 0 and bool((table.column(name) > 0).any())


def _envelope(times: Int64s, values: Int64s, edges: Int64s) -> tuple[Int64s, Int64s]:
    """Per bin the extremes, -1 where nothing was sampled yet."""
    first = np.searchsorted(times, edges[:-1], "left")
    last = np.searchsorted(times, edges[1:], "left")
    carried = np.searchsorted(times, edges[:-1], "right") - 1
    held = np.where(carried >= 0, values[np.maximum(carried, 0)], -1)
    low, high = held.copy(), held.copy()
    full = np.flatnonzero(last > first)
    if len(full):
        ends = np.stack((first[full], last[full]), axis=1).ravel()
        padded = np.append(values, values[-1])
        lowest = np.minimum.reduceat(padded, ends)[::2]
        highest = np.maximum.reduceat(padded, ends)[::2]
        none = held[full] < 0
        low[full] = np.where(none, lowest, np.minimum(lowest, held[full]))
        high[full] = np.maximum(highest, held[full])
    beyond = edges[:-1] > times[-1]
    low[beyond], high[beyond] = -1, -1
    return low, high


def minimap(store: Store) -> Json:
    """The whole run in BINS columns: the ranks' mean exposed and compute share."""
    level = whole_level(store)
    edges = bin_edges(level, 0)
    exposed = np.zeros(BINS, dtype=np.int64)
    compute = np.zeros(BINS, dtype=np.int64)
    for rank in store.ranks:
        for part in store.series(rank):
            row = SERIES[part.series].row
            if row == Row.EXPOSED:
                exposed += part.busy(edges)
            elif row == Row.COMPUTE:
                compute += part.busy(edges)
    whole = max(1, len(store.ranks)) << (level - BITS)
    return {
        "level": level,
        "exposed": (-(-exposed * 255 // whole)).tolist(),
        "compute": (compute * 255 // whole).tolist(),
    }
