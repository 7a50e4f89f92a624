"""Graph breaks and recompilations, where something was compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import COUNTER_GRAPH_BREAKS, COUNTER_RECOMPILES, Evidence
from tests.models import mlp
from tests.recorder.rehearsed import recorded, sharded, train


def values(data: RankData, counter: str) -> list[int]:
    """What a counter held at each step's end."""
    return [
        int(value)
        for step in data.steps
        for name, value in zip(step.counters.name, step.counters.value, strict=True)
        if data.name(int(name)) == counter
    ]


@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_counts_what_dynamo_did(tmp_path: Path) -> None:
    """A block is compiled once, and again for a batch of another size."""
    torch._dynamo.reset()
    model = mlp(2, 8)
    model.layers[0].compile(backend="eager")
    with recorded(tmp_path):
        sharded(model)
        train(model)
        model(torch.ones(3, 8)).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    data = open_run(tmp_path).sources[0].load()

    first, second, third = values(data, COUNTER_RECOMPILES)
    assert first == second < third
    breaks = values(data, COUNTER_GRAPH_BREAKS)
    assert breaks == sorted(breaks)
    assert Evidence.COMPILE in data.header.evidence


def test_is_silent_where_nothing_was_compiled(tmp_path: Path) -> None:
    """Zero breaks of a compiler that nobody used would be a claim."""
    torch._dynamo.reset()
    with recorded(tmp_path):
        train(sharded())
    data = open_run(tmp_path).sources[0].load()

    assert values(data, COUNTER_RECOMPILES) == []
    assert Evidence.COMPILE not in data.header.evidence
