"""F: gradients that are accumulated, and pipelines."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.zoo.entry import Entry, Untold
from tests.zoo.job import Decoder, Job, Moment, Tensor, go_back, loss_of
from tests.zoo.situations import but, rehearsed


def sync_on_last(moment: Moment) -> None:
    """Gradients are reduced in the last micro-batch only."""
    moment.model.set_requires_gradient_sync(moment.last)


def all_reduce_on_last(moment: Moment) -> None:
    """They are reduced over the replicas in the last one only."""
    moment.model.set_requires_all_reduce(moment.last)


def hybrid(replicas: int, shards: int) -> Any:
    """A mesh for hybrid sharding."""

    def mesh() -> DeviceMesh:
        return init_device_mesh(
            "cuda", (replicas, shards), mesh_dim_names=("replicate", "shard")
        )

    return mesh


def stage(deferred: bool) -> Any:
    """A pipeline's stage: all forwards, then all backwards."""

    def iteration(moment: Moment) -> None:
        job, model = moment.job, moment.model
        losses = []
        for moment.micro_batch in range(job.micro_batches):
            losses.append(loss_of(moment))
        for moment.micro_batch, loss in enumerate(losses):
            model.set_is_last_backward(moment.last)
            model.set_reshard_after_backward(moment.last)
            model.set_requires_gradient_sync(moment.last or not deferred)
            go_back(loss)
        moment.optimizer.step()
        moment.optimizer.zero_grad()

    return iteration


class Late(Decoder):
    """A part of it runs in the last micro-batch only."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.extra = nn.Linear(job.width, job.width, bias=False)
        self.every = False
        self.wanted = False

    def hidden(self, tokens: Tensor) -> Tensor:
        """With it or without it."""
        x = super().hidden(tokens)
        if self.wanted or self.every:
            x = x + self.extra(x)
        return x


def last_wants_it(moment: Moment) -> None:
    """Reduced, and used in full, in the last micro-batch."""
    moment.model.wanted = moment.last
    sync_on_last(moment)


def used_each_time(model: Any) -> None:
    """The cure: every parameter takes part in every micro-batch."""
    model.every = True


def keep_outputs(moment: Moment) -> None:
    """Losses are kept for a log, with all that they were computed from."""
    tokens = moment.tokens()
    logits = moment.model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    go_back(loss)
    moment.kept.append(logits)


def keep_detached(moment: Moment) -> None:
    """A number each is enough."""
    tokens = moment.tokens()
    logits = moment.model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    go_back(loss)
    moment.kept.append(loss.detach())


def forget(moment: Moment) -> None:
    """The log is written."""
    moment.kept.clear()


FULL_WIRE = "64GB/s@15us"
"""Carries the gathers beside backward, or the reductions, but not both."""

EACH = rehearsed(wire=FULL_WIRE, micro_batches=4)
NODES = rehearsed(
    world=16,
    micro_batches=8,
    batch=8,
    blocks=12,
    wire="intra=nvlink4,inter=64GB/s@30us",
)
REPLICAS = rehearsed(
    world=16,
    mesh=hybrid(2, 8),
    wire="shard=nvlink4,replicate=6GB/s@30us",
    micro_batches=8,
)
STAGE = rehearsed(wire="90GB/s@15us", micro_batches=4, iteration=stage(deferred=False))
TIGHT = rehearsed(micro_batches=4, memory_gib=3.0, before=sync_on_last)
GROWING = rehearsed(
    micro_batches=8, run=keep_outputs, after=forget, vocabulary=16384, memory_gib=4.0
)
UNUSED = rehearsed(build=Late, micro_batches=2, before=last_wants_it)

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="F01",
        why="a reduce-scatter for each micro-batch: 35 % slower with four of them",
        fault=EACH,
        cure=but(EACH, before=sync_on_last),
        codes=("FD108",),
        units=("layers.3",),
    ),
    Entry(
        number="F02",
        why="reductions that hide well are best left in each micro-batch",
        fault=rehearsed(micro_batches=4),
    ),
    Entry(
        number="F03",
        why="hybrid sharding: replicas all-reduce in each micro-batch",
        fault=REPLICAS,
        cure=but(REPLICAS, before=all_reduce_on_last),
        codes=("FD108",),
        units=("layers.3",),
    ),
    Entry(
        number="F04",
        why="gradients kept whole until the last micro-batch run out of memory",
        fault=TIGHT,
        cure=but(TIGHT, before=Job().before),
        codes=("FD302", "FD408"),
    ),
    Entry(
        number="F05",
        why="over several nodes each micro-batch's reduction is slow",
        fault=NODES,
        cure=but(NODES, before=sync_on_last),
        codes=("FD108",),
        units=("layers.3",),
        still={"FD501": "one mesh over two nodes; replicas were not tried"},
    ),
    Entry(
        number="F06",
        why="a stage's reductions stop the backwards of others",
        fault=STAGE,
        cure=but(STAGE, iteration=stage(deferred=True)),
        codes=("FD108", "FD102"),
        units=("layers.3",),
    ),
    Untold(
        number="F07",
        why="1 % of a pipeline of many stages: below every threshold, and a rehearsal "
        "has one stage",
    ),
    Entry(
        number="F08",
        why="a parameter that is first used in the reduced micro-batch: two dtypes in "
        "one reduction",
        fault=but(UNUSED, raises="AssertionError"),
        cure=but(UNUSED, settle=used_each_time),
        codes=("FD408",),
    ),
    Entry(
        number="F09",
        why="outputs kept their graphs: memory climbs with each micro-batch",
        fault=GROWING,
        cure=but(GROWING, run=keep_detached),
        codes=("FD302", "FD408"),
    ),
]
