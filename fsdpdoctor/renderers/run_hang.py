"""What a recorded run says of its hang or its end: on the terminal and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors import judge_all
from fsdpdoctor.finding import Finding
from fsdpdoctor.hang.standing import Standing, State, standings
from fsdpdoctor.hang.verdict_words import at, inside, line
from fsdpdoctor.hang.wait_graph import Wait, circle, waits
from fsdpdoctor.quantities import count, duration
from fsdpdoctor.rank_end import Frame, Stall
from fsdpdoctor.renderers.formatting import ranges, visible
from fsdpdoctor.renderers.hang import Hang, encode_hang
from fsdpdoctor.storage.json_text import json_text

RUN_HANG_SCHEMA_VERSION = 1
"""Of the JSON."""

CODES = ("FD406", "FD408")

MOST_RANKS = 16
MOST_FRAMES = 8
"""Of a stack on the terminal; --json has all."""

NOTHING = "no rank says that it stands still, and none ended of a fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHang:
    """A run's verdict, and where each of its ranks stands."""

    verdict: Finding | None
    ranks: tuple[Standing, ...]
    stalls: tuple[Stall, ...]
    graph: tuple[Wait, ...]
    missing: tuple[int, ...]
    restarts: tuple[str, ...]  # folders of later attempts
    read_unix_ns: int


def run_hang(m: Measures, restarts: tuple[str, ...] = ()) -> RunHang:
    """Ask the two detectors, and gather what they asked."""
    findings, _ = judge_all(m)
    verdicts = [finding for finding in findings if finding.code in CODES]
    ranks = standings(m.ranks)
    return RunHang(
        verdict=verdicts[0] if verdicts else None,
        ranks=tuple(ranks),
        stalls=tuple(rank.stall for rank in m.ranks if rank.stall is not None),
        graph=waits(ranks),
        missing=m.missing_ranks,
        restarts=restarts,
        read_unix_ns=time.time_ns(),
    )


def restarts_of(folder: Path) -> tuple[str, ...]:
    """Later attempts that a launcher made after this one."""
    found = folder.absolute().parent.glob(f"{folder.absolute().name}-restart*")
    return tuple(sorted(str(path) for path in found))


def show_run_hang(hang: RunHang, console: Console) -> None:
    """Print the verdict, then where every rank stands, who waits for whom, stacks."""
    for text, style in _lines(hang):
        console.print(Text(visible(text), style=style), soft_wrap=True)


def _lines(hang: RunHang) -> Iterator[tuple[str, str]]:
    if hang.verdict is None:
        yield NOTHING, ""
    else:
        yield f"{hang.verdict.code} {hang.verdict.summary}", "bold"
        for advice in hang.verdict.advice:
            yield f"  try: {advice.text}", ""
    yield from _progress(hang)
    yield "", ""
    yield "where each rank stands:", ""
    for one in hang.ranks[:MOST_RANKS]:
        yield f"  {_where(one)}", ""
    if len(hang.ranks) > MOST_RANKS:
        yield f"  and {count(len(hang.ranks) - MOST_RANKS, 'more rank')}: --json", "dim"
    yield from _graph(hang)
    yield from _stacks(hang)
    if hang.missing:
        yield f"no record of rank {ranges(hang.missing)}", "yellow"
    for folder in hang.restarts:
        yield f"note: the launcher started again, into {folder}", "yellow"


def _progress(hang: RunHang) -> Iterator[tuple[str, str]]:
    """The age of the last progress: now while it hangs, else at the end."""
    times = [_progress_ns(one) for one in hang.ranks]
    moved = [ns for ns in times if ns]
    if not moved:
        return
    ages = sorted({max(0, hang.read_unix_ns - ns) for ns in moved})
    live = [one for one in hang.ranks if one.state in (State.STANDING, State.SILENT)]
    if live and all(one.ended == "running" for one in live):
        first = f"of the rank that stopped first: {duration(ages[-1])} ago"
        yield f"last progress of any rank: {duration(ages[0])} ago; {first}", ""
    ends = [one.end_unix_ns for one in hang.ranks if one.end_unix_ns]
    if ends:
        gap = duration(max(0, min(ends) - max(moved)))
        yield f"the first rank ended {gap} after the last progress of any", ""


