"""The tables of a report, as words with a share for a bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsdpdoctor.analysis.no_grad import PURPOSES
from fsdpdoctor.quantities import ms, percent, size
from fsdpdoctor.renderers.formatting import counted, visible
from fsdpdoctor.renderers.reading.unit_names import UnitNames, by_model, names_of
from fsdpdoctor.report.model_rows import ModelRow, NoGradRow
from fsdpdoctor.report.value import (
    CollectiveRow,
    OtherCollectiveRow,
    PhaseCounts,
    RankRow,
    ScriptRow,
    UnitRow,
)

ABSENT = "-"
"""In a cell whose value the source cannot know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; those of lower `keep` go first where there is no room."""

    title: str
    hint: str = ""
    left: bool = False
    keep: int = 9
    exposed: bool = False  # of exposed time, which alone is vermillion
    breaks: bool = True  # words go on in another line where there is no room
    unit: str = ""  # of the cells' values, where a table is saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What stands in a cell."""

    text: str
    value: float | None = None  # what a table that sorts goes by
    share: float | None = None  # of the column's largest
    alert: bool = False
    hint: str | None = None  # where there is more to say than the text
    weight: float = 0.0  # what rows are ranked by where not all are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns and rows; `noun` is what a row is."""

    title: str
    noun: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str | None = None  # what the titles are short for

    def heaviest(self, limit: int) -> tuple[tuple[Cell, ...], ...]:
        """At most `limit` rows, those that weigh most, in the table's order."""
        order = sorted(range(len(self.rows)), key=lambda at: -self._weight(at))
        return tuple(self.rows[at] for at in sorted(order[:limit]))

    def _weight(self, row: int) -> float:
        return sum(cell.weight for cell in self.rows[row])


def _time(ns: int | None, largest: int) -> Cell:
    """Milliseconds, without the unit: the column's title says it."""
    if ns is None:
        return Cell(text=ABSENT)
    share = ns / largest if largest else 0.0
    return Cell(text=ms(ns).removesuffix(" ms") if ns else "0", share=share, weight=0.0)


def _bytes(value: int | None) -> Cell:
    return Cell(text=ABSENT if value is None else size(value))


def _place(where: str | None, ns: int) -> Cell:
    """A line of the script; rows are ranked by their time."""
    return Cell(text=visible(where) if where else ABSENT, weight=float(ns))


def _largest(values: Sequence[int | None]) -> int:
    return max((value for value in values if value is not None), default=0)


_UNIT_NOTE = (
    "gathers and RS (reduce-scatters) per micro-batch, gathers as forward+backward "
    "(expected, where it differs); exp: exposed, unsh: unshard window, ms per step"
)

_UNIT_COLUMNS = (
    Column(title="unit", hint="FSDP unit: one fully_shard call", left=True),
    Column(
        title="gathers",
        hint="all-gathers per micro-batch, forward + backward; expected in brackets "
        "where it differs",
    ),
    Column(title="RS", hint="reduce-scatters per micro-batch", keep=5),
    Column(title="gather", hint="bytes of one all-gather", keep=6),
    Column(title="exp fwd", hint="exposed in forward, ms per step", exposed=True),
    Column(title="exp bwd", hint="exposed in backward, ms per step", exposed=True),
    Column(title="fwd ms", hint="own forward compute, ms per step"),
    Column(title="bwd ms", hint="own backward compute, ms per step"),
    Column(title="unsh ms", hint="time inside unshard windows, ms per step", keep=3),
    Column(title="peak", hint="most memory held by all while it ran", keep=4),
    Column(title="acts", hint="activations that its own forward left behind", keep=2),
)


def unit_tables(
    rows: Sequence[UnitRow], models: Sequence[ModelRow]
) -> tuple[Table, ...]:
    """A table for each model: its units' names are its own."""
    named = names_of(rows, models)
    return tuple(
        _unit_table(mine, "Units" if model is None else f"Units of {model}", named)
        for model, mine in by_model(rows, models)
        if mine
    )


def _unit_table(rows: Sequence[UnitRow], title: str, named: UnitNames) -> Table:
    """Counts against expected, bytes, exposed time, compute, window and peak."""
    exposed = _largest([t for r in rows for t in _phases(r)])
    compute = _largest([t for r in rows for t in (r.forward_ns, r.backward_ns)])
    window = _largest([r.unsharded_ns for r in rows])
    cells = []
    for row in rows:
        forward, backward = _phases(row)
        weight = float((forward or 0) + (backward or 0))
        cells.append(
            (
                Cell(text=named.within(row.unit), weight=weight),
                _gathers(row),
                _count(row.reduce_scatters),
                _bytes(row.all_gather_bytes),
                _time(forward, exposed),
                _time(backward, exposed),
                _time(row.forward_ns, compute),
                _time(row.backward_ns, compute),
                _time(row.unsharded_ns, window),
                _bytes(row.peak_bytes),
                _bytes(row.activation_bytes),
            )
        )
    return _table(title, "unit", _UNIT_COLUMNS, cells, note=_UNIT_NOTE)


