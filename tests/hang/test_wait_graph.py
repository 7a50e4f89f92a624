"""Who waits for whom, from counts of collectives."""

from collections.abc import Mapping

from fsdpdoctor.hang.standing import Group, Standing, State
from fsdpdoctor.hang.wait_graph import Wait, circle, ends, waits
from fsdpdoctor.rank_end import Call, Position

ALL = Group("all", (0, 1, 2, 3))


def standing(rank: int, counts: Mapping[Group, int], group: Group | None) -> Standing:
    """A rank in a collective of a group, or in none."""
    call = None if group is None else Call(name="all_reduce", group=group.name)
    return Standing(
        rank=rank,
        state=State.STANDING,
        ended="running",
        step=1,
        position=Position(step=1, call=call),
        counts=counts,
    )


def edge(rank: int, *others: int) -> Wait:
    """A rank that waits for others."""
    return Wait(rank=rank, waits_for=others, group=ALL, seq=7)


def test_each_waits_for_those_that_issued_fewer() -> None:
    """Rank 2 is one collective behind, rank 3 left no record."""
    ranks = [
        standing(0, {ALL: 7}, ALL),
        standing(1, {ALL: 8}, ALL),
        standing(2, {ALL: 6}, None),
    ]

    graph = waits(ranks)

    assert [(one.rank, one.waits_for, one.seq) for one in graph] == [
        (0, (2,), 7),
        (1, (0, 2), 8),
    ]
    assert ends(graph) == (2,)
    assert circle(graph) == ()


def test_a_group_of_the_same_name_is_another() -> None:
    """A mesh's halves may have one name."""
    left, right = Group("tp", (0, 1)), Group("tp", (2, 3))
    ranks = [
        standing(0, {left: 5}, left),
        standing(1, {left: 5}, left),
        standing(2, {right: 3}, right),
        standing(3, {right: 2}, None),
    ]

    assert [(one.rank, one.waits_for) for one in waits(ranks)] == [(2, (3,))]


def test_a_chain_is_no_circle() -> None:
    """Each waits for the next, the last for nobody."""
    assert circle([edge(rank, rank + 1) for rank in range(50)]) == ()


def test_a_circle_is_left_with_who_waits_for_it() -> None:
    """1, 2 and 3 wait for each other and 0 for one of them; 4 waits for 5 alone."""
    graph = [edge(0, 1), edge(1, 2, 5), edge(2, 3), edge(3, 1), edge(4, 5)]

    assert circle(graph) == (0, 1, 2, 3)
