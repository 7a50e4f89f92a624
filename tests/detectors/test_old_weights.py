"""FD504, where units stay gathered over the optimizer's step."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpdoctor.detectors.hooks_not_run import hooks_not_run
from fsdpdoctor.finding import Finding, Severity
from fsdpdoctor.schema import Evidence, GroupSpec
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, only, without

PROBED = """
    forward          0.........
    backward         .00.......
    unsharded        00........
    eval_all_gather  ...0......
    eval_forward     ....00....
    eval_unsharded   ....000000
    optimizer        .......000
"""
"""A pass without gradients between backward and the optimizer; the window that it
leaves open is carried into the next step's forward.
"""


def of(picture: str = PROBED, **changes: Any) -> list[Finding]:
    """What is found in a run whose steps look so."""
    return found(hooks_not_run, measured(draw(picture, **changes)))


def test_left_gathered_before_the_optimizer_and_used_after_it() -> None:
    """Six steps, of which the first began with a gather of its own."""
    finding = only(hooks_not_run, measured(draw(PROBED)))

    assert (finding.severity, finding.units) == (Severity.CRITICAL, ("layers.0",))
    assert (finding.phase, finding.ranks) == ("forward", (0,))
    assert finding.summary == (
        "1 unit computed with old weights in 5 recorded steps: a pass without "
        "gradients had left it gathered when the optimizer stepped, and what is "
        "gathered is not gathered again"
    )
    assert finding.evidence == {"steps": 5, "left_by_no_grad": True}
    assert codes(finding)[0].endswith(
        "# Right before the optimizer steps, on all ranks:\n"
        "for module in model.modules():\n"
        "    if isinstance(module, FSDPModule):\n"
        "        module.reshard()"
    )


def test_a_backward_that_never_reshards() -> None:
    """The unit stays gathered from the first step on."""
    picture = """
        forward    000.......
        backward   ...000....
        unsharded  0000000000
        optimizer  .......000
    """

    (finding,) = of(picture)

    assert finding.evidence == {"steps": 5, "left_by_no_grad": False}
    assert "what ran before had left it gathered" in finding.summary


AFTER = """
    eval_all_gather  .........0......
    forward          0...............
    backward         .00.............
    unsharded        00..............
    optimizer        ...000..........
    eval_forward     ..........00....
    eval_unsharded   ..........000000
"""


@pytest.mark.parametrize(
    "picture",
    [
        # It was gathered after the optimizer's step: the weights are the new ones.
        AFTER,
        # Resharded before the optimizer steps.
        PROBED.replace("....000000", "....00...."),
        # Gathered again for the forward.
        PROBED + "all_gather 0.........",
        # No optimizer steps.
        PROBED.replace("optimizer        .......000", ""),
    ],
)
def test_weights_that_are_not_old(picture: str) -> None:
    """What is gathered is what the optimizer has made of it."""
    assert of(picture) == []


def test_a_frozen_unit_or_one_rank_alone_has_no_old_weights() -> None:
    """Nothing changes the one; the other's gathered weights are its own."""
    frozen = (unit("layers.0", trainable_numel=0),)
    alone = (GroupSpec(name="shard", ranks=(0,), size=1, role="shard"),)

    assert of(units=frozen) == []
    assert of(groups=alone) == []


def test_of_several_trained_models_nothing_is_said() -> None:
    """Which of them the optimizer steps is not known."""
    units = (unit("layers.0"), unit("a of Net #2", model=1))
    picture = PROBED + "    forward ..1.......\n    backward ...1......\n"

    assert of(picture, units=units) == []


def test_without_windows_nothing_is_said() -> None:
    """They tell how long a unit was gathered."""
    assert of(evidence=without(RECORDED, Evidence.WINDOWS)) == []
