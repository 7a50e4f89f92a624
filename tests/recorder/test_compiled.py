"""Compiled modules: the recording stays on, and says what was compiled with what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import ROOT
from tests.models import Stack, mlp
from tests.networks import uniform
from tests.rig.fake import one_thread, recording_to


def sharded(model: Stack) -> Any:
    """Each block a unit, the head in the root."""
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def plain() -> Any:
    """Nothing is compiled."""
    return sharded(mlp(2, 8))


def blocks_first() -> Any:
    """As is advised: each block compiled, then sharded."""
    model = mlp(2, 8)
    for layer in model.layers:
        layer.compile(backend="eager")
    return sharded(model)


def wrapped() -> Any:
    """Sharded, then compiled as a whole."""
    return torch.compile(plain(), backend="eager")


def in_place() -> Any:
    """The same, without a wrapper around the model."""
    model = plain()
    model.compile(backend="eager")
    return model


def one_unit() -> Any:
    """The only unit, compiled as a whole: no other unit's hooks are in it."""
    model: Any = fully_shard(mlp(2, 8))
    return torch.compile(model, backend="eager")


def recorded(make: Callable[[], Any], folder: Path) -> RankData:
    """Two steps as rank 0 of 2."""
    torch._dynamo.reset()
    job = Rehearsal(wire=uniform(1e12, 0), world_size=2)
    with one_thread(), rehearsing(job), recording_to(folder):
        dist.init_process_group("gloo")
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return open_run(folder).sources[0].load()


@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize(
    ("make", "root", "block"),
    [
        (plain, None, None),
        (blocks_first, "inside", "inside"),
        (wrapped, "around", "around"),
        (in_place, "around", "around"),
    ],
)
def test_says_what_was_compiled_with_what(
    make: Callable[[], Any], root: str | None, block: str | None, tmp_path: Path
) -> None:
    """Both steps are there, and units keep the names that they have uncompiled."""
    data = recorded(make, tmp_path)

    assert (data.header.ended, data.header.warnings) == ("done", ())
    assert [step.step for step in data.steps if step.complete] == [0, 1]
    assert {unit.fqn: unit.compiled for unit in data.header.units} == {
        ROOT: root,
        "layers.0": block,
        "layers.1": block,
    }
    assert data.header.model is not None
    assert [b.container for b in data.header.model.blocks] == ["layers"]


@pytest.mark.filterwarnings("ignore")
def test_one_unit_may_be_compiled_as_a_whole(tmp_path: Path) -> None:
    """What its hooks interrupt would be interrupted anyway."""
    data = recorded(one_unit, tmp_path)

    assert [unit.compiled for unit in data.header.units] == [None]
