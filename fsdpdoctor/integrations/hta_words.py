"""HTA's tables, and its figures beside ours, as tables of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fsdpdoctor.integrations.hta import Compared, HtaTables
from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.tables import ABSENT, Cell, Column, Table

MOST_ROWS = 16


def tables_in_words(tables: HtaTables, ranks: Sequence[Compared]) -> Iterator[Table]:
    """Those that HTA could make, and last the comparison."""
    if tables.idle:
        yield _idle(tables)
    if tables.kernel_types:
        yield _kernels(tables)
    if tables.queue:
        yield _queue(tables)
    if ranks:
        yield _comparison(tables, ranks)


def lines_in_words(tables: HtaTables, ranks: Sequence[Compared]) -> Iterator[str]:
    """What is not told by a table: why figures differ, and what HTA could not make."""
    reasons: dict[str, list[int]] = {}
    for one in ranks:
        for words in one.because:
            reasons.setdefault(words, []).append(one.rank)
    for words, of in reasons.items():
        yield f"{words} ({_ranks(of)})"
    if unexplained := [one.rank for one in ranks if one.explained is False]:
        yield f"not explained: {_ranks(unexplained)}"
    if not ranks:
        yield (
            "HTA has nothing to read: no kernel is in these traces. What the report "
            "says is of the host"
        )
    for name, error in tables.errors.items():
        yield f"HTA made no table {name.replace('_', ' ')}: {visible(error)}"


def _ranks(numbers: Sequence[int]) -> str:
    first = ", ".join(map(str, numbers[:8]))
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"rank{'s' if len(numbers) > 1 else ''} {first}{more}"


def _shortened(table: Table) -> Table:
    """Its heaviest rows: a job has as many as it has streams."""
    hidden = len(table.rows) - MOST_ROWS
    if hidden <= 0:
        return table
    return replace(table, rows=table.heaviest(MOST_ROWS), note=f"and {hidden} more")


CATEGORIES = ("host_wait", "kernel_wait", "other")
"""HTA's: the host had not launched the next kernel; it had, and the kernel began right
after or later."""


def _idle(tables: HtaTables) -> Table:
    times: dict[tuple[int, int], dict[str, int]] = {}
    for row in tables.idle:
        times.setdefault((row.rank, row.stream), {})[row.category] = row.ns
    columns = (
        Column(title="rank"),
        Column(title="stream"),
        *(Column(title=name.replace("_", " ")) for name in CATEGORIES),
    )
    rows = tuple(
        (
            Cell(text=str(rank), weight=float(sum(of.values()))),
            Cell(text=str(stream)),
            *(Cell(text=ms(of[n]) if n in of else ABSENT) for n in CATEGORIES),
        )
        for (rank, stream), of in times.items()
    )
    table = Table(title="HTA: idle time", noun="rank", columns=columns, rows=rows)
    return _shortened(table)


def _kernels(tables: HtaTables) -> Table:
    total = sum(row.ns for row in tables.kernel_types) or 1
    columns = (
        Column(title="kernels", left=True),
        Column(title="time, all ranks"),
        Column(title="share"),
    )
    rows = tuple(
        (
            Cell(text=visible(row.kind.lower())),
            Cell(text=ms(row.ns)),
            Cell(text=percent(row.ns / total)),
        )
        for row in tables.kernel_types
    )
    return Table(title="HTA: kernels by type", noun="rank", columns=columns, rows=rows)


def _queue(tables: HtaTables) -> Table:
    columns = (
        Column(title="rank"),
        Column(title="stream"),
        Column(title="launched and waiting, mean"),
        Column(title="most"),
    )
    rows = tuple(
        (
            Cell(text=str(row.rank), weight=row.most),
            Cell(text=str(row.stream)),
            Cell(text=f"{row.mean:.2f}"),
            Cell(text=f"{row.most:.0f}"),
        )
        for row in tables.queue
    )
    table = Table(title="HTA: launch queues", noun="rank", columns=columns, rows=rows)
    return _shortened(table)


def _comparison(tables: HtaTables, ranks: Sequence[Compared]) -> Table:
    columns = (
        Column(title="rank"),
        Column(title="overlap"),
        Column(title="HTA's"),
        Column(title="idle"),
        Column(title="HTA's"),
        Column(title="alike", left=True),
    )
    rows = tuple(
        (
            Cell(text=str(one.rank), weight=float(one.explained is not True)),
            Cell(text=_share(one.ours.share)),
            Cell(text=_share(one.share)),
            Cell(text=ms(one.ours.idle_ns)),
            Cell(text=ABSENT if one.idle_ns is None else ms(one.idle_ns)),
            Cell(text=_verdict(one)),
        )
        for one in ranks
    )
    title = f"Beside HTA ({visible(tables.version)})"
    note = "of the whole capture: part of communication under compute; device idle"
    table = Table(title=title, noun="rank", columns=columns, rows=rows, note=note)
    return _shortened(table)


def _share(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:.2f} %"


def _verdict(one: Compared) -> str:
    if one.explained is None:
        return "HTA made none"
    if not one.explained:
        return "no, not explained"
    return "explained below" if one.because else "yes"
