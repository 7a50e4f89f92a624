"""A history, replayed: what was held and reserved after each event."""

from __future__ import annotations

from pathlib import Path

from fsdpdoctor.memory_snapshot.allocations import (
    BEFORE,
    Allocations,
    allocations_of,
)
from fsdpdoctor.memory_snapshot.read_snapshot import read_snapshot
from tests.memory_snapshot.drawn_snapshot import FORWARD, LOOP, SEGMENT, Drawn


def replayed(drawn: Drawn, folder: Path) -> Allocations:
    """The allocations of what was drawn."""
    snapshot = read_snapshot(drawn.write(folder / "rank0.pickle"))
    return allocations_of(snapshot.histories[0], snapshot.segments)


def test_what_is_held_is_what_was_asked_for(tmp_path: Path) -> None:
    """Sizes are not rounded up, and an address that is used again counts anew."""
    drawn = Drawn()
    drawn.alloc("a", 1000, LOOP)
    drawn.alloc("b", 700, LOOP)
    drawn.free("a")
    drawn.alloc("c", 900, LOOP)  # where a was

    found = replayed(drawn, tmp_path)

    #             before, segment, a, b, requested, completed, c
    assert found.held_bytes.tolist() == [0, 0, 1000, 1700, 1700, 700, 1600]
    assert found.peak_event == 2
    assert found.size_bytes[found.held_at(2)].tolist() == [1000, 700]
    assert found.size_bytes[found.held_at(5)].tolist() == [700, 900]
    assert found.size_bytes[found.held_at(BEFORE)].tolist() == []
    assert found.reserved_bytes is not None
    assert found.reserved_bytes.tolist() == [0, *[SEGMENT] * 6]
    assert (found.lost_bytes, found.unheld_bytes, found.overfull) == (0, 0, False)


def test_memory_is_held_until_no_stream_uses_it(tmp_path: Path) -> None:
    """From free_requested to free_completed, also over the end of the history."""
    drawn = Drawn()
    drawn.alloc("a", 1000, LOOP)
    drawn.alloc("b", 500, LOOP)
    drawn.free("a", completes=False)
    drawn.free("b", completes=False)
    drawn.complete("b")

    found = replayed(drawn, tmp_path)

    assert found.held_bytes.tolist() == [0, 0, 1000, 1500, 1500, 1500, 1000]
    assert found.requested_end.tolist() == [3, 4]
    assert found.end.tolist() == [6, 5]


def test_what_was_there_before_the_history_counts(tmp_path: Path) -> None:
    """Whether it is held to the end, freed in the history, or waits for a stream."""
    drawn = Drawn(recording=False)
    drawn.alloc("stays", 1000, FORWARD)
    drawn.alloc("goes", 2000, FORWARD)
    drawn.alloc("waits", 4000, FORWARD)
    drawn.recording = True
    drawn.alloc("new", 8000, FORWARD)
    drawn.free("goes")
    drawn.free("waits", completes=False)

    found = replayed(drawn, tmp_path)

    assert found.held_bytes.tolist() == [7000, 15000, 15000, 13000, 13000]
    assert found.reserved_bytes is not None
    assert found.reserved_bytes.tolist() == [SEGMENT] * 5


def test_a_history_without_completed_frees_ends_where_they_were_asked(
    tmp_path: Path,
) -> None:
    """_record_memory_history(skip_actions=["free_completed"])."""
    drawn = Drawn()
    drawn.alloc("a", 1000, LOOP)
    drawn.free("a")
    drawn.alloc("b", 10, LOOP)
    drawn.events = [e for e in drawn.events if e["action"] != "free_completed"]

    found = replayed(drawn, tmp_path)

    assert found.held_bytes.tolist() == [0, 0, 1000, 0, 10]
    assert found.lost_bytes == 0


def test_a_history_without_requested_frees(tmp_path: Path) -> None:
    """_record_memory_history(skip_actions=["free_requested"])."""
    drawn = Drawn()
    drawn.alloc("a", 1000, LOOP)
    drawn.free("a")
    drawn.events = [e for e in drawn.events if e["action"] != "free_requested"]

    found = replayed(drawn, tmp_path)

    assert found.held_bytes.tolist() == [0, 0, 1000, 0]


def test_a_history_without_frees_is_not_believed(tmp_path: Path) -> None:
    """What it holds at its end and no segment has is said."""
    drawn = Drawn()
    drawn.alloc("a", 1000, LOOP)
    drawn.free("a")
    drawn.events = [e for e in drawn.events if not e["action"].startswith("free")]

    found = replayed(drawn, tmp_path)

    assert found.lost_bytes == 1000


def test_a_block_that_the_history_has_freed_is_said(tmp_path: Path) -> None:
    """It is in use in a segment, and free by the last that happened to it."""
    drawn = Drawn()
    drawn.alloc("a", 1000, LOOP)
    events = list(drawn.events)
    drawn.free("a")
    drawn.alloc("b", 900, LOOP)
    drawn.events = events + drawn.events[2:4]

    found = replayed(drawn, tmp_path)

    assert found.unheld_bytes == 900
    assert found.held_bytes.tolist()[-1] == 0


def test_more_held_than_reserved_is_seen(tmp_path: Path) -> None:
    """Then what was reserved is not told."""
    drawn = Drawn()
    drawn.alloc("a", 1000, LOOP)
    drawn.events[1]["size"] = 2 * SEGMENT

    found = replayed(drawn, tmp_path)

    assert found.overfull
    assert found.reserved_bytes is None
