"""FD402, input-stall."""

from __future__ import annotations

import numpy as np

from fsdpdoctor.detectors.input_stall import input_stall
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without
from tests.rig.changed import replace

SLOW = """
    input    xxx.................
    forward  ...00000000000000000
"""


def test_waiting_for_data() -> None:
    """3 of 20 ms in the loader."""
    finding = only(input_stall, measured(draw(SLOW)))

    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == 3 * MS
    assert finding.ranks == (0,)
    assert finding.evidence["waits_per_step"] == 1.0
    assert "num_workers=4" in codes(finding)[0]


def test_a_loader_with_workers_is_told_to_have_more() -> None:
    """It has three; one in the process itself, or of which nothing is known, none."""
    advised = {}
    for workers in (UNKNOWN, 0, 3):
        data = draw(SLOW)
        steps = [
            replace(
                step,
                spans=replace(
                    step.spans,
                    value=np.where(step.spans.kind == Kind.INPUT, workers, UNKNOWN),
                ),
            )
            for step in data.steps
        ]
        finding = only(input_stall, measured(replace(data, steps=tuple(steps))))
        text = finding.advice[0].text.partition(",")[0]
        advised[finding.evidence["workers"]] = (
            text,
            finding.summary.partition(") ")[2],
        )

    few = "Load in worker processes"
    assert advised == {
        None: (few, "pass waiting for the data loader"),
        0: (few, "pass waiting for the data loader"),
        3: (
            "Load in more worker processes than 3",
            "pass waiting for the data loader and its 3 workers",
        ),
    }


def test_a_loader_that_is_slow_on_one_rank_is_that_ranks() -> None:
    """The other one's takes less than half as long."""
    quick = "input x...................\nforward .0000000000000000000"
    finding = only(input_stall, measured(draw(quick), draw(SLOW, rank=1)))

    assert finding.ranks == (1,)
    assert finding.summary == (
        "2.00 ms per step (10.0 % of the step) pass waiting for the data loader, "
        "most of all on rank 1"
    )


def test_many_ranks_are_counted() -> None:
    """Five of six."""
    quick = "input x...................\nforward .0000000000000000000"
    slow = (draw(SLOW, rank=rank) for rank in range(1, 6))
    finding = only(input_stall, measured(draw(quick), *slow))

    assert finding.summary.endswith(", most of all on 5 of 6 ranks")


def test_what_the_device_outlasts_is_no_finding() -> None:
    """The loader waits while the device still works on the last batch."""
    busy = SLOW.replace("...0000", "0000000")

    assert found(input_stall, measured(draw(busy, CUDA))) == []


def test_a_quick_loader_is_no_finding() -> None:
    """Under 5 % of the step."""
    quick = "input x.....................\nforward .000000000000000000000"

    assert found(input_stall, measured(draw(quick))) == []


def test_without_the_loader_it_cannot_tell() -> None:
    """No loader was watched."""
    m = measured(draw(SLOW, evidence=without(RECORDED, Evidence.INPUT)))

    assert not_judged(input_stall, m).needs == (Evidence.INPUT,)
