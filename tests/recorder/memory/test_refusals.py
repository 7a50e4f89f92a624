"""What is not counted, because counting would change what is trained."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fsdpdoctor
from fsdpdoctor.recorder.memory import memory_step
from fsdpdoctor.recorder.memory.memory_step import MemoryWatch
from fsdpdoctor.recorder.memory.refusals import (
    COMPILED,
    FAST_PATH,
    OWN_MODE,
    tensors_alive,
)
from fsdpdoctor.recorder.memory.storage_mode import StorageMode
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import BUCKETS, Bucket, MemoryStep, RankHeader

_Mode: Any = TorchDispatchMode


class Passing(_Mode):  # type: ignore[misc]
    """A mode of the script's own."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """As it is."""
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    """A layer, and what comes of its output."""

    def __init__(self, then: Any = torch.square) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A number."""
        out: torch.Tensor = self.then(self.layer(x)).mean()
        return out


def test_all_tensors_are_found_beside_a_class_that_has_no_hash() -> None:
    """Objects are told by their types, and a type may be anybody's code, too."""

    class Meta(type):
        def __hash__(cls) -> int:
            raise RuntimeError("nobody asks me")

    with_hash, _ = tensors_alive()
    strange = Meta("Strange", (), {})()
    strange.kept = [torch.ones(3)]
    attention = nn.MultiheadAttention(4, 2).eval()
    without, evaluated = tensors_alive()

    assert not {id(one) for one in with_hash} - {id(one) for one in without}
    assert any(one is strange.kept[0] for one in without)
    assert evaluated
    attention.train()


def train(net: nn.Module, steps: int = 4) -> list[str]:
    """Losses and weights, to the bit."""
    optimizer = torch.optim.Adam(net.parameters())
    data = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) + 0.5
    said = []
    for _ in range(steps):
        loss = net(data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said.append(loss.item().hex())
    return said + [v.hex() for p in net.parameters() for v in p.flatten().tolist()]


def made(then: Any = torch.square) -> Net:
    """The same model each time."""
    torch.manual_seed(0)
    return Net(then)


def header_of(folder: Path) -> RankHeader:
    """What the rank says."""
    return open_run(folder).sources[0].load().header


def memory_of(folder: Path) -> MemoryStep:
    """What it says of memory."""
    memory = header_of(folder).memory
    assert memory is not None
    return memory


def test_a_model_without_fsdp_is_counted(tmp_path: Path) -> None:
    """Its parameters are of no unit: 6 * 7 floats, each with a gradient and the two
    moments and the two steps of Adam.
    """
    with fsdpdoctor.record(tmp_path / "run"):
        train(made())

    memory = memory_of(tmp_path / "run")
    parts = dict(zip(BUCKETS, memory.moments[-1].bytes, strict=True))

    assert memory.refused is None
    assert parts[Bucket.OUTSIDE_PARAMETERS] == 4 * 42
    assert parts[Bucket.OPTIMIZER_STATES] == 4 * 84 + 4 * 2
    assert parts[Bucket.GRADIENTS] == 4 * 42


def test_not_under_a_mode_of_the_scripts(tmp_path: Path) -> None:
    """It would see what ours does."""
    with fsdpdoctor.record(tmp_path / "run"), Passing():
        train(made())

    assert memory_of(tmp_path / "run").refused == OWN_MODE


def test_not_where_code_is_compiled(tmp_path: Path) -> None:
    """Code that waits to be compiled would not run under a mode; it is not tried."""
    compiled = torch.compile(torch.square, backend="eager")
    try:
        with fsdpdoctor.record(tmp_path / "run"):
            train(made())
        del compiled
    finally:
        torch.compiler.reset()

    assert memory_of(tmp_path / "run").refused == COMPILED


def test_not_beside_attention_in_evaluation(tmp_path: Path) -> None:
    """Its fast path looks whether there is a mode."""
    attention = nn.MultiheadAttention(4, 1).eval()
    with fsdpdoctor.record(tmp_path / "run"):
        train(made())
    del attention

    assert memory_of(tmp_path / "run").refused == FAST_PATH


def test_a_derivative_that_would_be_another_ends_it(tmp_path: Path) -> None:
    """`prod` has been seen in forward: the mode is gone before backward, and losses
    and weights are those of an unrecorded training.
    """

    def prod(x: torch.Tensor) -> torch.Tensor:
        return x.prod(dim=1)

    plain = train(made(prod))
    with fsdpdoctor.record(tmp_path / "run"):
        recorded = train(made(prod))

    assert recorded == plain
    refused = memory_of(tmp_path / "run").refused
    assert refused is not None
    assert "derivative of prod" in refused
    assert torch._C._len_torch_dispatch_stack() == 0


def test_an_error_of_ours_ends_the_counting_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, in the record; training and recording go on."""
    plain = train(made())

    def fails(mode: Any, tensor: torch.Tensor) -> int:
        raise KeyError("injected")

    monkeypatch.setattr(StorageMode, "_look_at", fails)
    with fsdpdoctor.record(tmp_path / "run"):
        recorded = train(made())

    header = header_of(tmp_path / "run")
    assert recorded == plain
    assert header.memory is None
    assert header.ended == "done"
    assert [w for w in header.warnings if "injected" in w] == list(header.warnings)
    assert len(header.warnings) == 1
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize("where", ["operator", "end"])
def test_what_a_signal_handler_raises_is_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In our frames it reaches the script all the same, and ends the counting."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError("the script's own")

    def rings(*args: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, late)
    try:
        if where == "operator":
            monkeypatch.setattr(StorageMode, "_look_at", rings)
        else:
            monkeypatch.setattr(memory_step, "_spec_of", rings)
        with (
            pytest.raises(TimeoutError, match="the script's own"),
            fsdpdoctor.record(tmp_path / "run"),
        ):
            train(made())
    finally:
        signal.signal(signal.SIGALRM, before)

    assert header_of(tmp_path / "run").memory is None
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_run_of_one_step_is_not_counted(tmp_path: Path) -> None:
    """Its optimizer has no state before it."""
    with fsdpdoctor.record(tmp_path / "run"):
        train(made(), steps=1)

    assert header_of(tmp_path / "run").memory is None


def test_only_one_step_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second; the others run as they do."""
    begun: list[int] = []
    begin = MemoryWatch._begin

    def noted(watch: MemoryWatch, device: str) -> None:
        begun.append(watch._rec.step)
        begin(watch, device)

    monkeypatch.setattr(MemoryWatch, "_begin", noted)
    with fsdpdoctor.record(tmp_path / "run"):
        train(made(), steps=6)

    assert begun == [1]
    assert memory_of(tmp_path / "run").step == 1
