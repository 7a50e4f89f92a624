"""FD402, input-stall."""

from __future__ import annotations

from fsdpdoctor.detectors.input_stall import input_stall
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without

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
