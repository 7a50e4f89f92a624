"""Which time of a step each finding is about, and which findings share theirs.

[Note: Counted once] Several findings may speak of one stretch of the step: what was
exposed, and why. The costliest of those that ask for a change stands for it, else the
costliest; of equals the most severe. The others are `part_of` it, and only those that
are part of none add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from fsdpdoctor.report.value import FindingRow, PartOf

CostKind = Literal[
    "exposed", "host", "input", "pause", "optimizer", "other_collectives", "unexplained"
]
"""What a step's time was lost to."""

NAMED_SHARE = 0.05
"""Of a step. What costs more is named; below it, a fix is lost in the step's jitter
(`docs/detectors.md` D01)."""

PARTS: Mapping[CostKind, tuple[str, ...]] = {
    "exposed": ("exposed_all_gather", "exposed_reduce_scatter", "exposed_all_reduce"),
    "other_collectives": ("exposed_other_communication",),
    "input": ("input",),
    "pause": ("gc", "checkpoint", "script"),
    "host": ("sync", "host_bound"),
    "unexplained": ("other",),
}
"""The parts of the step budget that are nobody's work, by what they were lost to."""

SEVERITY: Mapping[str, int] = {"critical": 2, "warning": 1, "info": 0}

WORK_PARTS: Mapping[CostKind, tuple[str, ...]] = {"optimizer": ("optimizer", "clip")}
"""Parts that are work, and a cost only where a finding says so."""

_GATHERS, _REDUCTIONS = frozenset({"gather"}), frozenset({"reduction"})
_BOTH = _GATHERS | _REDUCTIONS
_EXPOSED: Mapping[str, frozenset[str]] = {
    "FD101": _GATHERS,
    "FD102": _REDUCTIONS,
    "FD105": _GATHERS,
    "FD106": _BOTH,
    "FD107": _GATHERS,
    "FD108": _REDUCTIONS,
    "FD201": _BOTH,
    "FD202": _BOTH,
    "FD203": _BOTH,
    "FD204": _BOTH,
    "FD301": _GATHERS,
    "FD303": _GATHERS,
    "FD401": _BOTH,
    "FD501": _BOTH,
    "FD502": _BOTH,
    "FD503": _GATHERS,
}
"""Codes about exposed time, and of which collectives."""

_OTHERS: Mapping[str, CostKind] = {
    "FD103": "host",
    "FD104": "host",
    "FD304": "optimizer",
    "FD402": "input",
    "FD403": "pause",
    "FD404": "optimizer",
    "FD405": "pause",
    "FD407": "other_collectives",
    "FD901": "unexplained",
    "FD505": "pause",
    "FD902": "pause",
}

_EXPOSED_PARTS: Mapping[str, tuple[str, ...]] = {
    "gather": ("exposed_all_gather",),
    "reduction": ("exposed_reduce_scatter", "exposed_all_reduce"),
}

COMPILING = "compiling"
"""No part of the budget: it lies in the passes that it stops."""

_OWN_PARTS: Mapping[str, frozenset[str]] = {
    "FD103": frozenset({*PARTS["exposed"], "host_bound"}),
    "FD104": frozenset(
        PARTS["exposed"]
    ),  # what stands still after a call, not the call
    "FD304": frozenset({"optimizer", "memcpy", "exposed_all_gather"}),
    "FD403": frozenset({"gc"}),
    "FD405": frozenset({"checkpoint", *PARTS["other_collectives"]}),
    "FD505": frozenset({COMPILING}),
    "FD902": frozenset({"script"}),
}
"""Codes about other parts than all of their kind: those about others share nothing."""

AT_OTHERS = "at_other_collectives_ns"
"""In the evidence of FD401: what of its cost is no wait for a unit's collective."""

_STARVED = frozenset({"FD103", "FD104", "FD304"})
"""What a late host costs is exposed time, where its collectives were late."""

SYMPTOMS = frozenset({"FD101", "FD102"})
"""They say that time is exposed; of two equal costs the one that says why stands."""


