"""FD108, where a step's last micro-batch is not reduced."""

from __future__ import annotations

import pytest

from fsdpdoctor.detectors.accumulation_comm import accumulation_comm
from fsdpdoctor.finding import Finding, Severity
from fsdpdoctor.testing import draw, measured
from tests.detectors.answers import codes, found, only
from tests.rig.changed import replace

FIRST = """
    micro_batch     0000.0000.0000.0000.
    backward        0000.0000.0000.0000.
    reduce_scatter  ...0................
    optimizer       ...................0
"""
LAST = """
    micro_batch     0000.0000.0000.0000.
    backward        0000.0000.0000.0000.
    reduce_scatter  ..................0.
    optimizer       ...................0
"""


def of(picture: str) -> list[Finding]:
    """What is found in a run of four micro-batches a step."""
    return found(accumulation_comm, measured(draw(picture, micro_batches=4)))


def test_the_first_micro_batch_is_reduced_and_the_last_is_not() -> None:
    """Three of four go to the next step's optimizer."""
    finding = only(accumulation_comm, measured(draw(FIRST, micro_batches=4)))

    assert (finding.severity, finding.units) == (Severity.CRITICAL, ("layers.0",))
    assert (finding.cost_ns_per_step, finding.ranks) == (None, (0,))
    assert finding.summary == (
        "gradients of 1 unit are reduced in a micro-batch before the last of 4: what "
        "comes after it is left out of the optimizer's step and mixed into the next "
        "one, so the model trains on gradients of old weights"
    )
    assert finding.evidence == {
        "micro_batches": 4,
        "setting": "set_requires_gradient_sync",
    }
    assert codes(finding)[0].endswith(
        "model.set_requires_gradient_sync(micro_batch == micro_batches - 1)"
    )


def test_replicas_are_all_reduced_in_the_first_micro_batch_alone() -> None:
    """The reduce-scatter comes in each, as it should."""
    picture = FIRST.replace(
        "reduce_scatter  ...0................",
        "reduce_scatter  ...0....0....0....0.\n    all_reduce  ...0................",
    )

    (finding,) = of(picture)

    assert finding.evidence["setting"] == "set_requires_all_reduce"
    assert "are all-reduced over replicas in a micro-batch before" in finding.summary


@pytest.mark.parametrize(
    "picture",
    [
        LAST,
        # Nothing of it runs in the last micro-batch: nothing is left over.
        FIRST.replace("backward        0000.0000.0000.0000", "backward        0000"),
        # An optimizer steps after the first: those after it are another's.
        FIRST.replace("optimizer       ....", "optimizer       ....0"),
    ],
)
def test_what_leaves_nothing_over(picture: str) -> None:
    """The last one is reduced; has no backward of the unit; or is another turn's."""
    assert of(picture) == []


def test_one_step_of_many_is_no_habit() -> None:
    """The last of six steps, whose last micro-batch is not reduced."""
    first, last = (draw(picture, micro_batches=4) for picture in (FIRST, LAST))

    data = replace(last, steps=(*last.steps[:-1], first.steps[-1]))

    assert found(accumulation_comm, measured(data)) == []
