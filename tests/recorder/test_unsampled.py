"""Steps that are not recorded: what happens in them must not end the recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.recorder.storage.sampling import EveryStep
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from fsdpdoctor.run import open_run
from tests.models import mlp
from tests.networks import uniform
from tests.rig.fake import one_thread, recording_to


def test_a_unit_may_be_gathered_before_the_first_forward(tmp_path: Path) -> None:
    """By hand, in a step that is not recorded: nobody knows the unit yet."""
    job = Rehearsal(wire=uniform(1e12, 0), world_size=2)
    recording = recording_to(tmp_path, EveryStep(first=1))
    with one_thread(), rehearsing(job), recording:
        dist.init_process_group("gloo")
        model: Any = mlp(2, 8)
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model.layers[0].unshard()
            model(torch.ones(2, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
    data = open_run(tmp_path).sources[0].load()

    assert data.header.ended == "done"
    assert [step.step for step in data.steps if step.complete] == [1, 2]
