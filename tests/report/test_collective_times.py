"""How long collectives took, by kind and size."""

from __future__ import annotations

from fsdpdoctor.quantities import MS
from fsdpdoctor.report.collective_times import collective_times
from fsdpdoctor.schema import Evidence
from fsdpdoctor.testing import RECORDED, Call, Drawing, draw, measured

BOTH = """
    all_gather  0.111.....
    forward     .000.11...
    other       ........00
    other_wait  ........00
"""


def test_every_kind_that_ran_has_its_times() -> None:
    """FSDP2's gathers of 1 and 3 ms, an all-to-all of 2 ms, in each of six steps."""
    seen = Drawing(evidence=(*RECORDED, Evidence.OTHER_COLLECTIVES))
    call = Call(kind="alltoall_base", site="moe.py:3")
    found = collective_times(measured(draw(BOTH, seen, calls=(call,))))

    assert [(each.kind, each.fsdp, each.count) for each in found] == [
        ("all_gather", True, 12),
        ("all_to_all", False, 6),
    ]
    assert (found[0].ns[2], found[0].longest_ns) == (2 * MS, 3 * MS)
    assert set(found[1].ns) == {2 * MS}


def test_a_run_without_collectives_has_none() -> None:
    """Nothing ran, nothing is listed."""
    assert collective_times(measured(draw("forward 0000"))) == []
