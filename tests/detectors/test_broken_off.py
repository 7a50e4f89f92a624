"""Forwards that an exception ends, and a script that catches it and goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.detectors.hooks_not_run import hooks_not_run
from fsdpdoctor.finding import Finding, Severity
from fsdpdoctor.report import diagnose
from fsdpdoctor.report.value import Report
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import COUNTER_LEFT_OPEN
from fsdpdoctor.testing import draw, measured
from tests.detectors.answers import codes, only
from tests.recorder.rehearsed import job, recorded


class Layer(nn.Linear):
    """One that may raise amid its forward."""

    raises = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Perhaps nothing."""
        if self.raises:
            raise MemoryError
        return super().forward(x)


class Net(nn.Module):
    """Three layers, and a scale of the root's own."""

    def __init__(self, *, scaled: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(8, 8) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(8)) if scaled else None
        self.raises = self.again = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer after the other; perhaps it calls itself in between."""
        for layer in self.layers[:2]:
            x = layer(x)
        if self.again:
            self.again = False
            x = self(x)
        if self.raises:
            raise MemoryError
        x = self.layers[2](x)
        return x if self.scale is None else x * self.scale


def net(*, scaled: bool = False) -> Any:
    """Each layer a unit."""
    torch.manual_seed(0)
    model = Net(scaled=scaled)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def trained(
    model: Any,
    before: Callable[[int], None],
    caught: Callable[[], None] = lambda: None,
    forward: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
) -> None:
    """Eight iterations; one whose forward raises is given up."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for at in range(8):
        before(at)
        x = torch.ones(2, 8)
        try:
            loss: Any = (model(x) if forward is None else forward(model, x)).sum()
        except MemoryError:
            optimizer.zero_grad()
            caught()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def report_of(folder: Path, script: Callable[[], None]) -> Report:
    """What is said of it."""
    with recorded(folder):
        script()
    return diagnose(open_run(folder))


def between_units() -> None:
    """The root's own code raises."""
    model = net()
    trained(model, lambda at: setattr(model, "raises", at in (3, 5)))


def below_a_root_with_parameters() -> None:
    """The same, and the root is a unit."""
    model = net(scaled=True)
    trained(model, lambda at: setattr(model, "raises", at in (3, 5)))


def in_a_unit() -> None:
    """A unit's forward raises."""
    model = net()
    trained(model, lambda at: setattr(model.layers[1], "raises", at in (3, 5)))


def in_a_unit_below_such_a_root() -> None:
    """The same, and the root is a unit."""
    model = net(scaled=True)
    trained(model, lambda at: setattr(model.layers[1], "raises", at in (3, 5)))


def told() -> None:
    """FSDP2 is told each time."""
    model = net(scaled=True)
    trained(
        model,
        lambda at: setattr(model.layers[1], "raises", at in (3, 5)),
        model.reset_iter_state,
    )


def calls_itself() -> None:
    """Nothing raises: the root's forward runs within its own."""
    model = net()
    trained(model, lambda at: setattr(model, "again", at in (3, 5)))


BROKEN = [
    between_units,
    below_a_root_with_parameters,
    in_a_unit,
    in_a_unit_below_such_a_root,
]


@pytest.mark.parametrize("script", BROKEN)
def test_forwards_that_broke_off_are_counted(
    script: Callable[[], None], tmp_path: Path
) -> None:
    """Two of them; nothing in them is a loop, and each step has its backward's."""
    report = report_of(tmp_path / "run", script)
    (finding,) = [f for f in report.findings if f.code == "FD504"]

    assert finding.severity == "warning"
    assert finding.summary.startswith("2 forwards were broken off by an exception")
    assert finding.evidence == {"forwards": 2}
    assert not [f for f in report.findings if f.code in ("FD105", "FD107", "FD108")]


@pytest.mark.parametrize("script", [told, calls_itself])
def test_nothing_is_said_where_fsdp2_knows(
    script: Callable[[], None], tmp_path: Path
) -> None:
    """It was told; or a forward within another has not ended it."""
    report = report_of(tmp_path / "run", script)

    assert not [f for f in report.findings if f.code == "FD504"]


def left_open(*available: str) -> Finding:
    """What is said of six such forwards, by what this torch has."""
    run = draw("forward 0", counters={COUNTER_LEFT_OPEN: 1})
    return only(hooks_not_run, measured(run, available=available))


CURES = {
    "none": "",
    "newer": codes(left_open("reset_iter_state"))[0],
    "older": codes(left_open("unshard"))[0],
}


@pytest.mark.parametrize("cure", CURES)
def test_what_is_said_is_so(cure: str) -> None:
    """A unit whose forward raised computes with the weights from before the step, and
    not where what is advised has run.
    """
    with job():
        model = net()
        layer: Any = model.layers[1]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 8)).sum().backward()
        seen: list[torch.Tensor] = []
        layer.register_forward_pre_hook(
            lambda module, _: seen.append(module.bias.detach().clone())
        )
        layer.raises = True
        with pytest.raises(MemoryError):
            model(torch.ones(2, 8))
        layer.raises = False
        kept = Namespace(zero_grad=lambda **_: None)  # there would be nothing to see
        exec(CURES[cure], {"model": model, "optimizer": kept})
        optimizer.step()
        model(torch.ones(2, 8))

    assert torch.equal(seen[0], seen[1]) is (cure == "none")


def test_what_to_do_is_what_this_torch_has() -> None:
    """A method of its own, or what that does for the weights."""
    newer, older = left_open("reset_iter_state"), left_open("unshard")

    assert newer.severity == Severity.WARNING
    assert newer.evidence == {"forwards": 6}
    assert codes(newer)[0].endswith("model.reset_iter_state()")
    assert codes(older)[0].endswith("        module.reshard()")
