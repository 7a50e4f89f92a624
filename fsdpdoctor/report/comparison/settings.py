"""How two runs were set up: what differs, and how many things were changed.

[Note: Changed settings] One change shows in many places: another world size is another
mesh and shard size of each unit, other units are other prefetch lists. What follows
from another change is no change of its own, so that a difference in time is credited
to one setting where only one was touched, and to none where several were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from fsdpdoctor.report.comparison.difference import Difference, unequal
from fsdpdoctor.report.value import Report, UnitRow


def set_up_differently(a: Report, b: Report) -> Iterator[Difference]:
    """Every setting that is not the same in both."""
    for name in ("source", "world_size", "device", "device_name", "torch", "nccl"):
        yield from unequal("setting", name, getattr(a.run, name), getattr(b.run, name))
    for name in ("wrapper", "model_class", "numel", "micro_batches", "tokens"):
        yield from unequal("setting", name, getattr(a.run, name), getattr(b.run, name))
    ours, theirs = a.run.configuration, b.run.configuration
    for name in sorted({*ours, *theirs}):
        yield from unequal("setting", name, ours.get(name), theirs.get(name))
    yield from unequal("setting", "applied", a.run.applied, b.run.applied)
    units_a, units_b = unit_rows(a), unit_rows(b)
    yield from unequal("setting", "units", len(units_a), len(units_b))
    for key in (key for key in units_a if key not in units_b):
        yield _only("setting", key, True, False)
    for key in (key for key in units_b if key not in units_a):
        yield _only("setting", key, False, True)
    for key in (key for key in units_a if key in units_b):
        mine, other = units_a[key].settings, units_b[key].settings
        for name in mine.__struct_fields__:
            yield from unequal(
                "setting", name, getattr(mine, name), getattr(other, name), key
            )


def _only(kind: str, unit: str, in_a: bool, in_b: bool) -> Difference:
    return Difference(kind=kind, figure="unit", unit=unit, a=in_a, b=in_b)


def unit_rows(report: Report) -> Mapping[str, UnitRow]:
    """By the unit's name."""
    return {row.unit: row for row in report.units}


_EXACT = {
    "all_gathers.forward": "count",
    "all_gathers.backward": "count",
    "reduce_scatters": "count",
    "all_reduces": "count",
    "all_gather_bytes": "bytes",
    "reduce_scatter_bytes": "bytes",
    "peak_bytes": "bytes",
    "activation_bytes": "bytes",
}

PEAK_NOISE = 0.1
"""Of a peak counted on the host, where gloo's threads let buffers go when they like."""


def exact_differences(a: Report, b: Report) -> Iterator[Difference]:
    """Counts and bytes of units that both have, and the memory step's peak."""
    on_host = "cpu" in (a.run.device, b.run.device)
    yield from _peak(a, b)
    units_a, units_b = unit_rows(a), unit_rows(b)
    for name in (name for name in units_a if name in units_b):
        for figure, kind in _EXACT.items():
            if on_host and figure == "peak_bytes":
                continue
            mine: object = units_a[name]
            other: object = units_b[name]
            for part in figure.split("."):
                mine, other = getattr(mine, part), getattr(other, part)
            if mine is not None and other is not None:
                yield from unequal(kind, figure, mine, other, name)


def _peak(a: Report, b: Report) -> Iterator[Difference]:
    mine = a.memory.peak_bytes if a.memory else None
    other = b.memory.peak_bytes if b.memory else None
    if mine is None or other is None:
        return
    noise = max(mine, other) * PEAK_NOISE
    if abs(other - mine) > noise:
        (found,) = unequal("bytes", "memory.peak_bytes", mine, other)
        yield replace(found, noise=noise)


_PER_MICRO_BATCH = frozenset(
    {"requires_gradient_sync", "requires_all_reduce", "reshard_after_backward"}
)
"""What a loop sets anew for each micro-batch: None where it does."""

_NEWER = frozenset(
    {"reduce_scatter_max_input_buffers", "separate_reduce_scatter_group"}
)
"""What an older torch does not have."""

_RECORDED = frozenset(
    {"unshard_in_backward", "unshard_async_op", "checkpointed", "compiled"}
)
"""What else no trace says."""

_FOLLOWS: dict[str, frozenset[str]] = {
    "source": frozenset({"device_name", "torch", "nccl", "samples", "tokens"})
    | _PER_MICRO_BATCH
    | _RECORDED,
    "torch": _NEWER,
    "checkpoint": frozenset({"checkpointed"}),
    "device": frozenset({"device_name", "nccl"}),
    "world_size": frozenset({"mesh", "shard_size", "hosts"}),
    "model_class": frozenset({"units", "numel"}),
    "numel": frozenset({"units"}),
    "wrapper": frozenset({"units"}),
    "units": frozenset({"forward_prefetch", "backward_prefetch"}),
    "mesh": frozenset({"shard_size"}),
    "offload": frozenset({"stored_dtype"}),
}
"""What else is not the same, because a setting is not."""

_TOGETHER = {
    "forward_prefetch": "prefetch",
    "backward_prefetch": "prefetch",
    "param_dtype": "mp_policy",
    "reduce_dtype": "mp_policy",
    "mesh": "mesh",
    "shard_size": "mesh",
}
"""What is set by one argument, or is one thing to those who set it."""

_NO_CHANGE = frozenset({"applied", "unmanaged_parameters", "fsdpdoctor"})
"""Which plan was applied is in the settings that it changed."""


def changed_settings(a: Report, b: Report) -> tuple[str, ...]:
    """What was changed from A to B, each once, in words."""
    rows = [*set_up_differently(a, b)]
    figures = {row.figure for row in rows}
    if "unit" in figures:
        figures.add("units")
    followers = frozenset[str]().union(
        *(_all_that_follow(name) for name in figures if name in _FOLLOWS)
    )
    found: dict[str, list[Difference]] = {}
    for row in rows:
        name = "units" if row.figure == "unit" else row.figure
        if name not in followers and name not in _NO_CHANGE:
            found.setdefault(_TOGETHER.get(name, name), []).append(row)
    common = len(unit_rows(a).keys() & unit_rows(b).keys())
    return tuple(_words(name, rows, common) for name, rows in found.items())


def _all_that_follow(name: str) -> frozenset[str]:
    direct = _FOLLOWS.get(name, frozenset())
    return direct.union(*(_all_that_follow(other) for other in direct))


def _words(name: str, rows: list[Difference], common: int) -> str:
    if name == "units":
        gone = sum(row.figure == "unit" and row.a is True for row in rows)
        new = sum(row.figure == "unit" and row.b is True for row in rows)
        return f"units ({gone} gone, {new} new)"
    of = {row.unit for row in rows if row.unit is not None}
    where = ""
    if len(of) == 1:
        where = f" of {rows[0].unit}"
    elif of:
        where = " of all units" if len(of) == common else f" of {len(of)} units"
    ways = {
        (row.figure, _value(row.figure, row.a), _value(row.figure, row.b))
        for row in rows
    }
    figures = sorted({figure for figure, _, _ in ways})
    if name not in figures:
        where = f" ({', '.join(figures)}){where}"
    if len(ways) > 1:
        return f"{name}{where}"
    ((_, a, b),) = ways
    return f"{name}{where}: {a} to {b}"


def _value(figure: str, value: object) -> str:
    if value is None and figure in _PER_MICRO_BATCH:
        return "by micro-batch"
    return "not set" if value is None or value == "" else str(value)
