"""Dynamo compiles nothing of ours, and what it compiles whole without us it does so."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fsdpdoctor.recorder import dynamo_skips
from fsdpdoctor.run import open_run
from tests.recorder.rehearsed import recorded, sharded

OURS = str(Path(dynamo_skips.__file__).parent)


def compiled_of_ours() -> list[str]:
    """Functions of the recorder's that dynamo has compiled, or tried to."""
    tracker: Any = importlib.import_module("torch._dynamo.convert_frame").input_codes
    codes = [code for ref in tracker.seen if (code := ref()) is not None]
    return [
        code.co_qualname
        for code in codes
        if code.co_filename.startswith((OURS, "<fsdpdoctor"))
    ]


@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_a_compiled_training_step_is_the_scripts_alone(tmp_path: Path) -> None:
    """Its frames run on after a graph break, and call our hooks."""
    torch._dynamo.reset()
    with recorded(tmp_path):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @torch.compile(backend="eager")
        def step(x: torch.Tensor) -> None:
            loss = model(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(3):
            step(torch.ones(2, 8))
        found = compiled_of_ours()
    torch._dynamo.reset()

    assert found == []
    assert open_run(tmp_path).sources[0].load().header.ended == "done"


def _clip(layer: nn.Module) -> None:
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)


def _total(layer: nn.Module) -> None:
    nn.utils.get_total_norm(p.grad for p in layer.parameters() if p.grad is not None)


def _call(layer: nn.Module) -> None:
    layer(torch.ones(2, 8))


@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize("call", [_clip, _total, _call])
def test_what_is_one_graph_stays_one(
    call: Callable[[nn.Module], None], tmp_path: Path
) -> None:
    """Before the first unit has run, too, while all modules are heard."""
    torch._dynamo.reset()
    with recorded(tmp_path):
        layer = nn.Linear(8, 8)
        layer(torch.ones(2, 8)).sum().backward()
        torch.compile(call, backend="eager", fullgraph=True)(layer)
        torch._dynamo.reset()
        model = sharded()
        model(torch.ones(2, 8)).backward()
        torch.compile(call, backend="eager", fullgraph=True)(layer)
    torch._dynamo.reset()

    assert open_run(tmp_path).sources[0].load().header.ended == "done"


def plain() -> None:
    """A function of this module."""


class Has:
    """What a class can have of functions."""

    def method(self) -> Callable[[], None]:
        """With one inside."""
        return lambda: None

    @staticmethod
    def static() -> None:
        """Not bound."""

    @classmethod
    def of_class(cls) -> None:
        """Bound to it."""

    @property
    def value(self) -> int:
        """Asked for."""
        return 1

    torch_s = torch.ones


def test_all_functions_of_a_module_are_found() -> None:
    """Those of others, which it only names, are theirs."""
    of = dynamo_skips._functions_of
    assert [f.__name__ for f in of(plain, __name__)] == ["plain"]
    assert [f.__name__ for f in of(Has, __name__)] == [
        *("method", "static", "of_class", "value")
    ]
    assert list(of(Path, __name__)) == []
    inner = [c.co_name for c in dynamo_skips._with_inner(Has.method.__code__)]
    assert inner == ["method", "<lambda>"]
