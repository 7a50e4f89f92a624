"""FD403, host-pause."""

from __future__ import annotations

from dataclasses import replace

from fsdpdoctor.detectors.host_pause import host_pause
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import COUNTER_PYTHON_OBJECTS, Counters, Evidence
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import codes, found, not_judged, only, without

COLLECTING = """
    forward  00000000000000000000
    gc       .....22.............
"""


def test_collecting_in_every_step() -> None:
    """2 of 20 ms, of the oldest generation."""
    finding = only(host_pause, measured(draw(COLLECTING)))

    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == 2 * MS
    assert finding.evidence["oldest_generation"] == 6
    assert finding.evidence["new_objects_per_step"] is None
    assert "gc.collect(1)" in codes(finding)[0]


def test_objects_that_grow_are_counted() -> None:
    """500 more in each step."""
    data = draw(COLLECTING, counters={COUNTER_PYTHON_OBJECTS: 0})
    growing = tuple(
        replace(
            record,
            counters=Counters.build(1, name=0, time_ns=0, value=500 * record.step),
        )
        for record in data.steps
    )

    finding = only(host_pause, measured(replace(data, steps=growing)))

    assert finding.evidence["new_objects_per_step"] == 500


def test_short_collections_are_no_finding() -> None:
    """1 ms in 60."""
    rare = "forward " + "0" * 60 + "\ngc " + ".....0" + "." * 54

    assert found(host_pause, measured(draw(rare))) == []


def test_without_collections_it_cannot_tell() -> None:
    """A trace does not show them."""
    m = measured(draw(COLLECTING, evidence=without(RECORDED, Evidence.GC)))

    assert not_judged(host_pause, m).needs == (Evidence.GC,)