def kind_of(finding: FindingRow) -> CostKind | None:
    """What a finding's time was lost to; None where it is not about time."""
    if _at_others(finding):
        return "other_collectives"
    return "exposed" if finding.code in _EXPOSED else _OTHERS.get(finding.code)


def lost_ns(budget: Mapping[str, int], kind: CostKind) -> int:
    """Nanoseconds of the mean step that were lost to something."""
    parts = PARTS.get(kind, WORK_PARTS.get(kind, ()))
    return sum(budget.get(part, 0) for part in parts)


def linked(findings: Sequence[FindingRow]) -> Iterator[PartOf | None]:
    """For each finding, the one whose cost holds its own. See [Note: Counted once]."""
    in_order = sorted(
        (at for at, finding in enumerate(findings) if finding.cost_ns_per_step),
        key=lambda at: (
            findings[at].severity == "info",  # it stands for nothing that must change
            waits_for_a_rank(findings[at]),  # the late rank stands for it
            -(findings[at].cost_ns_per_step or 0),
            -SEVERITY[findings[at].severity],
            findings[at].code in SYMPTOMS,
            at,
        ),
    )
    whole: list[int] = []
    part_of: dict[int, PartOf] = {}
    for at in in_order:
        parent = next((w for w in whole if share_time(findings[w], findings[at])), None)
        if parent is None:
            whole.append(at)
        else:
            part_of[at] = PartOf(code=findings[parent].code, index=parent)
    for at in range(len(findings)):
        yield part_of.get(at)


def share_time(one: FindingRow, other: FindingRow) -> bool:
    """Whether two findings may speak of the same stretch of a step; the first is the
    costlier one.
    """
    if (one.code, other.code) == ("FD405", "FD407"):
        return other.evidence.get("in") == "checkpoint"  # gathered for what is saved
    if {one.code, other.code} == {"FD401", "FD407"}:
        late, call = sorted((one, other), key=lambda finding: finding.code)
        return bool(late.evidence.get(AT_OTHERS)) and waits_for_a_rank(call)
    if one.code == other.code == "FD407":
        return False  # each moment is one call's (`OtherCalls.exposed_ns`)
    kinds = {kind_of(one), kind_of(other)}
    if None in kinds or not parts_of(one) & parts_of(other):
        return False
    if "exposed" not in kinds:
        return len(kinds) == 1 or {one.code, other.code} <= _STARVED
    return (
        (len(kinds) == 1 or one.code in _STARVED or other.code in _STARVED)
        and (one.phase == other.phase or None in (one.phase, other.phase))
        and (not one.units or not other.units or bool({*one.units} & {*other.units}))
    )


def waits_for_a_rank(finding: FindingRow) -> bool:
    """Whether at least half of what some calls cost is a wait for their last rank."""
    waited = finding.evidence.get("waiting_for_last_rank_ns")
    cost_ns = finding.cost_ns_per_step or 0
    return (
        finding.code == "FD407"
        and isinstance(waited, int)
        and 0 < cost_ns <= waited * 2
    )


def _at_others(finding: FindingRow) -> bool:
    """Whether a late rank is waited for mostly at collectives that no unit issued."""
    waited = finding.evidence.get(AT_OTHERS)
    return isinstance(waited, int) and waited * 2 > (finding.cost_ns_per_step or 0)


def parts_of(finding: FindingRow) -> frozenset[str]:
    """The parts of the step budget that a finding's time is in: together they are no
    less than what it costs.
    """
    part = finding.evidence.get("part")
    if isinstance(part, str):
        return frozenset({part})
    if "passes_per_step" in finding.evidence:
        return frozenset({"no_grad"})
    kind = kind_of(finding)
    if finding.code in _EXPOSED and kind == "exposed":
        mine = (name for of in _EXPOSED[finding.code] for name in _EXPOSED_PARTS[of])
        work = {"backward"} if "backward_compute_ns" in finding.evidence else set()
        return frozenset(mine) | work
    if kind is None:
        return frozenset()
    every = PARTS.get(kind, WORK_PARTS.get(kind, ()))
    return _OWN_PARTS.get(finding.code, frozenset(every))
