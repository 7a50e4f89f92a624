"""Graph breaks and recompilations, where something was compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fsdpdoctor.recorder.host.dynamo_counters import NOTHING_COMPILED, CompileCounts
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import (
    COUNTER_COMPILE_NS,
    COUNTER_GRAPH_BREAKS,
    COUNTER_RECOMPILES,
    GRAPH_BREAK_REASON,
    RECOMPILE_REASON,
    Evidence,
)
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


def reasons(data: RankData, start: str) -> set[str]:
    """The reasons among the counters."""
    return {name for name in data.names if name.startswith(start)}


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
    before, same, after = values(data, COUNTER_COMPILE_NS)
    assert 0 < before == same < after
    (reason,) = reasons(data, RECOMPILE_REASON)
    assert "size mismatch at index 0" in reason
    assert "expected ..., actual ..." in reason


class Reads(nn.Module):
    """Looks at a number in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same, unless it blew up."""
        return x if x.sum().item() > 1e9 else x + 1


@pytest.mark.filterwarnings("ignore")
def test_a_graph_break_has_dynamos_reason(tmp_path: Path) -> None:
    """One, of the block that reads, and nothing of the user's source."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = mlp(2, 8)
    model.layers.append(Reads())
    model.layers[2].compile(backend="eager")
    with recorded(tmp_path):
        sharded(model)
        train(model)
    data = open_run(tmp_path).sources[0].load()

    assert set(values(data, COUNTER_GRAPH_BREAKS)) == {1}
    (reason,) = reasons(data, GRAPH_BREAK_REASON)
    assert "item" in reason


def test_is_silent_where_nothing_was_compiled(tmp_path: Path) -> None:
    """Zero breaks of a compiler that nobody used would be a claim."""
    torch._dynamo.reset()
    with recorded(tmp_path):
        train(sharded())
    data = open_run(tmp_path).sources[0].load()

    assert values(data, COUNTER_RECOMPILES) == []
    assert Evidence.COMPILE not in data.header.evidence


def test_what_was_compiled_before_is_left_out() -> None:
    """A process may have compiled other things; a reset of dynamo's begins anew."""
    before = CompileCounts(graph_breaks=3, recompiles=2, compile_ns=500)
    after = CompileCounts(graph_breaks=4, recompiles=2, compile_ns=800)
    reset = CompileCounts(graph_breaks=1, recompiles=0, compile_ns=900)

    assert after.since(before) == CompileCounts(1, 0, 300)
    assert reset.since(before) == reset
    assert after.since(NOTHING_COMPILED) == after
