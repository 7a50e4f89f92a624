"""FD403, host-pause."""

from __future__ import annotations

from fsdpdoctor.detectors.host_pause import host_pause
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import COUNTER_PYTHON_OBJECTS, Counters, Evidence
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without
from tests.rig.changed import replace

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


def test_a_script_that_collects_is_told_to_stop() -> None:
    """Automatic collection may be off: the call itself is what costs."""
    by_hand, together = only(host_pause, measured(draw(COLLECTING))).advice

    assert "the script calls gc.collect()" in by_hand.text
    assert together.code is not None


YOUNG = COLLECTING.replace("22", "11")
"""A look-alike: as long, of a younger generation, as Python does by itself."""


def test_what_python_collects_is_not_the_scripts() -> None:
    """Then the collector's own settings are the cure, alone."""
    assert len(only(host_pause, measured(draw(YOUNG))).advice) == 1


def test_the_cost_is_the_budgets() -> None:
    """2 of 4 ms lie in a pass without gradients, whose time is its own."""
    m = measured(
        draw(
            """
            eval_root_forward  0000....................
            forward            ....00000000000000000000
            gc                 .22....22...............
        """
        )
    )
    finding = only(host_pause, m)

    assert finding.cost_ns_per_step == m.budget_ns_per_step()["gc"] == 2 * MS
    assert finding.evidence["paused_ns"] == 4 * MS
    assert "and 2.00 ms more under what goes on" in finding.summary


def test_a_pause_that_the_device_outlasts_is_information() -> None:
    """Its kernels were issued before: nothing is lost."""
    finding = only(host_pause, measured(draw(COLLECTING, CUDA)))

    assert (finding.severity, finding.cost_ns_per_step) == (Severity.INFO, 0)
    assert finding.summary == (
        "garbage collection takes 2.00 ms per step under what goes on or waits "
        "meanwhile, 2.00 ms at the longest"
    )


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
