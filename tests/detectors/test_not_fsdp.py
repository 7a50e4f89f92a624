"""FD900, not-fsdp, and the order in which all detectors answer."""

from __future__ import annotations

from fsdpdoctor.detectors import judge_all
from fsdpdoctor.detectors.not_fsdp import not_fsdp
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import CUDA, found, not_judged, only, without

HEALTHY = """
    micro_batch          000000000000000000000000000000000000....
    all_gather           0...1...................................
    forward              .00000001111111111......................
    backward_all_gather  ........................................
    backward             ..................111111111100000000....
    reduce_scatter       ............................1111....00..
    optimizer            ......................................x.
"""


def test_it_says_where_the_time_goes() -> None:
    """Half backward, half forward, no exposed communication."""
    finding = only(not_fsdp, measured(draw(HEALTHY, CUDA)))

    assert finding.severity == Severity.INFO
    assert finding.summary == (
        "no fault of the sharding costs enough to change: a mean step of 40.0 ms goes "
        "to backward 45.0 %, forward 42.5 %, time outside all that was recorded 7.5 %; "
        "0.0 % is exposed communication"
    )
    assert finding.evidence["step_ns"] == 40 * MS


def test_a_healthy_run_has_nothing_else() -> None:
    """All detectors together: one finding, and it is information."""
    units = draw(HEALTHY).header.units
    resharded = [unit_ for unit_ in units if unit_.reshard_after_forward]
    assert len(resharded) == 2

    findings, _ = judge_all(measured(draw(HEALTHY, CUDA)))

    assert [f.code for f in findings if f.severity >= Severity.WARNING] == []
    assert "FD900" in {f.code for f in findings}


def test_it_is_not_asked_where_something_matters() -> None:
    """The worst finding comes first, and FD900 is silent."""
    m = measured(
        draw(
            """
            all_gather  0...............1111....
            wait        0...............1111....
            forward     .000000000000000....1111
            optimizer   ...............x........
        """,
            CUDA,
        ),
        source="rehearsal",
    )

    findings, not_judged_ = judge_all(m)

    assert findings[0].code == "FD101"
    assert findings[0].severity == Severity.CRITICAL
    assert {f.code for f in findings}.isdisjoint({"FD900"})
    assert {n.code for n in not_judged_} >= {"FD401", "FD302"}


def test_exposed_communication_is_not_called_fine() -> None:
    """3 of 40 ms are waited for, though nothing may be a warning about it."""
    picture = """
        all_gather  000.....................................
        wait        000.....................................
        forward     ...0000000000000000000000000000000000000
    """

    assert found(not_fsdp, measured(draw(picture, CUDA))) == []


def test_without_stalls_it_cannot_tell() -> None:
    """Sharding cannot be called fine unseen."""
    m = measured(draw(HEALTHY, evidence=without(RECORDED, Evidence.STALLS)))

    assert set(not_judged(not_fsdp, m).needs) == {Evidence.STALLS, Evidence.KERNELS}
