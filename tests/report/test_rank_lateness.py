"""Why a rank is late: what it does more of than the others."""

from __future__ import annotations

from fsdpdoctor.quantities import MS
from fsdpdoctor.report import report_of
from fsdpdoctor.report.rank_lateness import lateness, rank_budgets
from fsdpdoctor.testing import draw, measured

ON_TIME = """
    input       0.......
    forward     .0......
    all_gather  .....00.
    wait        ..00000.
"""
LOADS_LONG = """
    input       0000....
    forward     ....0...
    all_gather  .....00.
    wait        .....00.
"""


def test_the_late_rank_loads_longer() -> None:
    """Rank 1 is in its loader for 4 of 8 ms, the others for 1."""
    ranks = [draw(ON_TIME, rank=0), draw(LOADS_LONG, rank=1), draw(ON_TIME, rank=2)]
    m = measured(*ranks)
    found = {one.rank: one for one in lateness(rank_budgets(m), report_of(m).ranks)}

    assert (found[1].part, found[1].excess_ns) == ("input", 3 * MS)
    assert found[0].part is None


def test_alike_ranks_have_no_reason() -> None:
    """Nobody does more of anything."""
    m = measured(draw(ON_TIME, rank=0), draw(ON_TIME, rank=1))

    assert {one.part for one in lateness(rank_budgets(m), report_of(m).ranks)} == {None}


def test_it_is_said_as_the_finding_says_it() -> None:
    """Against the others' mean: of two ranks all that one does more, and not half."""
    m = measured(draw(ON_TIME, rank=0), draw(LOADS_LONG, rank=1))
    found = {one.rank: one for one in lateness(rank_budgets(m), report_of(m).ranks)}

    assert (found[1].part, found[1].excess_ns) == ("input", 3 * MS)
