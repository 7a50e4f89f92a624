"""A real FSDP2 model in one process, what it does, and the same simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from fsdpdoctor.simulate.engine.opcodes import (
    GATHER,
    POST_FORWARD_COMM,
    REDUCE,
    RESHARD,
    USE,
)
from fsdpdoctor.simulate.engine.schedule import program
from fsdpdoctor.simulate.engine.step import MicroBatch, Step
from tests.models import LanguageModel
from tests.simulate.steps import DIM, VOCAB

Event = tuple[str, str, int]

fsdp2: Any = _fsdp_param_group  # its names are private


class Block(nn.Module):
    """Two square matrices, the second one perhaps a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(DIM, DIM, bias=False)
        self.b = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through both."""
        return torch.relu(self.b(self.a(x)))


class Net(LanguageModel):
    """Of the sizes that `steps` has."""

    def __init__(self, layers: int, reentrant: bool | None = None) -> None:
        super().__init__(
            (Block() for _ in range(layers)),
            vocabulary=VOCAB,
            width=DIM,
            norm=True,
            bias=False,
            reentrant=reentrant,
        )


@dataclass
class Log:
    """What FSDP2 did: events in host order, and bytes by unit."""

    events: list[Event] = field(default_factory=list)
    gathered: dict[str, int] = field(default_factory=dict)
    reduced: dict[str, int] = field(default_factory=dict)


def name(group: Any) -> str:
    """Of a unit, as fsdpdoctor prints it."""
    return group._module_fqn or "<root>"


@contextmanager
def logged(monkeypatch: pytest.MonkeyPatch, modules: nn.Module) -> Iterator[Log]:
    """Write down every collective, copy-out and reshard of a model's units."""
    log = Log()
    wrapped_modules: list[Any] = [
        m for m in modules.modules() if isinstance(m, FSDPModule)
    ]
    groups = [
        g for m in wrapped_modules for g in m._get_fsdp_state()._fsdp_param_groups
    ]
    of_param = {id(p): g for g in groups for p in g.fsdp_params}
    gather, copy_out = fsdp2.foreach_all_gather, fsdp2.foreach_all_gather_copy_out
    reduce, to_sharded = fsdp2.foreach_reduce, fsdp2.FSDPParamGroup._to_sharded
    to_small = fsdp2.FSDPParamGroup._to_sharded_post_forward

    def on_gather(params: Any, group: Any, *args: Any) -> Any:
        unit = name(of_param[id(params[0])])
        log.events.append(("gather", unit, group.size()))
        result = gather(params, group, *args)
        log.gathered[unit] = result.all_gather_output.nbytes
        return result

    def on_copy_out(result: Any, params: Any, group: Any) -> Any:
        log.events.append(("use", name(of_param[id(params[0])]), 0))
        return copy_out(result, params, group)

    def on_reduce(params: Any, *args: Any) -> Any:
        unit = name(of_param[id(params[0])])
        log.events.append(("reduce", unit, 0))
        result = reduce(params, *args)
        log.reduced[unit] = result[0].nbytes
        return result

    def on_reshard(call: Callable[[Any], None]) -> Callable[[Any], None]:
        def wrapped(group: Any) -> None:
            if group.is_unsharded:
                log.events.append(("reshard", name(group), 0))
            call(group)

        return wrapped

    monkeypatch.setattr(fsdp2, "foreach_all_gather", on_gather)
    monkeypatch.setattr(fsdp2, "foreach_all_gather_copy_out", on_copy_out)
    monkeypatch.setattr(fsdp2, "foreach_reduce", on_reduce)
    monkeypatch.setattr(fsdp2.FSDPParamGroup, "_to_sharded", on_reshard(to_sharded))
    monkeypatch.setattr(
        fsdp2.FSDPParamGroup, "_to_sharded_post_forward", on_reshard(to_small)
    )
    yield log


def truth(
    monkeypatch: pytest.MonkeyPatch,
    model: nn.Module,
    flags: tuple[MicroBatch, ...] = (MicroBatch(),),
) -> Log:
    """One step of real FSDP2, after one that initialises it lazily."""
    tokens = torch.randint(0, VOCAB, (2, 4))

    def train() -> None:
        root: Any = model
        for f in flags:
            root.set_requires_gradient_sync(f.sync)
            root.set_requires_all_reduce(f.all_reduce)
            root.set_reshard_after_backward(f.reshard_after_backward)
            root.set_is_last_backward(f.is_last_backward)
            model(tokens).sum().backward()
        model.zero_grad()

    train()
    with logged(monkeypatch, model) as log:
        train()
    return log


def simulated(simulated_step: Step) -> Log:
    """The same, as the simulator has it."""
    log, plan = Log(), program(simulated_step)
    shards = simulated_step.mesh.shard
    for op, meta in zip(plan.ops, plan.meta, strict=True):
        unit = simulated_step.units[meta[0]] if meta[0] >= 0 else None
        if unit is None:
            continue
        if op[0] == GATHER:
            small = op[5] == POST_FORWARD_COMM
            size = int(unit.reshard_after_forward) if small else shards
            log.events.append(("gather", unit.fqn, size))
            log.gathered[unit.fqn] = unit.gathered_bytes(shards)
        elif op[0] == USE:
            log.events.append(("use", unit.fqn, 0))
        elif op[0] == RESHARD:
            log.events.append(("reshard", unit.fqn, 0))
        elif op[0] == REDUCE:
            log.events.append(("reduce", unit.fqn, 0))
            log.reduced[unit.fqn] = unit.reduced_bytes(shards)
    return log


def sharded(layers: int = 4, reentrant: bool | None = None, **known: Any) -> Any:
    """A Net, block-wrapped."""
    model = Net(layers, reentrant)
    for block in model.layers:
        fully_shard(block, **known)
    root = {k: v for k, v in known.items() if k != "reshard_after_forward"}
    fully_shard(model, **root)
    return model


def check(real: Log, expected: Log) -> None:
    """The same events in the same order, the same bytes."""
    assert real.events == expected.events
    assert real.gathered == expected.gathered
    assert real.reduced == expected.reduced
