"""FD405, checkpoint-stall."""

from __future__ import annotations

from dataclasses import replace

from fsdpdoctor.detectors.checkpoint_stall import checkpoint_stall
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Evidence
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import codes, found, not_judged, only, without

PLAIN = "forward 0000000000"
SAVING = "forward 00000\ncheckpoint .....xxxxx"


def saving_once(picture: str = SAVING) -> RankData:
    """One of six steps saves."""
    data, saving = draw(PLAIN), draw(picture)
    return replace(data, steps=(*data.steps[:3], saving.steps[3], *data.steps[4:]))


def test_saving_takes_much_of_the_run() -> None:
    """5 of 60 ms, once."""
    finding = only(checkpoint_stall, measured(saving_once()))

    assert finding.severity == Severity.WARNING
    assert finding.summary == (
        "1 checkpoint save of 5.00 ms take 8.3 % of the recorded time"
    )
    assert finding.cost_ns_per_step == round(5 * MS / 6)
    assert finding.places[0].step == 6
    assert "dcp.async_save" in codes(finding)[0]


def test_a_short_save_is_no_finding() -> None:
    """1 of 60 ms."""
    short = saving_once("forward 000000000\ncheckpoint .........x")

    assert found(checkpoint_stall, measured(short)) == []


def test_without_saves_being_watched_it_cannot_tell() -> None:
    """A trace does not name them; and there must be steps."""
    bare = draw(SAVING, evidence=without(RECORDED, Evidence.CHECKPOINT))

    assert not_judged(checkpoint_stall, measured(bare)).needs == (Evidence.CHECKPOINT,)
    empty = measured(draw(SAVING, steps=0))
    assert not_judged(checkpoint_stall, empty).needs == (Evidence.STEPS,)
