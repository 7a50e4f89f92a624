"""FD301's advice on passes without gradients that gather the same weights again."""

from __future__ import annotations

import pytest

from fsdpdoctor.detectors.reshard_policy import reshard_policy
from fsdpdoctor.testing import draw, measured
from tests.detectors.answers import only


@pytest.mark.parametrize("once", [False, True])
def test_a_loop_that_is_gathered_for_once_is_not_told_to(once: bool) -> None:
    """Three passes without gradients a step, of which all gather or the first alone."""
    gathers = "0........" if once else "0..0..0.."
    picture = f"""
        eval_root_forward  00.00.00.....
        eval_all_gather    {gathers}....
        eval_wait          {gathers}....
        eval_forward       .0..0..0.....
        forward            .........00..
        backward           ...........00
    """

    finding = only(reshard_policy, measured(draw(picture)))

    assert finding.summary.startswith("passes without gradients")
    assert len(finding.advice) == (not once)