def _phases(row: UnitRow) -> tuple[int | None, int | None]:
    return row.exposed_ns.forward, row.exposed_ns.backward


def _gathers_per_step(found: PhaseCounts) -> Cell:
    """Where micro-batches are not known, a step's whole count."""
    if not found.forward and not found.backward:
        return Cell(text=ABSENT)
    text = f"{counted(found.forward or 0)}+{counted(found.backward or 0)}"
    return Cell(text=f"{text}/step")


def _gathers(row: UnitRow) -> Cell:
    found, expected = row.all_gathers, row.expected_all_gathers
    if found.forward is None or found.backward is None:
        return _gathers_per_step(row.all_gathers_per_step)
    text = f"{counted(found.forward)}+{counted(found.backward)}"
    if expected.forward is None or expected.backward is None or found == expected:
        return Cell(text=text)
    asked = f"{counted(expected.forward)}+{counted(expected.backward)}"
    return Cell(text=f"{text} ({asked})", alert=asked != text)


def _count(value: float | None) -> Cell:
    return Cell(text=ABSENT if value is None else counted(value))


def _table(
    title: str,
    noun: str,
    columns: tuple[Column, ...],
    rows: Sequence[tuple[Cell, ...]],
    note: str | None = None,
) -> Table:
    """A table without the columns that no row knows anything of."""
    used = [
        at for at in range(len(columns)) if any(row[at].text != ABSENT for row in rows)
    ]
    return Table(
        title=title,
        noun=noun,
        columns=tuple(columns[at] for at in used),
        rows=tuple(tuple(row[at] for at in used) for row in rows),
        note=note,
    )


_NO_GRAD_COLUMNS = (
    Column(title="line", hint="of the script", left=True),
    Column(title="what", hint="what they are for", left=True),
    Column(title="model", hint="whose forwards they are", left=True, keep=5),
    Column(title="passes", hint="per step, mean over ranks"),
    Column(title="gathers", hint="all-gathers per step, all units together"),
    Column(title="ms", hint="per step"),
    Column(title="exp ms", hint="per step, waiting for all-gathers", exposed=True),
)


def no_grad_table(
    rows: Sequence[NoGradRow], models: Sequence[ModelRow]
) -> Table | None:
    """Passes without gradients, by line."""
    if not rows:
        return None
    longest = _largest([row.ns_per_step for row in rows])
    cells = []
    for row in rows:
        name = models[row.model].name if row.model < len(models) else ABSENT
        cells.append(
            (
                _place(row.where, row.ns_per_step),
                Cell(text=PURPOSES[row.purpose]),
                Cell(text=visible(name)),
                Cell(text=counted(row.passes_per_step)),
                Cell(text=counted(row.all_gathers_per_step)),
                _time(row.ns_per_step, longest),
                _time(row.exposed_ns_per_step, longest),
            )
        )
    return _table("Passes without gradients", "line", _NO_GRAD_COLUMNS, cells)


_COLLECTIVE_COLUMNS = (
    Column(title="collective", hint="kind of collective", left=True),
    Column(title="group", hint="process group, and its size", left=True, keep=5),
    Column(title="bytes", hint="of its large side: a gather's output"),
    Column(title="count", hint="in the judged steps, of all ranks", keep=6),
    Column(title="median ms", hint="from this rank's start to the end"),
    Column(title="wire ms", hint="median from the last rank's arrival to the end"),
    Column(title="busbw GB/s", hint="bus bandwidth on the wire, or over the median"),
)


def collective_table(rows: Sequence[CollectiveRow]) -> Table | None:
    """Every group, kind and size, with its time and bandwidth."""
    if not rows:
        return None
    slowest = _largest([row.median_ns for row in rows])
    cells = []
    for row in rows:
        total = float(row.count * (row.median_ns or 0))
        known = row.wire_busbw_gbps is not None
        bandwidth = row.wire_busbw_gbps if known else row.busbw_gbps
        cells.append(
            (
                Cell(text=row.kind.replace("_", "-"), weight=total),
                Cell(text=_group(row)),
                _bytes(row.bytes),
                Cell(text=f"{row.count:,}"),
                _time(row.median_ns, slowest),
                _time(row.median_wire_ns, slowest),
                Cell(text=ABSENT if bandwidth is None else f"{bandwidth:.3g}"),
            )
        )
    return _table("Collectives", "size", _COLLECTIVE_COLUMNS, cells)


