"""What ranks exchange, and which of it keeps them alike."""

from __future__ import annotations

from fsdpdoctor.analysis.alike.exchanges import (
    Exchange,
    Unkept,
    exchanges,
    kept_alike,
    kept_apart,
    share_work,
)
from fsdpdoctor.schema import Phase
from fsdpdoctor.testing import Call, draw, measured
from tests.analysis.alike.test_replicas import differing

BARRIERS = "forward 00..000...\nother ..0....1.1"


def seen(kind: str, phase: Phase = Phase.OTHER) -> tuple[Exchange, ...]:
    """Of two ranks that issue one collective of 1 MiB, and later two barriers."""
    calls = (
        Call(kind=kind, site="moe.py:7", phase=phase),
        Call(kind="barrier", site="train.py:3"),
    )
    return exchanges(
        measured(*(draw(BARRIERS, rank=rank, calls=calls) for rank in (0, 1))).ranks
    )


def test_each_kind_once_with_the_most_of_a_step() -> None:
    """Over both ranks, and all recorded steps."""
    both = frozenset({0, 1})

    assert seen("alltoall_base", Phase.FORWARD) == (
        Exchange(
            ranks=both,
            kind="all_to_all",
            where="moe.py:7",
            of_work=True,
            step_bytes=1 << 20,
        ),
        Exchange(
            ranks=both,
            kind="barrier",
            where="train.py:3",
            of_work=False,
            step_bytes=2 << 20,
        ),
    )


def test_work_is_exchanged_in_a_forward_or_from_stage_to_stage() -> None:
    """By ranks of its group, and by no others."""
    for found in (seen("all_gather", Phase.FORWARD), seen("send")):
        assert share_work(found, 0, 1) == found[0]
        assert share_work(found, 0, 2) is None
    assert share_work(seen("all_gather", Phase.BACKWARD), 0, 1) is None


def test_ranks_are_kept_alike_by_half_of_what_they_hold_or_more() -> None:
    """3 MiB in a step, outside of a forward."""
    found = seen("all_reduce", Phase.BACKWARD)

    assert kept_alike(found, 6 << 20, 0, 1) == found
    assert kept_alike(found, (6 << 20) + 1, 0, 1) == ()
    assert kept_alike(found, 6 << 20, 0, 2) == ()
    assert kept_alike(found, 0, 0, 1) == ()


def test_ranks_that_differ_are_asked_for_by_their_kinds() -> None:
    """Ranks 0 and 1 exchange work; 2 and 3 exchange none with anybody."""
    found = seen("all_gather", Phase.FORWARD)

    assert kept_apart(differing((0,), (1,)), Unkept(found, 0)) == [found[0]]
    assert kept_apart(differing((0,), (2, 3)), Unkept(found, 0)) == [None]
    assert kept_apart(differing((0, 2), (1, 3)), Unkept(found, 0)) == [
        *(found[0], None, None)
    ]


def test_ranks_that_are_kept_alike_are_not_told() -> None:
    """What is reduced outside of a forward is half of what they hold."""
    found = seen("all_reduce", Phase.BACKWARD)

    assert kept_apart(differing((0,), (1,)), Unkept(found, 6 << 20)) == []
    assert kept_apart(differing((0,), (1,)), Unkept(found, 7 << 20)) == [None]
