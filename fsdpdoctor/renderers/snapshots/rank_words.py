"""Snapshots of a job's ranks side by side, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdpdoctor.memory_snapshot.compare_ranks import Difference, SnapshotComparison
from fsdpdoctor.quantities import size
from fsdpdoctor.renderers.formatting import unit_name, visible
from fsdpdoctor.renderers.reading.memory_words import bucket_words
from fsdpdoctor.renderers.snapshots.snapshot_tables import CANNOT_TELL, size_cell
from fsdpdoctor.renderers.snapshots.snapshot_words import SnapshotWords, clock
from fsdpdoctor.renderers.tables import ABSENT, Cell, Column, Table


def comparison_words(comparison: SnapshotComparison) -> SnapshotWords:
    """Files side by side: which holds most, and by what."""
    files = comparison.files
    names = [
        f"rank {one.rank}" if one.rank is not None else visible(Path(one.path).name)
        for one in files
    ]
    most, least = names[comparison.most], names[comparison.least]
    when = "at its peak" if comparison.moment == "peak" else "as its snapshot was taken"
    if comparison.spread_bytes:
        more = size(comparison.spread_bytes)
        headline = f"{most} holds most {when}, {more} more than {least}"
    else:
        headline = f"all {len(files)} files hold the same {when}"
    return SnapshotWords(
        headline=headline,
        facts=(),
        tables=(
            _files(comparison, names),
            *_differences(comparison.differences, most, least),
        ),
        notes=(),
    )


def _files(comparison: SnapshotComparison, names: Sequence[str]) -> Table:
    columns = (
        Column(title="file", left=True),
        Column(title="held"),
        Column(title="reserved"),
        Column(title="at", left=True, keep=4),
        Column(title="out of memory", keep=6),
    )
    whole = comparison.files[comparison.most].held_bytes
    rows = [
        (
            Cell(text=name),
            size_cell(one.held_bytes, whole),
            Cell(
                text=ABSENT if one.reserved_bytes is None else size(one.reserved_bytes)
            ),
            Cell(text=ABSENT if one.time_us is None else clock(one.time_us)),
            Cell(text=str(one.out_of_memory), alert=one.out_of_memory > 0),
        )
        for name, one in zip(names, comparison.files, strict=True)
    ]
    return Table(title="Files", noun="part", columns=columns, rows=(*rows,))


def _differences(rows: Sequence[Difference], most: str, least: str) -> Iterator[Table]:
    for of, title in (
        ("bucket", "By what for"),
        ("unit", "By unit"),
        ("line", "By line"),
    ):
        mine = [row for row in rows if row.of == of]
        if not mine:
            continue
        yield Table(
            title=f"{title}: {most} against {least}",
            noun="part",
            columns=(
                Column(title=of if of != "bucket" else "what for", left=True),
                Column(title="more"),
                Column(title=most),
                Column(title=least),
            ),
            rows=tuple(
                (
                    Cell(text=_part_name(row)),
                    Cell(text=_signed(row.more_bytes)),
                    Cell(text=size(row.most_bytes)),
                    Cell(text=size(row.least_bytes)),
                )
                for row in mine
            ),
        )


def _part_name(row: Difference) -> str:
    if row.of == "bucket":
        return CANNOT_TELL if row.name == "unknown" else bucket_words(row.name)
    return unit_name(row.name) if row.of == "unit" else visible(row.name)


def _signed(value: int) -> str:
    return f"+{size(value)}" if value > 0 else f"-{size(-value)}"
