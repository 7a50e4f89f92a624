"""Units told from sizes and order, where no label says them."""

from __future__ import annotations

import pytest

from fsdpdoctor.importers.fsdp2.schedule import Schedule, read_schedule
from fsdpdoctor.schema import Kind, Phase

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD


def read(text: str) -> Schedule | None:
    """`g4 s8`: a gather of 4 bytes, then a reduce-scatter of 8."""
    words = text.split()
    kinds = {"g": Kind.ALL_GATHER, "s": Kind.REDUCE_SCATTER, "r": Kind.ALL_REDUCE}
    return read_schedule([kinds[w[0]] for w in words], [int(w[1:]) for w in words])


def test_forward_backward_and_reductions() -> None:
    """A root that stays, two layers that are gathered again; gradients are twice as
    wide.
    """
    schedule = read("g9 g4 g4 g4 s8 g4 s8 s18")

    assert schedule == Schedule(
        gather_bytes=(9, 4, 4),
        places=(
            (0, FORWARD),
            (1, FORWARD),
            (2, FORWARD),
            (2, BACKWARD),
            (2, BACKWARD),
            (1, BACKWARD),
            (1, BACKWARD),
            (0, BACKWARD),
        ),
    )


def test_what_sizes_leave_open_is_not_guessed() -> None:
    """One of two layers of one size is gathered again: which, nothing says."""
    schedule = read("g9 g4 g4 g4 s4 s4 s9")

    assert schedule is not None
    assert schedule.places[3] == (None, BACKWARD)
    assert schedule.places[4] == (2, BACKWARD)


def test_micro_batches() -> None:
    """The schedule twice in a step; prefetched gathers run before the reduction."""
    schedule = read("g9 g4 g6 g6 g4 s6 s4 s9 g9 g4 g6 g6 g4 s6 s4 s9")

    assert schedule is not None
    assert [unit for unit, _ in schedule.places] == [0, 1, 2, 2, 1, 2, 1, 0] * 2


@pytest.mark.parametrize(
    "text",
    [
        "g4 s4 g4 s4 g4 s4",  # sequence parallelism
        "g4 g6 g9",  # evaluation
        "g4 g6 s4 s6",  # reduced in forward order
        "g4 g6 s6 s5",  # sizes that are not each other's
        "g4 g6 s6 s4 g4",  # a step that was cut
        "g4 g6 g5 s6 s4",  # a gather of no unit
        "g4 g6 r6 s6 s4",  # something else in the group
        "g-1 g-1 s-1 s-1",  # no sizes
    ],
)
def test_what_is_no_schedule(text: str) -> None:
    """Nothing is told where the collectives do not mirror each other."""
    assert read(text) is None
