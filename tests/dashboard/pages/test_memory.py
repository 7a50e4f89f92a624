"""The memory page's peaks by unit, where there is no allocator."""

from __future__ import annotations

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.schema import Bucket, MemoryShare, MemoryStep, Phase, UnitMemory
from fsdpdoctor.testing import draw, measured
from fsdpdoctor_dashboard.pages.memory import _peaks
from tests.report.test_memory_peak import PICTURE
from tests.rig.changed import replace

COUNTED = MemoryStep(
    step=1,
    peak_bytes=5 << 20,
    peak_unit=1,
    peak_phase=Phase.BACKWARD,
    peak=(MemoryShare(bucket=Bucket.ACTIVATIONS, unit=0, bytes=5 << 20),),
    units=(UnitMemory(unit=0, forward_peak_bytes=3 << 20, activation_bytes=1 << 20),),
)


def rank(memory: MemoryStep | None) -> RankMeasures:
    """A rank that counted so."""
    drawn = draw(PICTURE)
    told = replace(drawn, header=replace(drawn.header, memory=memory))
    return measured(told).ranks[0]


def test_a_counted_step_has_its_units() -> None:
    """The peak in words, and each unit's own; what did not run is left open."""
    words, _, table = map(str, _peaks("run", rank(COUNTED), UnitNames()))

    assert "memory: at most 5.00 MiB, in backward of layers.1 (step 1)" in words
    assert "3.00 MiB" in table
    assert "1.00 MiB" in table


def test_what_was_not_counted_says_why() -> None:
    """With the reason that the record gives, if there is one."""
    refused = MemoryStep(step=1, refused="code of torch.compile runs")

    (nothing,) = map(str, _peaks("run", rank(None), UnitNames()))
    (reason,) = map(str, _peaks("run", rank(refused), UnitNames()))

    assert "peaks by unit take the allocator's statistics." in nothing
    assert "no step was counted: code of torch.compile runs." in reason
