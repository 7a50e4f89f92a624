"""Sharded modules whose forward never runs, as the record has them."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.recorder.fsdp2.process_groups import Groups
from fsdpdoctor.recorder.fsdp2.sharded_modules import ShardedModules
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.fsdp2.unit_specs import Tree
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import UNKNOWN, IdleParentSpec, ModelSpec, UnitSpec
from tests.recorder.rehearsed import recorded


class Net(nn.Module):
    """Two layers, and a scale of its own."""

    def __init__(self, *, scaled: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        if scaled:
            self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer after the other."""
        for layer in self.layers:
            x = layer(x)
        return x


def trained(
    folder: Path, *, by_parts: bool, scaled: bool = False
) -> tuple[ModelSpec, tuple[UnitSpec, ...]]:
    """What a record says of the model and its units after two steps."""
    with recorded(folder):
        model: Any = Net(scaled=scaled)
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.ones(2, 8)
            y = model.layers[1](model.layers[0](x)) if by_parts else model(x)
            y.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (data,) = open_run(folder).load()
    assert data.header.model is not None
    return data.header.model, data.header.units


@pytest.mark.parametrize("scaled", [False, True])
def test_its_parts_are_roots_in_it(tmp_path: Path, scaled: bool) -> None:
    """They have its names; what it shards itself is neither outside nor stale."""
    model, units = trained(tmp_path, by_parts=True, scaled=scaled)

    assert model.model_class == "Net"
    assert model.idle_parents == (
        IdleParentSpec(fqn="", module_class="Net", params=int(scaled), units=(0, 1)),
    )
    assert [(unit.fqn, unit.is_root) for unit in units] == [
        ("layers.0", True),
        ("layers.1", True),
    ]
    assert model.unmanaged_params == 0
    assert [one.stale for one in model.optimizers] == [0]


def test_a_parent_that_runs_is_none(tmp_path: Path) -> None:
    """Nor is a layer, which is no root then."""
    assert trained(tmp_path, by_parts=False)[0].idle_parents == ()


def test_what_is_left_alone_is_known_by_its_place() -> None:
    """Not by a reference, which would keep torch from swapping what it holds; whoever
    stands in its place later is it.
    """
    model, known = Net(scaled=True), ShardedModules()
    known.add(model, {model.scale, model.layers[0].bias})

    assert weakref.getweakrefs(model.scale) == []
    assert known.ignored_ids() == {id(model.scale), id(model.layers[0].bias)}
    model.scale = nn.Parameter(torch.zeros(8))
    assert known.ignored_ids() == {id(model.scale), id(model.layers[0].bias)}


def test_what_has_not_run_yet_is_not_stale(tmp_path: Path) -> None:
    """One optimizer of a model that runs, of one that runs later, and of a tensor of
    the script's own. What it still holds of a model that was sharded later is.
    """
    with recorded(tmp_path):
        first, later, sharded_later = (Net(scaled=True) for _ in range(3))
        old = list(sharded_later.parameters())
        for model in (first, later, sharded_later):
            fully_shard(model)
        own = nn.Parameter(torch.ones(1))
        params = [*first.parameters(), *later.parameters(), own, *old]
        optimizer = torch.optim.SGD(params, lr=0.1)
        for _ in range(2):
            (first(torch.ones(2, 8)).sum() * own).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (data,) = open_run(tmp_path).load()

    assert data.header.model is not None
    (spec,) = data.header.model.optimizers
    assert (spec.params, spec.stale) == (3 * len(old) + 1, len(old))


@pytest.mark.parametrize("ignored", [False, True])
def test_what_is_sharded_late_is_not_outside(tmp_path: Path, ignored: bool) -> None:
    """An adapter that a sharded model gets, or had left alone, and that has not run."""
    with recorded(tmp_path):
        model: Any = Net(scaled=False)
        if ignored:
            model.adapter = nn.Linear(8, 8)
        alone = set(model.adapter.parameters()) if ignored else None
        fully_shard(model, ignored_params=alone)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for at in range(4):
            if at == 2:
                model.adapter = fully_shard(nn.Linear(8, 8))
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (data,) = open_run(tmp_path).load()

    assert data.header.model is not None
    assert data.header.model.unmanaged_fqns == ()
    assert len(data.header.units) == 1


def test_a_unit_that_went_before_it_was_described_is_said_to_be_gone() -> None:
    """An exception ended the forward in which it was seen first."""

    class Group:
        """What is left of one."""

        device = torch.device("cpu")
        fsdp_params: tuple[Any, ...] = ()

    units = Units(cast(Recording, SimpleNamespace(beat=None)), lambda device: None)
    tree = Tree(units, cast(Groups, None))
    group = Group()
    units.of(group)
    del group

    assert [(spec.fqn, spec.numel) for spec in tree.specs()] == [("(gone)", UNKNOWN)]


def test_a_plain_model_that_ran_before_is_not_outside_of_fsdp(tmp_path: Path) -> None:
    """A trial run of one step, before there is a sharded model."""
    with recorded(tmp_path):
        models: list[Any] = [Net(scaled=True) for _ in range(2)]
        for model, shards in zip(models, (False, True), strict=True):
            if shards:
                fully_shard(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(4 if shards else 1):
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    (data,) = open_run(tmp_path).load()

    assert data.header.model is not None
    assert data.header.model.unmanaged_params == 0
    assert data.header.model.numel == sum(p.numel() for p in models[0].parameters())


class Answering(Net):
    """Has an answer to whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        """A word, where torch has nothing."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return "whatever"


def test_a_module_that_answers_to_any_name_is_asked_for_none(tmp_path: Path) -> None:
    """It is not compiled, nor sharded where it is not, and recorded to the end."""
    with recorded(tmp_path):
        model: Any = Answering(scaled=False)
        model.inner = Answering(scaled=False)
        fully_shard(model, ignored_params=set(model.inner.parameters()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (data,) = open_run(tmp_path).load()

    assert data.header.ended == "done"
    assert data.header.model is not None
    assert data.header.model.model_class == "Answering"
    assert data.header.model.unmanaged_params == 4
    (unit,) = data.header.units
    assert (unit.compiled, unit.module_class) == (None, "Answering")
