"""Where the training is as memory is taken, by the hooks of FSDP2."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fsdpdoctor.rehearsal.device.memory import memory_places
from fsdpdoctor.rehearsal.device.memory.memory_places import MemoryPlaces

FORWARD, BACKWARD = -1, 7
"""The engine's graph task: none runs, some runs."""


def test_each_pass_of_backward_begins_outside_the_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loss's gradient is nobody's; a unit's end gives back to the one around."""
    ledger: Any = SimpleNamespace()
    places, task = MemoryPlaces(ledger), [FORWARD]
    monkeypatch.setattr(memory_places, "_graph_task", lambda: task[0])

    def hook(name: str, unit: str) -> str:
        with places.in_hook(name, SimpleNamespace(_module_fqn=unit)):
            pass
        said: str = ledger.place()
        return said

    for _ in range(2):  # what a pass leaves is not the next one's
        task[0] = FORWARD
        assert hook("pre_forward", "") == "<root>, forward"
        assert hook("pre_forward", "layers.0") == "layers.0, forward"
        assert hook("post_forward", "layers.0") == "<root>, forward"
        assert hook("post_forward", "") == "forward"
        task[0] = BACKWARD
        assert ledger.place() == "backward, before its first unit"
        assert hook("pre_backward", "") == "<root>, backward"
        assert hook("pre_backward", "layers.0") == "layers.0, backward"
        assert hook("post_backward", "layers.0") == "<root>, backward"
