"""What DTensors were gathered into, as long as it is alive."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from fsdpdoctor.recorder.storage.gathered_tensors import LEAST_BYTES, GatheredTensors
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import COUNTER_GATHERED
from tests.models import mlp
from tests.recorder.rehearsed import recorded, sharded

WIDTH = 128


def test_a_tensor_counts_as_long_as_somebody_holds_it() -> None:
    """A view holds it, too; a small one never counts."""
    gathered, whole = GatheredTensors(), torch.zeros(64, 128)
    gathered.add([whole, torch.zeros(4)], "train.py:9 (full_tensor)")
    view = whole[:2]
    del whole

    assert gathered.by_place() == {"train.py:9 (full_tensor)": 64 * 128 * 4}
    del view
    assert gathered.size() == 0


def trained(folder: Path, *, keep: bool) -> RankData:
    """Whose weights are gathered after each step, and kept or not."""
    with recorded(folder):
        model: Any = sharded(mlp(2, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept: dict[str, torch.Tensor] = {}
        for _ in range(3):
            model(torch.ones(2, WIDTH)).backward()
            for name, param in model.named_parameters():
                assert isinstance(param, DTensor)
                whole = param.full_tensor()
                if keep:
                    kept[name] = whole
            del whole
            optimizer.step()
            optimizer.zero_grad()
    (data,) = open_run(folder).load()
    return data


def alive(data: RankData) -> list[int]:
    """Bytes at the end of each step."""
    return [
        sum(
            int(value)
            for name, value in zip(step.counters.name, step.counters.value, strict=True)
            if data.names[int(name)].startswith(COUNTER_GATHERED)
        )
        for step in data.steps
    ]


def test_what_a_script_keeps_is_alive_as_steps_end(tmp_path: Path) -> None:
    """The matrices of its layers; and in the samples of the next step's forward."""
    data = trained(tmp_path / "kept", keep=True)
    whole = sum(
        4 * prod(param.shape)
        for unit in data.header.units
        for param in unit.params
        if 4 * prod(param.shape) >= LEAST_BYTES
    )

    assert whole > 0
    assert alive(data) == [whole] * 3
    assert int(data.steps[1].memory.unsharded_bytes.min()) >= whole
    names = [n for n in data.names if n.startswith(COUNTER_GATHERED)]
    assert len(names) == 1
    assert names[0].endswith("(full_tensor)")
    assert "test_gathered_tensors.py:" in names[0]


def test_what_is_dropped_is_not(tmp_path: Path) -> None:
    """Read and forgotten before the step ends."""
    assert alive(trained(tmp_path / "dropped", keep=False)) == [0] * 3