def _progress_ns(one: Standing) -> int:
    position = one.position
    if position is None or (one.end is not None and one.last_unix_ns):
        return one.last_unix_ns
    return max(position.progress_unix_ns, one.last_unix_ns)


def _where(one: Standing) -> str:
    words = f"rank {one.rank}: {one.state.value}"
    if one.ended not in ("running", "done"):
        text = one.ended if len(one.ended) <= 140 else f"{one.ended[:137]}..."
        words += f" ({text})"
    if one.call is not None:
        return f"{words}, in {inside(one)}"
    return f"{words}{',' if at(one) else ''}{at(one)}"


def _graph(hang: RunHang) -> Iterator[tuple[str, str]]:
    if not hang.graph:
        return
    yield "", ""
    yield "who waits for whom:", ""
    for edge in hang.graph[:MOST_RANKS]:
        what = f"(#{edge.seq} of group {edge.group.name})"
        yield f"  rank {edge.rank} -> rank {ranges(edge.waits_for)}  {what}", ""
    if found := circle(hang.graph):
        yield f"  in a circle: rank {ranges(found)}", "bold"


def _stacks(hang: RunHang) -> Iterator[tuple[str, str]]:
    blamed = set(hang.verdict.ranks) if hang.verdict is not None else set()
    shown = sorted(hang.ranks, key=lambda one: (one.rank not in blamed, one.rank))
    for one in [s for s in shown if s.stack][:MOST_RANKS]:
        yield "", ""
        yield f"stack of rank {one.rank}, innermost last:", ""
        for frame in one.stack[-MOST_FRAMES:]:
            yield f"  {_frame(frame)}", "" if frame.user else "dim"
        threads = one.position.threads if one.position is not None else ()
        for thread in threads:
            yield f"  thread {thread.thread} is in {thread.call.name}", "bold"
            for frame in [f for f in thread.stack if f.user][-2:]:
                yield f"    {_frame(frame)}", ""


def _frame(frame: Frame) -> str:
    code = f"  {frame.code}" if frame.code else ""
    return f"{line(frame)}{code}"


def encode_run_hang(hang: RunHang, dumps: Hang | None) -> str:
    """The same as JSON."""
    verdict = hang.verdict
    said = {
        "schema_version": RUN_HANG_SCHEMA_VERSION,
        "verdict": None
        if verdict is None
        else {
            "code": verdict.code,
            "summary": verdict.summary,
            "ranks": verdict.ranks,
            "cause": verdict.evidence.get("cause"),
            "advice": [advice.text for advice in verdict.advice],
        },
        "ranks": [_encoded(one, hang) for one in hang.ranks],
        "waits_for": [
            {
                "rank": edge.rank,
                "ranks": edge.waits_for,
                "group": edge.group.name,
                "members": edge.group.members,
                "seq": edge.seq,
            }
            for edge in hang.graph
        ],
        "in_a_circle": circle(hang.graph),
        "without_record": hang.missing,
        "restarts": hang.restarts,
        "flight_recorder": None
        if dumps is None
        else msgspec.json.decode(encode_hang(dumps)),
    }
    return json_text(said)


def _encoded(one: Standing, hang: RunHang) -> dict[str, object]:
    progress = _progress_ns(one)
    frame = one.user_frame
    position = one.position
    return {
        "rank": one.rank,
        "state": one.state.value,
        "ended": one.ended,
        "step": one.step,
        "in": one.call,
        "operands": one.operands,
        "unit": one.last.unit if one.last is not None else None,
        "phase": one.last.phase if one.last is not None else None,
        "place": line(frame) or None,
        "last_progress_unix_ns": progress or None,
        "last_progress_age_ns": max(0, hang.read_unix_ns - progress)
        if progress
        else None,
        "groups": [
            {"name": group.name, "members": group.members, "seq": seq}
            for group, seq in one.counts.items()
        ],
        "stack": [asdict(f) for f in one.stack],
        "threads": [asdict(t) for t in (position.threads if position else ())],
    }
