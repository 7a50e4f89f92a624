"""What ranks may have to hold alike is sampled, before the first step and sparsely."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor

from fsdpdoctor.run import open_run
from fsdpdoctor.schema import ReplicaKind, ReplicaSpec
from tests.recorder.rehearsed import recorded


class Net(nn.Module):
    """A unit, a buffer, and a head that is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1, bias=False)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Through both."""
        out: torch.Tensor = self.head(self.body(given)).sum()
        return out


def sampled(folder: Path, steps: int) -> dict[tuple[str, str], ReplicaSpec]:
    """The samples of a short training."""
    with recorded(folder):
        torch.manual_seed(0)
        model: Any = Net()
        fully_shard(model, ignored_params=set(model.head.parameters()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(steps):
            model(torch.ones(2, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
    header = open_run(folder).sources[0].load().header
    return {(str(spec.kind), spec.name): spec for spec in header.replicas}


def test_what_is_sampled_and_when(tmp_path: Path) -> None:
    """Shards, what is outside, buffers, the optimizer; after steps 1, 2, 4 of six."""
    found = sampled(tmp_path / "run", 6)

    assert set(found) == {
        ("shard", "body.weight"),
        ("outside", "head.weight"),
        ("buffer", "scale"),
        ("optimizer", "AdamW group 0: lr"),
        ("optimizer", "AdamW group 0: steps"),
    }
    head = found["outside", "head.weight"]
    assert (head.kind, head.trainable, head.shape) == (
        ReplicaKind.OUTSIDE,
        True,
        (1, 8),
    )
    assert head.steps == (-1, 0, 1, 3)
    assert len(set(head.values)) == 4
    assert len(set(found["buffer", "scale"].values)) == 1
    assert found["optimizer", "AdamW group 0: steps"].values == ("1.0", "2.0", "4.0")
    assert found["optimizer", "AdamW group 0: lr"].values == ("0.1",) * 3


def test_a_model_that_nothing_wraps_is_sampled_whole(tmp_path: Path) -> None:
    """Its script has to keep it alike: from before the first step on."""
    with recorded(tmp_path / "run"):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
    header = open_run(tmp_path / "run").sources[0].load().header
    found = {s.name: s for s in header.replicas if s.kind == ReplicaKind.OUTSIDE}

    assert set(found) == {"body.weight", "body.bias", "head.weight"}
    assert found["head.weight"].steps == (-1, 0, 1)
    assert len(set(found["head.weight"].values)) == 3


def test_a_sample_is_of_the_state_alone(tmp_path: Path) -> None:
    """The same training gives the same samples."""
    one, again = (sampled(tmp_path / name, 2) for name in ("one", "again"))

    assert one == again


def test_what_is_not_in_plain_memory_is_left_out(tmp_path: Path) -> None:
    """A DTensor outside the units, and a buffer whose storage is freed: reading either
    would end the process.
    """
    with recorded(tmp_path):
        model: Any = Net()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        apart = distribute_tensor(torch.ones(8), mesh, [Replicate()])
        model.apart = nn.Parameter(apart)
        freed = torch.ones(4)
        model.register_buffer("freed", freed)
        freed.untyped_storage().resize_(0)
        fully_shard(model, ignored_params={*model.head.parameters(), model.apart})
        model(torch.ones(2, 8)).backward()
        torch.optim.SGD(model.body.parameters()).step()
    header = open_run(tmp_path).sources[0].load().header
    taken = {spec.name for spec in header.replicas if spec.values}

    assert {"body.weight", "head.weight", "scale"} <= taken
    assert taken.isdisjoint({"apart", "freed"})