def _group(row: CollectiveRow) -> str:
    name = row.role or row.group
    if name is None:
        return ABSENT
    return f"{visible(name)} ({row.group_size})" if row.group_size else visible(name)


_OTHER_COLUMNS = (
    Column(title="line", hint="of the script", left=True),
    Column(title="what", hint="a collective, or what the line does", left=True),
    Column(title="in", hint="what it ran in", left=True, keep=5),
    Column(title="count", hint="per step, mean over ranks", keep=7),
    Column(title="bytes", hint="of one, the mean", keep=6),
    Column(title="ms", hint="per step"),
    Column(title="exp ms", hint="per step, in which compute stood still"),
)


def other_table(
    calls: Sequence[OtherCollectiveRow], script: Sequence[ScriptRow]
) -> Table | None:
    """What is not FSDP2's: collectives by call site, and lines of the script."""
    times = [row.ns_per_step for row in calls] + [row.ns_per_step for row in script]
    longest = _largest(times)
    called = [_call(row, longest) for row in calls]
    lines = [_line(row, longest) for row in script]
    if not called and not lines:
        return None
    return _table("Outside FSDP2", "line", _OTHER_COLUMNS, [*called, *lines])


def _call(row: OtherCollectiveRow, longest: int) -> tuple[Cell, ...]:
    kind = row.kind.replace("_", "-")
    what = f"{kind} ({visible(row.called)})" if row.called else kind
    return (
        _place(row.where, row.exposed_ns_per_step or row.ns_per_step),
        Cell(text=what),
        Cell(text=row.in_),
        Cell(text=counted(row.count_per_step)),
        _bytes(row.bytes),
        _time(row.ns_per_step, longest),
        _time(row.exposed_ns_per_step, longest),
    )


ACTIVITIES = {
    "user": "Python code",
    "input": "loading data",
    "sync": "a call that waits",
    "compile": "compiling",
    "collective": "torch.distributed",
    "edge": "between these lines",
}
"""What a line of the script does, where its own name is not the word."""


def _line(row: ScriptRow, longest: int) -> tuple[Cell, ...]:
    where = row.where if row.until is None else f"{row.where} to {row.until_line}"
    return (
        _place(where, row.ns_per_step),
        Cell(text=ACTIVITIES.get(row.activity, row.activity)),
        Cell(text="script"),
        Cell(text=ABSENT),
        Cell(text=ABSENT),
        _time(row.ns_per_step, longest),
        Cell(text=ABSENT),
    )


_RANK_COLUMNS = (
    Column(title="rank", hint="global rank"),
    Column(title="step ms", hint="median step"),
    Column(title="exposed ms", hint="per step", exposed=True),
    Column(title="overlap", hint="share of communication under compute", keep=6),
    Column(title="waits ms", hint="in collectives for the last rank, per step"),
    Column(title="makes wait ms", hint="all other ranks together, per step", keep=7),
    Column(title="last", hint="collectives of the judged steps it was last to"),
    Column(title="clock off", hint="against the first rank, ms", keep=3),
    Column(title="host", hint="where it ran", left=True, keep=2),
)


def rank_table(rows: Sequence[RankRow]) -> Table:
    """Each rank's step, exposure, waiting and lateness."""
    step = _largest([row.step_ns for row in rows])
    exposed = _largest([row.exposed_ns_per_step for row in rows])
    caused = _largest([row.wait_caused_ns_per_step for row in rows])
    waits = _largest([row.wait_ns_per_step for row in rows])
    several_hosts = len({row.host for row in rows}) > 1
    cells = []
    for row in rows:
        share = row.overlap_share
        offset = row.clock_offset_ns
        cells.append(
            (
                Cell(
                    text=str(row.rank),
                    weight=float(row.wait_caused_ns_per_step or 0),
                ),
                _time(row.step_ns, step),
                _time(row.exposed_ns_per_step, exposed),
                Cell(text=ABSENT if share is None else percent(share), share=share),
                _time(row.wait_ns_per_step, waits),
                _time(row.wait_caused_ns_per_step, caused),
                Cell(
                    text=ABSENT if row.last_arrivals is None else str(row.last_arrivals)
                ),
                Cell(text=ABSENT if not offset else ms(offset).removesuffix(" ms")),
                Cell(text=visible(row.host) if row.host and several_hosts else ABSENT),
            )
        )
    return _table("Ranks", "rank", _RANK_COLUMNS, cells)
