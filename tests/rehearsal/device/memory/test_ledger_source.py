"""The memory step of a device that is not there, beside its own allocator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.optim.optimizer import register_optimizer_step_post_hook

from fsdpdoctor.run import open_run
from fsdpdoctor.schema import Bucket
from tests.rig.virtual_device import Job, record

SMALL = {"blocks": 3, "width": 64, "batch": 2, "length": 32, "vocabulary": 4096}
JOBS: dict[str, dict[str, Any]] = {
    "reshard": {},
    "keep": {"reshard": False},
    "int": {"reshard": 4},
    "prefetch": {"forward_prefetch": 2},
    "accumulation": {"micro_batches": 2, "sync_last": True},
}


@pytest.mark.parametrize("name", JOBS)
def test_peak_and_moments_are_the_allocators(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak is what `torch.cuda.max_memory_allocated` says of the run, its parts
    add up to it, and each unit's forward begins with as much as is allocated then.
    """
    allocated: list[int] = []
    original = FSDPParamGroup.pre_forward

    def pre_forward(group: Any, *args: Any) -> Any:
        result = original(group, *args)
        allocated.append(torch.cuda.memory_allocated())
        return result

    monkeypatch.setattr(FSDPParamGroup, "pre_forward", pre_forward)
    peaks: list[int] = []

    def change(model: Any, job: Job) -> None:
        def stepped(*_: Any) -> None:
            peaks.append(torch.cuda.max_memory_allocated())

        handles.append(register_optimizer_step_post_hook(stepped))

    handles: list[Any] = []
    job = Job(steps=2, change=change, **{**SMALL, **JOBS[name]})
    try:
        record(job, tmp_path / "run")
    finally:
        for handle in handles:
            handle.remove()
    memory = open_run(tmp_path / "run").sources[0].load().header.memory
    assert memory is not None
    parts: Counter[str] = Counter()
    for share in memory.peak:
        parts[share.bucket] += share.bytes
    begun = [sum(m.bytes) for m in memory.moments if m.event == "forward"]

    assert memory.slowed is False
    assert memory.peak_bytes == peaks[-1] == sum(parts.values())
    assert begun == allocated[len(allocated) // 2 :]
    assert (Bucket.POST_FORWARD_SHARDS in parts) == (name == "int")
    assert (Bucket.UNSHARDED_GRADIENTS in parts) == (name == "accumulation")
