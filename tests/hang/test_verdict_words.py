"""A verdict says what is the fault of the script's, and what is not."""

from __future__ import annotations

import pytest

from fsdpdoctor.detectors.run_ended import run_ended
from fsdpdoctor.rank_end import Call, ThreadPosition
from fsdpdoctor.testing import measured
from tests.detectors.answers import only
from tests.detectors.test_run_ended import standing
from tests.rig.changed import replace

TWO_THREADS = (
    "; rank 1 was in gather_object on its thread saver: collectives of two threads in "
    "one group meet in another order on each rank"
)


@pytest.mark.parametrize(
    ("group", "why", "what"),
    [
        (
            "0",
            TWO_THREADS,
            "Give the thread a process group of its own",
        ),
        (
            "1",
            ": the fault is in the network or a device, not in the script",
            "Look at the network and the devices",
        ),
    ],
)
def test_two_threads_in_one_group_are_no_fault_of_the_network(
    group: str, why: str, what: str
) -> None:
    """A save behind the training communicates amid its collectives; in a group of its
    own it would not.
    """
    ranks = [standing(rank, 40, 41, "all_gather_single", {}) for rank in range(3)]
    stall = ranks[1].stall
    assert stall is not None
    thread = ThreadPosition(
        thread="saver", call=Call(name="gather_object", group=group)
    )
    position = replace(stall.position, threads=(thread,))
    ranks[1] = replace(ranks[1], stall=replace(stall, position=position))

    finding = only(run_ended, measured(*ranks))

    assert finding.ranks == (0, 1, 2)
    assert finding.summary == (
        "all ranks are in all_gather_single of layers.1 (backward), #41 of group 0, at "
        f"train.py:40 in main in step 9, micro-batch 0, and it does not end{why}"
    )
    assert finding.advice[0].text.startswith(what)
