"""Where the rows of ranks lie: they take the room that there is, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard.node import needs_node, required, run_js

ROWS = (0, 1, 2, 3, 7)
"""Exposed, compute, two lanes and the host's."""


def placed(ranks: int, room: int, condensed: str = "false", opened: str = "[]") -> Any:
    """The content's height, and of the first rank each row's height. `opened` are its
    opened lanes, by row.
    """
    return run_js(
        f"""
        globalThis.window = globalThis;
        for (const [name, script] of [
          ["fsdpTiles", {required("data/tiles.js")}],
          ["fsdpFormat", {required("format.js")}],
        ]) globalThis[name] = script;
        {required("drawing/layout.js")};
        globalThis.fsdpLoader = {{ TileLoader: {{}} }};
        const {{ placeTracks }} = {required("drawing/tracks.js")};
        const tracks = [...Array({ranks}).keys()].map((rank) => ({{
          key: String(rank), rank, rows: {list(ROWS)}, pinned: false, collapsed: false,
          open: new Map(rank ? [] : {opened}),
        }}));
        const {{ content }} = placeTracks(tracks, {condensed}, {room});
        console.log(JSON.stringify([content, tracks[0].boxes.map((b) => b.height)]));
        """
    )


@needs_node
def test_rows_grow_into_the_room_that_is_left() -> None:
    """To five times their height at most; the ribbon above them, of one line, less."""
    small, rows = placed(ranks=4, room=0)
    tall, grown = placed(ranks=1, room=600)

    assert rows == [11, 16, 13, 13, 9]
    assert grown == [16, 80, 65, 65, 45]
    assert tall <= 600
    assert small == 4 * placed(ranks=1, room=0)[0]


@needs_node
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_no_growth_makes_a_picture_scroll(ranks: int) -> None:
    """What fitted without it fits with it; what did not is as it was."""
    least = placed(ranks, room=0)[0]
    for room in range(least - 40, least * 4, 37):
        content, rows = placed(ranks, room)
        assert content <= max(room, least)
        assert rows[1] >= 16


@needs_node
def test_condensed_ranks_are_lines() -> None:
    """They have a height of their own, and rows in full do not count."""
    assert placed(ranks=4, room=400, condensed="true") == [140, [14, 19]]


@needs_node
def test_an_opened_lane_has_its_rows_under_it() -> None:
    """As many as it has lines, and one for what is said beside them or instead."""
    closed, rows = placed(ranks=2, room=0)
    lines = "[[1, {lines: [{label: 'stream 7'}, {label: ''}], words: '', more: 0}]]"
    more = lines.replace("more: 0", "more: 5")
    words = "[[7, {lines: [], words: 'not recorded', more: 0}]]"

    opened = placed(ranks=2, room=0, opened=lines)
    assert opened[1] == [*rows[:2], 12, 12, *rows[2:]]
    assert opened[0] - closed == 2 * 13 + 3
    assert placed(ranks=2, room=0, opened=more)[1] == [*rows[:2], 12, 12, 16, *rows[2:]]
    assert placed(ranks=2, room=0, opened=words)[1] == [*rows, 16]
