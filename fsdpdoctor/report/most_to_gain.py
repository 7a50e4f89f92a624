"""Which finding has most to gain, where no simulated change gives as much.

The simulator changes what FSDP2 does; a late rank, a slow loader or a script's own
collectives it leaves as they were. What acting on such a finding gives is not known,
but no more than what it costs. Without it a small change of FSDP2's settings would
stand as the best there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from fsdpdoctor.report.costs import (
    NAMED_SHARE,
    SEVERITY,
    SYMPTOMS,
    waits_for_a_rank,
)
from fsdpdoctor.report.value import BestChange, FindingRow, MostToGain


def most_to_gain(
    findings: Sequence[FindingRow], best: BestChange | None, mean_ns: int | None
) -> MostToGain | None:
    """The costliest finding with advice, if it costs more than the best change wins
    and a part of the mean step that is worth a name.
    """
    rows = [
        finding
        for finding in findings
        # What is exposed cannot all be gained: the simulator says how much.
        if finding.code not in SYMPTOMS
        # Without the call the next collective waits for the late rank.
        and (finding.part_of is None or not waits_for_a_rank(finding))
        and SEVERITY[finding.severity] >= SEVERITY["warning"]
        and finding.cost_ns_per_step
        and finding.advice
        and all(advice.predicted_gain_ns is None for advice in finding.advice)
    ]
    if not rows or mean_ns is None:
        return None
    first = max(rows, key=lambda finding: finding.cost_ns_per_step or 0)
    up_to_ns = first.cost_ns_per_step or 0
    if up_to_ns < NAMED_SHARE * mean_ns:
        return None
    if best is not None and up_to_ns <= best.predicted_gain_ns:
        return None
    return MostToGain(code=first.code, text=first.advice[0].text, up_to_ns=up_to_ns)
