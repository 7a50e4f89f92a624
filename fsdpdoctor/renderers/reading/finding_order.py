"""In which order findings are read: those to act on, each with what is part of its
cost, then those with nothing to change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from fsdpdoctor.report.value import FindingRow, PartOf
from fsdpdoctor.report.verdict import gain_ns

NOTHING = "Nothing to change"
"""How advice begins that is none."""


def nothing_to_change(row: FindingRow) -> bool:
    """Whether a finding only informs: nothing is won by acting on it."""
    if row.advice and all(one.text.startswith(NOTHING) for one in row.advice):
        return True
    return row.severity == "info" and not gain_ns(row) and not row.cost_bytes


class Reading(NamedTuple):
    """Places of findings in the report's list."""

    acting: Sequence[int]
    folded: Sequence[int]  # and all within them: there is nothing to change
    parts: dict[int, list[int]]  # what is counted in a finding's cost


def reading(rows: Sequence[FindingRow]) -> Reading:
    """Each second of a step once, and what there is to do about it first."""
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        if row.part_of is not None:
            parts[row.part_of.index].append(at)
    whole = [at for at, row in enumerate(rows) if row.part_of is None]
    folded = [
        at
        for at in whole
        if all(nothing_to_change(rows[each]) for each in (at, *parts[at]))
    ]
    return Reading([at for at in whole if at not in folded], folded, dict(parts))


def is_held(part: FindingRow, findings: Sequence[FindingRow]) -> bool:
    """Whether all of a part is in what holds it: information may cost more than the
    warning that it is counted in.
    """
    if part.part_of is None:
        return False
    whole = findings[part.part_of.index]
    return (part.cost_ns_per_step or 0) <= (whole.cost_ns_per_step or 0)


def counted_in(part: FindingRow, whole: PartOf, findings: Sequence[FindingRow]) -> str:
    """Where a part's cost is counted already, all of it or not."""
    held = "counted" if is_held(part, findings) else "partly counted"
    return f"{held} in {whole.code} (finding {whole.index + 1})"
