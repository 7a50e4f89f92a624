"""Bars of a report that several pages draw: the step's outlook, and causes of waits."""

from __future__ import annotations

from typing import NamedTuple

from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.quantities import ms
from fsdpdoctor.renderers.report_view import CAUSE_WORDS
from fsdpdoctor.report.value import ByCause, Report

UNTOLD = "wire_or_straggler"
CAUSE_TITLES = CAUSE_WORDS | {UNTOLD: "straggler or wire"}


class Outlook(NamedTuple):
    """The mean step, what it is predicted to be, and what no change goes below."""

    now: int
    after: int
    floor: int


def outlook(report: Report) -> Outlook | None:
    """None where no step was judged."""
    mean, floor = report.step_time_ns.mean, report.verdict.floor_ns
    if not mean or floor is None:
        return None
    best = report.verdict.best_change
    after = mean if best is None else max(mean - best.predicted_gain_ns, 0)
    return Outlook(mean, after, min(floor, after))


def outlook_words(ends: Outlook) -> str:
    """The bar in words."""
    words = [f"now {ms(ends.now)}", f"it cannot go below {ms(ends.floor)}"]
    if ends.after != ends.now:
        words.insert(1, f"after the change {ms(ends.after)}")
    return ", ".join(words)


def known_causes(found: ByCause) -> list[tuple[str, int]]:
    """What is known and not 0; two causes that cannot be told apart are one."""
    told = {cause: getattr(found, cause) for cause in CAUSES}
    if found.wire_or_straggler is not None:
        told |= {"straggler": 0, "wire": 0, UNTOLD: found.wire_or_straggler}
    return [(cause, ns) for cause, ns in told.items() if ns]
