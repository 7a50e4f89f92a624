"""Where a rank's end is marked, and in which words."""

from __future__ import annotations

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.schema import Spans
from fsdpdoctor_dashboard.data.rank_ends import rank_ends
from fsdpdoctor_dashboard.data.slices import RankFacts, StepRows, Track
from fsdpdoctor_dashboard.data.store import Store, build_store


def ended(*ranks: tuple[int, str]) -> Store:
    """Ranks whose steps of 100 ns follow each other: how many, and how they ended."""
    return build_store(
        (
            Track(
                rank=rank,
                spans=Spans.build(0),
                steps=StepRows.build(
                    count,
                    step=range(count),
                    start_ns=[100 * at for at in range(count)],
                    end_ns=[100 * at + 100 for at in range(count)],
                ),
                facts=RankFacts(ended=how),
            )
            for rank, (count, how) in enumerate(ranks)
        ),
        "test",
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # A killed rank: the other one has an end, and this one's record none.
        (
            ((3, "exception: RuntimeError: a\n: b"), (2, "running")),
            {
                0: {"at": 300, "words": "ended by an exception"},
                1: {"at": 200, "words": "its record breaks off"},
            },
        ),
        (((3, "signal: SIGTERM"),), {0: {"at": 300, "words": "ended by a signal"}}),
        (((3, "done"), (2, "done")), {1: {"at": 200, "words": "done"}}),
        (((3, "done"), (3, "done")), {}),
        (((3, "running"), (2, "running")), {}),  # it goes on, as far as one can tell
        (
            ((3, "done"), (1, "detached: asked")),
            {1: {"at": 100, "words": "recording stopped"}},
        ),
        (((3, "done"), (0, "running")), {}),  # of no record there is no end
    ],
)
def test_an_end_is_marked_where_one_was(
    ranks: tuple[tuple[int, str], ...], expected: dict[int, dict[str, object]]
) -> None:
    """One that something ended always, another where the run went on without it."""
    assert rank_ends(ended(*ranks)) == expected
