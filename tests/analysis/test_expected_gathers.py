"""All-gathers that a policy asks for, where the script gathers by hand as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.report import diagnose
from fsdpdoctor.report.value import PhaseCounts
from fsdpdoctor.run import open_run
from tests.recorder.rehearsed import recorded

Step = Callable[[Any, torch.Tensor], torch.Tensor]
"""A forward, by the model and its input."""

ONCE = PhaseCounts(forward=1.0, backward=1.0)


class Net(nn.Module):
    """Two layers that are units; the second perhaps gathered before the first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.ahead = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer after the other."""
        second: Any = self.layers[1]
        if self.ahead:
            second.unshard(async_op=True)
        return second(self.layers[0](x))  # type: ignore[no-any-return]


def plain(model: Any, x: torch.Tensor) -> torch.Tensor:
    """FSDP2 gathers each unit when it needs it."""
    result: torch.Tensor = model(x)
    return result


def before(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The second unit's gather is issued first of all, and nobody waits for it."""
    model.layers[1].unshard(async_op=True)
    return plain(model, x)


def waited_for(model: Any, x: torch.Tensor) -> torch.Tensor:
    """It is there before the root's forward begins."""
    model.layers[1].unshard(async_op=True).wait()
    return plain(model, x)


def within(model: Any, x: torch.Tensor) -> torch.Tensor:
    """It is issued by the root's own forward."""
    model.ahead = True
    return plain(model, x)


def for_backward(model: Any, x: torch.Tensor) -> torch.Tensor:
    """It is there before backward begins, after FSDP2's own for forward."""
    out = plain(model, x)
    model.layers[1].unshard()
    return out


@pytest.mark.parametrize("forward", [plain, before, waited_for, within, for_backward])
def test_what_the_script_gathers_fsdp2_does_not(forward: Step, tmp_path: Path) -> None:
    """One all-gather for forward and one for backward, whoever issues it."""
    with recorded(tmp_path / "run"):
        model: Any = Net()
        for layer in model.layers:
            fully_shard(layer, reshard_after_forward=True)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            loss: Any = forward(model, torch.ones(2, 8)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    report = diagnose(open_run(tmp_path / "run"))

    rows = {u.unit: (u.all_gathers, u.expected_all_gathers) for u in report.units}
    assert rows == {f"layers.{at}": (ONCE, ONCE) for at in range(2)}
    assert not [f for f in report.findings if f.code in ("FD107", "FD303")]
