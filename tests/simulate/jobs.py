"""Jobs on a modelled wire, changes to them, and what real FSDP2 makes of both.

Compute is sleeps and time is virtual: nothing depends on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import fsdpdoctor
from fsdpdoctor.analysis.rank_measures import measure_rank
from fsdpdoctor.analysis.rank_tables import Windows
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.sharding_code import INSERTS, REPLACES
from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder import session  # noqa: F401 - before time is virtual
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.plans.forecast import code_of
from fsdpdoctor.simulate.plans.predict import Replay, predict, replay
from tests.models import Stack
from tests.networks import uniform
from tests.rig import fake
from tests.rig.fake import Job
from tests.rig.virtual import virtual_time

WIRES = (10e6, 30e6, 100e6)
"""Gathers that take much longer than a block's forward, about as long, much less."""

APART = 0.03
"""Steps that differ by less need not be ranked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A plan, and what makes the same of the job."""

    plan: Plan
    job: Mapping[str, Any] = field(default_factory=dict)
    pasted: bool = False  # the plan's own code shards the model, instead of the rig


class Embedded(Stack):
    """A stack whose root holds something before its blocks as well."""

    def __init__(self, blocks: list[nn.Module], width: int) -> None:
        super().__init__(blocks, width)
        self.embed = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through the embedding, then as ever."""
        return super().forward(self.embed(x))


def prefetch(depth: int) -> Change:
    """Asynchronous unshards, lists between the blocks in both directions."""
    # The rig's lists begin at the first block: the root prefetches nothing.
    names = {f"layers.{i}": depth for i in range(6)}
    return Change(
        plan=Plan(
            forward_prefetch_of=names,
            backward_prefetch_of=names,
            unshard_async_op=True,
        ),
        job={"depth": depth, "unshard_async_op": True},
    )


CHANGES: dict[str, Change] = {
    "none": Change(plan=Plan(), job={}),
    "async": Change(plan=Plan(unshard_async_op=True), job={"unshard_async_op": True}),
    "prefetch 1": prefetch(1),
    "prefetch 2": prefetch(2),
    "prefetch 4": prefetch(4),
    "reshard False": Change(
        plan=Plan(reshard_after_forward={"*": False}),
        job={"reshard_after_forward": False},
    ),
    "reshard 2": Change(
        plan=Plan(reshard_after_forward={"*": 2}), job={"reshard_after_forward": 2}
    ),
    **{
        name: Change(plan=plan, pasted=True)
        for name, plan in {
            "merge 2": Plan(merge=2),
            "merge 4": Plan(merge=4),
            "split root": Plan(split_root=True),
            "split, merge 2": Plan(split_root=True, merge=2),
            "all prefetch": Plan(
                forward_prefetch=1, backward_prefetch=1, unshard_async_op=True
            ),
            "split, prefetch": Plan(
                split_root=True, forward_prefetch=1, unshard_async_op=True
            ),
        }.items()
    },
    "HSDP": Change(plan=Plan(replicate=2), job={"replicas": 2}),
    "world 64": Change(plan=Plan(world_size=64), job={"world_size": 64}),
    "accumulate": Change(
        plan=Plan(micro_batches=3, accumulation="last"),
        job={"micro_batches": 3, "reduce_each": False},
    ),
}


def job(wire: float) -> Job:
    """Six blocks of 64 KiB, 4 ms forward and 8 ms backward."""
    return Job(
        wire=uniform(wire, latency_ns=MS // 5),
        blocks=6,
        width=128,
        forward_ns=4 * MS,
        backward_ns=8 * MS,
        steps=6,
    )


rig_shard = fake.shard


def recorded(job: Job, pasted: str = "") -> RankData:
    """Train in virtual time, recorded. Pasted code shards the model, or adds to it."""

    def shard(model: Stack, job: Job) -> Any:
        model = Embedded(list(model.layers), job.width)
        if REPLACES in pasted:
            exec(pasted, {"model": model})
            return model
        if INSERTS in pasted:
            for layer in model.layers:
                fully_shard(layer)
            exec(pasted, {"model": model})
            return fully_shard(model)
        rig_shard(model, job)
        exec(pasted, {"model": model})
        return model

    patch = pytest.MonkeyPatch()
    patch.setattr(fake, "shard", shard)
    try:
        with TemporaryDirectory() as folder, virtual_time():
            fake.train_fake(job, recording=lambda: fsdpdoctor.record(folder, every=1))
            (run,) = [path.parent for path in Path(folder).rglob("run.json")]
            return open_run(run).sources[0].load()
    finally:
        patch.undo()


@cache
def base(wire: float) -> Replay:
    """The job as it was, replayed."""
    return replay(calibrate(recorded(job(wire))))


@cache
def measured(wire: float, name: str) -> tuple[int, int]:
    """The median step after a change, and the most that was gathered at once."""
    change = CHANGES[name]
    lines = ""
    if change.pasted:
        lines = code_of(base(wire), predict(base(wire), change.plan))
    ranks = measure_rank(recorded(replace(job(wire), **change.job), lines))
    steps = ranks.steps.rows(ranks.judged)
    peak_bytes = max(most_unsharded(ranks.windows, step) for step in steps.step)
    return int(np.median(steps.duration_ns)), peak_bytes


def most_unsharded(windows: Windows, step: int) -> int:
    """The most bytes that were gathered at once in a step."""
    mine = windows.rows(windows.step == step)
    size = np.maximum(mine.bytes, 0)
    time = np.concatenate((mine.start_ns, mine.end_ns))
    change = np.concatenate((size, -size))
    # At one and the same time the end comes first: a window is half-open.
    live = np.cumsum(change[np.lexsort((change > 0, time))])
    return int(live.max(initial=0))
