"""The tuple of all detectors, and what holds for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fsdpdoctor.detectors as package
from fsdpdoctor.analysis.measures import Measures, reduce
from fsdpdoctor.detectors import ALL, contained
from fsdpdoctor.detectors.base import WORDS, Detector, judge
from fsdpdoctor.finding import Finding, NotJudged
from fsdpdoctor.schema import Evidence, RunHeader
from fsdpdoctor.testing import draw, measured
from tests.rig.changed import replace

CODES_AND_NAMES = {
    "FD101": "exposed-all-gather",
    "FD102": "exposed-reduce-scatter",
    "FD103": "host-issue-bound",
    "FD104": "host-sync-point",
    "FD105": "prefetch-misconfig",
    "FD106": "comm-serialization",
    "FD107": "duplicate-all-gather",
    "FD108": "accumulation-comm",
    "FD201": "wrap-too-coarse",
    "FD202": "wrap-too-fine",
    "FD203": "root-group-heavy",
    "FD204": "padding-alignment",
    "FD301": "reshard-policy",
    "FD302": "allocator-pressure",
    "FD303": "stale-unshard",
    "FD304": "cpu-offload",
    "FD401": "straggler-rank",
    "FD402": "input-stall",
    "FD403": "host-pause",
    "FD404": "optimizer-overhead",
    "FD405": "checkpoint-stall",
    "FD406": "spmd-divergence",
    "FD407": "other-collectives",
    "FD408": "run-ended",
    "FD501": "topology-mesh",
    "FD502": "comm-dtype",
    "FD503": "frozen-params",
    "FD504": "hooks-not-run",
    "FD505": "compile-interplay",
    "FD506": "not-sharded",
    "FD507": "replicas-differ",
    "FD508": "outside-fsdp",
    "FD900": "not-fsdp",
    "FD901": "unexplained",
    "FD902": "script-time",
}
"""The words of reports, JSON and documentation. They do not change."""

SHARED = {
    "base",
    "before_a_gpu",
    "broken_off",
    "endings",
    "embedding_backward",
    "frozen_backward",
    "frozen_wide",
    "gather_counts",
    "gathered_once",
    "host_events",
    "judged_stalls",
    "late_ranks",
    "judged_steps",
    "left_over",
    "of_models",
    "old_weights",
    "passes_without_gradients",
    "reentrant",
    "remedies",
    "script_aside",
    "unit_order",
}
"""Modules of the folder that are no detectors."""


def test_the_tuple_is_the_folder() -> None:
    """No file forgotten, none listed twice, each named for its slug."""
    assert package.__file__ is not None
    files = {p.stem for p in Path(package.__file__).parent.glob("[!_]*.py")}

    assert [d.name.replace("-", "_") for d in ALL] == [
        name.replace("-", "_") for name in CODES_AND_NAMES.values()
    ]
    assert files - SHARED == {d.name.replace("-", "_") for d in ALL}


def test_codes_and_names_are_those_of_the_table() -> None:
    """In report order."""
    assert {d.code: d.name for d in ALL} == CODES_AND_NAMES
    assert [d.code for d in ALL] == sorted(CODES_AND_NAMES)


@pytest.mark.parametrize("detector", ALL, ids=lambda d: d.code)
def test_a_page_says_why_what_and_when_not(detector: Detector) -> None:
    """The same three headings on every page, after a sentence of what it finds."""
    headings = ("*Why it costs*:", "*What to try*:", "*When it is wrong*:")
    places = [detector.page.find(heading) for heading in headings]

    assert places == sorted(places)
    assert places[0] > 20


@pytest.mark.parametrize("detector", ALL, ids=lambda d: d.code)
def test_a_run_without_any_record_is_never_clear(detector: Detector) -> None:
    """No ranks, or ranks that show nothing: cannot tell."""
    nothing = reduce(RunHeader(run_id="none", source="recorded", world_size=2), [])
    blind = measured(draw("optimizer xx", evidence=(), units=(), model=None))

    for m in (nothing, blind):
        answer = judge(detector, m)
        assert isinstance(answer, NotJudged)
        assert answer.needs
        assert answer.reason.startswith("not measured: ")


def test_a_detector_that_fails_takes_no_others_with_it() -> None:
    """The rest is judged; the report says which failed, how, and where."""

    def divide(m: Measures) -> Iterator[Finding]:
        assert m.ranks
        raise ZeroDivisionError("by nothing")

    failing = replace(ALL[0], find=divide)
    answer = contained(failing, measured(draw("forward 0011")))

    assert isinstance(answer, NotJudged)
    assert (answer.code, answer.needs) == (ALL[0].code, ())
    words = "failed: ZeroDivisionError('by nothing') in test_detectors.py:"
    assert answer.reason.startswith(words)


def test_every_evidence_has_words() -> None:
    """A reason names what is missing."""
    assert set(WORDS) == set(Evidence)
