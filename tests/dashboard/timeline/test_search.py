"""Which units a text means that somebody looks for."""

from __future__ import annotations

import json

import pytest

from tests.dashboard.node import needs_node, required, run_js

ONE = ["<root>", "layers.1", "layers.10", "head"]
TWO = ["layers.1 of Actor", "layers.10 of Actor", "layers.1 of Critic"]


@needs_node
@pytest.mark.parametrize(
    ("units", "text", "meant"),
    [
        (ONE, "layers.1", [1]),
        (ONE, "10", [2]),
        (ONE, "layers", [1, 2]),
        (ONE, "tail", []),
        (TWO, "layers.1", [0, 2]),
        (TWO, "1", [0, 2]),
        (TWO, "layers.1 of critic", [2]),
        (TWO, "actor", [0, 1]),
    ],
)
def test_a_whole_name_wins(units: list[str], text: str, meant: list[int]) -> None:
    """Over those that contain it; of several models it is a name in each."""
    script = f"""
    globalThis.window = globalThis;
    globalThis.fsdpTiles = {required("data/tiles.js")};
    globalThis.fsdpFormat = {required("format.js")};
    const {{ FsdpToolbar }} = {required("controls/toolbar.js")};
    const asked = [];
    const source = {{
      meta: {{ units: {json.dumps(units)}, ranks: [] }}, offset: 0,
      find: async (ranks, wanted) => {{
        asked.push(...wanted);
        return {{ mark: null, total: 0, at: 0 }};
      }},
    }};
    const timeline = {{ sources: [source], selection: {{ from: () => 0 }} }};
    FsdpToolbar.prototype.goToUnit.call({{ timeline }}, {json.dumps(text)}, true)
      .then(() => console.log(JSON.stringify(asked)));
    """

    assert run_js(script) == meant
