"""Checkpoints load onto the device that is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rig.virtual_device import Log

cuda: Any = torch.cuda
SIZE = 512 * 256 * 4


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two names of one tensor, a part of it, and a tensor of its own."""
    weight = torch.zeros(512, 256)
    path = tmp_path / "model.pt"
    content = {"head": weight, "tied": weight, "row": weight[3], "step": torch.ones(2)}
    torch.save(content, path)
    return path


def to_the_device(storage: Any, location: str) -> Any:
    """As scripts write it."""
    return storage.cuda(0)


@pytest.mark.parametrize(
    "where", ["cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda:0"}, to_the_device]
)
def test_tensors_are_where_the_script_wants_them(
    where: str | torch.device | dict[str, str] | Callable[..., Any],
    saved: Path,
    log: Log,
) -> None:
    """Each has its memory there once, however many names it has."""
    before = cuda.memory_allocated()
    found = torch.load(saved, map_location=where)
    assert {(name, str(t.device), tuple(t.shape)) for name, t in found.items()} == {
        ("head", "cuda:0", (512, 256)),
        ("tied", "cuda:0", (512, 256)),
        ("row", "cuda:0", (256,)),
        ("step", "cuda:0", (2,)),
    }
    assert found["head"].stride() == (256, 1)
    assert cuda.memory_allocated() - before == SIZE + 1024 + 512


def test_tensors_for_the_host_stay_there(saved: Path, log: Log) -> None:
    """With their numbers."""
    before = cuda.memory_allocated()
    found = torch.load(saved, map_location="cpu")
    assert (str(found["step"].device), found["step"].tolist()) == ("cpu", [1.0, 1.0])
    assert cuda.memory_allocated() == before


def test_what_the_device_saved_loads_again(tmp_path: Path, log: Log) -> None:
    """Shapes, as everything of the device's."""
    torch.save({"w": torch.ones(8, 4, device="cuda")}, tmp_path / "w.pt")
    found = torch.load(tmp_path / "w.pt", map_location="cuda")
    assert (str(found["w"].device), tuple(found["w"].shape)) == ("cuda:0", (8, 4))
