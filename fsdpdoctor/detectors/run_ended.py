"""FD408: an exception, a signal or a rank that does not come ended the run."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.endings import (
    differs_by_what_ranks_did,
    ending,
    says_how_it_ended,
    verdict_of,
)
from fsdpdoctor.detectors.spmd_divergence import recorded_difference
from fsdpdoctor.finding import Finding
from fsdpdoctor.schema import Evidence


@detector("FD408", "run-ended", needs={Evidence.STEPS})
def run_ended(m: Measures) -> Iterator[Finding]:
    """An exception, a signal or a rank that stands still ended the run, or holds it up.

    *Why it costs*: the run is over, or goes nowhere. What most ranks print, a timeout
    or a closed connection, is a consequence: the cause is the rank that raised
    something of its own, was killed, was stopped, or stays outside the collective in
    which the others wait. The same exception on every rank is one fault of the script.

    *What to try*: look at the line that is named, on the rank that is named; the other
    ranks' errors follow from it. `fsdpdoctor hang RUN` shows every rank's stack, also
    while the run still stands.

    *When it is wrong*: a rank that leaves no word may have been killed by anyone; times
    of different hosts are compared as they are. Where ranks did different things, that
    is FD406, and nothing is said here.
    """
    if not says_how_it_ended(m):
        raise CannotTell("only a record says how a run ended")
    found = verdict_of(m)
    if found is None or differs_by_what_ranks_did(found[0]):
        return
    difference = recorded_difference(m)
    if difference is None or not difference.proved:
        yield ending(m, *found)
