"""Tables of what was held at one moment, and of what it was in."""

from __future__ import annotations

from fsdpdoctor.memory_snapshot.snapshot_report import DeviceReport, Held
from fsdpdoctor.quantities import percent, size
from fsdpdoctor.renderers.formatting import unit_name, visible
from fsdpdoctor.renderers.reading.memory_words import bucket_words
from fsdpdoctor.renderers.tables import ABSENT, Cell, Column, Table

MOST_PARTS = 3
"""Named of a line's or a unit's memory."""

CANNOT_TELL = "cannot tell"


def cut_table(table: Table, most: int | None) -> Table:
    """At most so many rows, and how many are left out."""
    left = 0 if most is None else len(table.rows) - most
    if left <= 0:
        return table
    more = f"and {left} smaller; --format html has them all"
    note = more if table.note is None else f"{table.note}; {more}"
    return Table(
        title=table.title,
        noun=table.noun,
        columns=table.columns,
        rows=table.rows[:most],
        note=note,
    )


_BYTES = Column(title="bytes", hint="asked for")
_SHARE = Column(title="share", hint="of what was held", keep=6)
_OF = Column(title="of it", hint="what it was for", left=True, keep=5)


def size_cell(value: int, whole: int) -> Cell:
    """Bytes, with a bar for their share."""
    share = value / whole if whole else 0.0
    return Cell(text=size(value), value=value, share=share, weight=value)


def _share(value: int, whole: int) -> Cell:
    return Cell(text=percent(value / whole) if whole else ABSENT)


def bucket_table(held: Held, title: str) -> Table:
    """By what it was for; below it why some cannot be told."""
    columns = (
        Column(title="what for", left=True),
        _BYTES,
        _SHARE,
        Column(title="count", hint="allocations", keep=7),
    )
    whys = [row.why for row in held.buckets if row.bucket is None and row.why]
    numbers = {why: at + 1 for at, why in enumerate(whys)}
    rows = [
        (
            Cell(
                text=bucket_words(row.bucket)
                if row.bucket
                else f"{CANNOT_TELL} ({numbers[row.why or '']})"
                if row.why
                else CANNOT_TELL
            ),
            size_cell(row.bytes, held.held_bytes),
            _share(row.bytes, held.held_bytes),
            Cell(text=f"{row.allocations:,}"),
        )
        for row in held.buckets
    ]
    note = "; ".join(f"({at}) {visible(why)}" for why, at in numbers.items()) or None
    return Table(title=title, noun="part", columns=columns, rows=(*rows,), note=note)


def _parts(buckets: dict[str, int]) -> str:
    named = [
        f"{CANNOT_TELL if bucket == 'unknown' else bucket_words(bucket)} {size(held)}"
        for bucket, held in list(buckets.items())[:MOST_PARTS]
    ]
    return ", ".join(named)


def unit_table(held: Held) -> Table:
    """Empty where no unit is told."""
    columns = (Column(title="unit", left=True), _BYTES, _SHARE, _OF)
    rows = [
        (
            Cell(text=CANNOT_TELL if row.unit is None else unit_name(row.unit)),
            size_cell(row.bytes, held.held_bytes),
            _share(row.bytes, held.held_bytes),
            Cell(text=_parts(row.buckets)),
        )
        for row in held.units
    ]
    if all(row.unit is None for row in held.units):
        rows = []  # a fact says why
    why = next((row.why for row in held.units if row.why), None)
    note = None if why is None else f"{CANNOT_TELL}: {visible(why)}"
    title = "By unit"
    if any(row.told_by == "metadata" for row in held.units):
        title = "By unit, or by what _set_memory_metadata had set"
    return Table(title=title, noun="part", columns=columns, rows=(*rows,), note=note)


def line_table(held: Held) -> Table:
    """By line of the user's code."""
    columns = (
        Column(title="line", hint="the innermost that is not torch's", left=True),
        Column(title="function", left=True, keep=4),
        _BYTES,
        _SHARE,
        _OF,
    )
    rows = [
        (
            Cell(text=visible(row.where) if row.where else "no line of Python's"),
            Cell(text=visible(row.function) if row.function else ABSENT),
            size_cell(row.bytes, held.held_bytes),
            _share(row.bytes, held.held_bytes),
            Cell(text=_parts(row.buckets)),
        )
        for row in held.sites
    ]
    return Table(title="By line", noun="part", columns=columns, rows=(*rows,))


def pool_table(device: DeviceReport) -> Table:
    """Segments by pool, and what is free in them."""
    columns = (
        Column(title="pool", hint="size class; of a graph's or MemPool's", left=True),
        Column(title="stream", keep=5),
        Column(title="segments", keep=4),
        Column(title="reserved"),
        Column(title="in use", hint="as rounded up"),
        Column(title="free"),
        Column(title="largest free", hint="in one piece"),
        Column(title="releasable", hint="empty_cache would give it back", keep=6),
    )
    rows = [
        (
            Cell(
                text=row.kind
                + (", expandable" if row.expandable else "")
                + ("" if row.pool == (0, 0) else f" {row.pool[0]}.{row.pool[1]}")
            ),
            Cell(text=str(row.stream)),
            Cell(text=f"{row.segments:,}"),
            *(
                Cell(text=size(value))
                for value in (
                    row.reserved_bytes,
                    row.allocated_bytes,
                    row.free_bytes,
                    row.largest_free_bytes,
                    row.releasable_bytes,
                )
            ),
        )
        for row in device.pools
    ]
    return Table(
        title="Pools, as the snapshot was taken",
        noun="part",
        columns=columns,
        rows=(*rows,),
    )


def growth_table(device: DeviceReport) -> Table:
    """Lines that hold more with every step."""
    columns = (
        Column(title="line", left=True),
        Column(title="what for", left=True),
        Column(title="per step", hint="bytes"),
        Column(title="held", hint="as the last step ended"),
        Column(title="steps", keep=5),
    )
    rows = [
        (
            Cell(text=visible(row.where) if row.where else "no line of Python's"),
            Cell(text=bucket_words(row.bucket) if row.bucket else CANNOT_TELL),
            Cell(text=size(row.bytes_per_step), alert=True),
            Cell(text=size(row.held_bytes)),
            Cell(text=str(row.steps)),
        )
        for row in device.growth or ()
    ]
    return Table(
        title="Grew in every step after the first: a leak, or a list that is kept",
        noun="part",
        columns=columns,
        rows=(*rows,),
    )
