"""Gives unlabelled collectives of a device their units by `schedule`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.fsdp2.schedule import Schedule, read_schedule
from fsdpdoctor.importers.kineto.attribution import Context
from fsdpdoctor.importers.kineto.steps import step_windows, windows_at
from fsdpdoctor.importers.reader.trace_file import Int64s
from fsdpdoctor.schema import UNKNOWN, Kind, distinct

UNIT_NAME = "unit {} by order"
"""What a unit is called whose name is nowhere: its place in the forward, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unlabelled:
    """Collectives that no label covers, in the order in which they ran."""

    kind: Int64s
    bytes: Int64s
    group: Int64s
    host_ns: Int64s  # says which step they belong to


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ordered:
    """Which of them are of a schedule."""

    at: Int64s  # indices into `Unlabelled`
    unit: Int64s  # UNKNOWN where the order leaves a choice
    phase: Int64s


def units_by_order(
    context: Context, unlabelled: Unlabelled, labelled: Mapping[int, int]
) -> Ordered:
    """Read the schedules of all steps, group by group.

    `labelled` are the units that labels gave in other steps, in forward order, with
    the bytes of their gathers: a schedule of the same sizes is theirs. Where there are
    none, the context gets units that are numbered.
    """
    step = windows_at(unlabelled.host_ns, step_windows(context.trace))
    found: list[tuple[Int64s, Schedule]] = []
    for one in distinct(step[step != UNKNOWN]).tolist():
        for group in distinct(unlabelled.group[step == one]).tolist():
            at = np.flatnonzero((step == one) & (unlabelled.group == group))
            kinds = [Kind(kind) for kind in unlabelled.kind[at].tolist()]
            schedule = read_schedule(kinds, unlabelled.bytes[at].tolist())
            if schedule is not None:
                found.append((at.astype(np.int64), schedule))
    units = _units(context, [schedule for _, schedule in found], labelled)
    rows = [
        (index, UNKNOWN if place is None else ids[place], phase)
        for at, schedule in found
        if (ids := units.get(schedule.gather_bytes)) is not None
        for index, (place, phase) in zip(at.tolist(), schedule.places, strict=True)
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Ordered(at=columns[:, 0], unit=columns[:, 1], phase=columns[:, 2])


def _units(
    context: Context, schedules: list[Schedule], labelled: Mapping[int, int]
) -> dict[tuple[int, ...], list[int]]:
    """The ids of a schedule's units, by the sizes that tell it."""
    if context.has_labels:
        return {tuple(labelled.values()): list(labelled)}
    sizes = [schedule.gather_bytes for schedule in schedules]
    if not sizes:
        return {}
    # Another schedule than the first step's is another model's, or a damaged step's.
    first = len(context.units)
    context.units.extend(UNIT_NAME.format(i + 1) for i in range(len(sizes[0])))
    return {sizes[0]: list(range(first, len(context.units)))}
