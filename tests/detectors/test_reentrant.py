"""What reentrant checkpointing does to units, and that without it all is well."""

from __future__ import annotations

import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.detectors import judge_all
from fsdpdoctor.finding import Finding, Severity
from fsdpdoctor.run import open_run
from tests.recorder.rehearsed import recorded

CURE = "Pass use_reentrant=False to checkpoint()"
CODES = ("FD105", "FD107", "FD303", "FD504")


class Block(nn.Module):
    """Two layers with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both of them."""
        y: torch.Tensor = x + self.two(torch.relu(self.one(x)))
        return y


class Net(nn.Module):
    """An embedding, checkpointed blocks, a head."""

    def __init__(self, *, reentrant: bool, detached: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 16)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 4)
        self.run = partial(checkpoint, use_reentrant=reentrant)
        self.detached = detached

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Each block in a checkpoint of its own."""
        x = self.embed(tokens)
        x = x.detach() if self.detached else x
        for layer in self.layers:
            x = self.run(layer, x)
        y: torch.Tensor = self.head(x)
        return y


def sharded(way: str, *, reentrant: bool) -> Any:
    """The blocks as units; or their parts; or with lists; or on an input without
    gradients.
    """
    model: Any = Net(reentrant=reentrant, detached=way == "detached")
    for layer in model.layers:
        if way == "nested":
            fully_shard(layer.one)
            fully_shard(layer.two)
        fully_shard(layer)
    model.embed.requires_grad_(way != "detached")
    fully_shard(model)
    if way == "lists":
        for one, following in pairwise(model.layers):
            one.set_modules_to_forward_prefetch([following])
    return model


def found(folder: Path, way: str, *, reentrant: bool) -> list[Finding]:
    """What is said of six steps that is of these codes."""
    with recorded(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that no input requires grad
        torch.manual_seed(0)
        model = sharded(way, reentrant=reentrant)
        learning = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learning, lr=1e-3)
        for _ in range(7):
            model(torch.arange(8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [f for f in judge_all(measure(open_run(folder)))[0] if f.code in CODES]


@pytest.mark.parametrize("way", ["plain", "nested", "lists", "detached"])
def test_without_reentrance_nothing_is_wrong(way: str, tmp_path: Path) -> None:
    """The healthy twin of each, whose lists and inputs are the same."""
    assert found(tmp_path / "run", way, reentrant=False) == []


def test_reentrance_alone_is_no_fault(tmp_path: Path) -> None:
    """Each unit is a checkpoint: its order is that of the backwards."""
    assert found(tmp_path / "run", "plain", reentrant=True) == []


def test_lists_run_twice(tmp_path: Path) -> None:
    """Two blocks are gathered again in backward, by the lists of those before them."""
    (finding,) = found(tmp_path / "run", "lists", reentrant=True)

    assert (finding.code, finding.evidence["why"]) == ("FD107", "prefetch")
    assert {*finding.units} == {"layers.1", "layers.2"}
    assert finding.summary.endswith(
        "a reentrant checkpoint runs forward prefetch lists again in backward"
    )
    assert finding.advice[0].text.startswith(CURE)


def test_parts_of_a_checkpoint_are_not_gathered_ahead(tmp_path: Path) -> None:
    """The first part of each block is gathered by its own forward that runs again;
    gloo blocks in it, so that it is information.
    """
    (finding,) = found(tmp_path / "run", "nested", reentrant=True)

    assert finding.code == "FD105"
    assert {*finding.units} == {f"layers.{at}.one" for at in range(3)}
    assert finding.severity == Severity.INFO
    assert "FSDP2's backward prefetch does not know their order" in finding.summary
    assert finding.advice[0].text.startswith(CURE)


def test_nothing_in_it_trains_where_no_input_needs_a_gradient(tmp_path: Path) -> None:
    """All three blocks, whose twelve tensors the optimizer holds: critical. What their
    missing backward makes of the root's prefetch has the same cure.
    """
    findings = found(tmp_path / "run", "detached", reentrant=True)
    by_code = {finding.code: finding for finding in findings}
    stuck = by_code["FD504"]

    assert set(by_code) == {"FD303", "FD504"}
    assert stuck.severity == Severity.CRITICAL
    assert {*stuck.units} == {f"layers.{at}" for at in range(3)}
    assert stuck.summary.endswith(
        "what runs in one gets no gradient where none of its inputs needs one "
        "(layers.0, layers.1, layers.2); 12 tensors of the optimizer had no gradient"
    )
    assert "which has no backward of its own" in by_code["FD303"].summary
    for finding in findings:
        assert [a.text.startswith(CURE) for a in finding.advice] == [True]
