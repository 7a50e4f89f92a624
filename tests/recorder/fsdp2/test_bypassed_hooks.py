"""Methods of sharded modules that ran past FSDP2's hooks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fsdpdoctor.run import open_run
from fsdpdoctor.schema import COUNTER_DIRECT_METHODS
from tests.models import Stack
from tests.recorder.rehearsed import recorded, sharded, train


class Scorer(Stack):
    """Has methods beside `forward`, and a head that only its parent reads."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__([nn.Linear(8, 8), nn.Linear(8, 8)], 8)
        self.tied = tied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Read the weight of a unit from outside, if told to."""
        if self.tied:
            return (x @ self.layers[0].get_parameter("weight")).square().mean()
        return super().forward(x)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        """By way of a method of its own."""
        return self._head(x)

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(x)
        return out


def bypassed(folder: Path) -> dict[str, int]:
    """The counters of that kind, of steps and of what came after the last."""
    data = open_run(folder).sources[0].load()
    named = {
        data.name(int(name)) or "": int(value)
        for step in (*data.steps, data.rest)
        if step is not None
        for name, value in zip(step.counters.name, step.counters.value, strict=True)
    }
    return {n: v for n, v in named.items() if n.startswith(COUNTER_DIRECT_METHODS)}


@pytest.mark.parametrize(
    ("method", "steps", "every"),
    [("score", 0, 1), ("score", 2, 1), ("score", 2, 2), ("forward", 2, 1)],
)
def test_names_the_method_that_was_called(
    method: str, steps: int, every: int, tmp_path: Path
) -> None:
    """The one that the script called, in a recorded step or not, or before any."""

    def script() -> None:
        with recorded(tmp_path, every):
            model = sharded(Scorer())
            train(model, steps)
            getattr(model, method)(torch.ones(2, 8))

    with pytest.raises(RuntimeError, match="mixed"):
        script()

    assert bypassed(tmp_path) == {f"{COUNTER_DIRECT_METHODS}: {method}": 1}
    header = open_run(tmp_path).sources[0].load().header
    assert header.ended.startswith("exception: RuntimeError: ")


def test_a_weight_that_the_parent_reads_is_no_method(tmp_path: Path) -> None:
    """The parent's hooks ran; to register its forward would help nobody."""
    with pytest.raises(RuntimeError, match="mixed"), recorded(tmp_path):
        train(sharded(Scorer(tied=True)))

    assert bypassed(tmp_path) == {}


def test_other_errors_are_no_bypass(tmp_path: Path) -> None:
    """A shape that does not fit, in a method of the same kind."""
    with pytest.raises(RuntimeError, match="shapes"), recorded(tmp_path):
        Scorer().score(torch.ones(2, 3))

    assert bypassed(tmp_path) == {}


class Mute(Exception):
    """It cannot say itself."""

    def __str__(self) -> str:
        raise OSError("no text")


def test_an_error_without_words_is_no_bypass(tmp_path: Path) -> None:
    """It is of the script's own, and loses no step."""
    with pytest.raises(Mute), recorded(tmp_path):
        raise Mute

    assert bypassed(tmp_path) == {}
