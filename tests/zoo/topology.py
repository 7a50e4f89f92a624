"""H and I: meshes and links; what is sent, and in which dtype."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fsdpdoctor.finding import Severity
from tests.zoo.accumulation import hybrid
from tests.zoo.entry import Entry, Untold
from tests.zoo.job import (
    Block,
    Decoder,
    Job,
    Moment,
    Tensor,
    go_back,
)
from tests.zoo.situations import but, drawn, rehearsed
from tests.zoo.wrapping import adapted

# -- H

NODES = "intra=nvlink4,inter=ib400"


def narrow_base(model: Any) -> None:
    """What is frozen is stored in bfloat16."""
    for p in model.parameters():
        if not p.requires_grad:
            p.data = p.data.to(torch.bfloat16)


def narrow_runs(moment: Moment) -> None:
    """bfloat16 by autocast."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = moment.job.loss(moment)
    go_back(loss)


class CastBlock(Block):
    """Holds float32, computes in bfloat16: the cast is the layer's own."""

    def forward(self, x: Tensor) -> Tensor:
        """Weights are cast where they are used."""
        narrow = torch.bfloat16
        y = nn.functional.linear(self.norm(x).to(narrow), self.up.weight.to(narrow))
        y = nn.functional.linear(torch.relu(y), self.down.weight.to(narrow))
        z: Tensor = x + y
        return z


def cast_late(job: Job) -> nn.Module:
    """Gathered wide, cast afterwards."""
    return Decoder(job, [CastBlock(job.width) for _ in range(job.blocks)])


def amax_each(moment: Moment) -> None:
    """A scale for each weight, each reduced over all ranks."""
    for p in moment.model.parameters():
        if p.dim() == 2:
            dist.all_reduce(torch.ones((), device="cuda"), op=dist.ReduceOp.MAX)


def amax_at_once(moment: Moment) -> None:
    """All of them in one tensor."""
    count = sum(p.dim() == 2 for p in moment.model.parameters())
    dist.all_reduce(torch.ones(count, device="cuda"), op=dist.ReduceOp.MAX)


class Scaled(Block):
    """Each of its products asks all ranks for a scale first."""

    asks = True

    def forward(self, x: Tensor) -> Tensor:
        """Two products, two scales."""
        if self.asks:
            for _ in range(2):
                dist.all_reduce(torch.ones((), device=x.device), op=dist.ReduceOp.MAX)
        return super().forward(x)


class LocallyScaled(Scaled):
    """Its scales are this rank's own."""

    asks = False


def scaled(kind: type[Scaled]) -> Any:
    """A decoder of such layers."""

    def build(job: Job) -> nn.Module:
        return Decoder(job, [kind(job.width) for _ in range(job.blocks)])

    return build


def mixed(model: Any) -> None:
    """Norms in float32 beside weights in bfloat16."""
    for layer in model.layers:
        layer.up.to(torch.bfloat16)
        layer.down.to(torch.bfloat16)


FULL = rehearsed(world=64, wire=NODES, batch=8)
TWO_NODES = rehearsed(world=16, wire="intra=nvlink4,inter=ib200", batch=12)
SMALL_IB = rehearsed(world=16, wire="intra=nvlink4,inter=ib100", batch=16, blocks=12)
FOUR_NODES = rehearsed(world=32, wire=NODES, width=3072, batch=4, length=2048)

ALL_REDUCED_AT_ONCE = """
all_gather          0.11..22......................................
wait                0.............................................
forward             .000011112222.................................
backward_all_gather .........1....0...............................
backward            .............2222.....1111.....0000...........
reduce_scatter      .................22.......11.......00.........
all_reduce          ...................222......111......000......
ar_wait             .................22222....11111....00000......
"""
ALL_REDUCED_BESIDE = """
all_gather          0.11..22......................................
wait                0.............................................
forward             .000011112222.................................
backward_all_gather .........1....0...............................
backward            .............222211110000.....................
reduce_scatter      .................22..11..00...................
all_reduce          ...................222.111.000................
ar_wait             .........................0....................
"""

BASE = rehearsed(
    build=adapted, prepare=narrow_base, micro_batches=4, wire="ib400", blocks=6
)
AUTOCAST = rehearsed(precision=None, run=narrow_runs)

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="H01",
        why="a mesh over all 64 ranks sends every gather between nodes",
        fault=FULL,
        cure=but(FULL, mesh=hybrid(8, 8)),
        codes=("FD501",),
    ),
    Entry(
        number="H02",
        why="two nodes scale worse than replicas of one",
        fault=TWO_NODES,
        cure=but(TWO_NODES, mesh=hybrid(2, 8)),
        codes=("FD501",),
    ),
    Entry(
        number="H03",
        why="well on one node, and slow on two: the links between them",
        fault=SMALL_IB,
        cure=but(SMALL_IB, mesh=hybrid(2, 8), batch=32),
        codes=("FD501",),
    ),
    Entry(
        number="H04",
        why="a mesh of (N, 1) gathers nothing",
        fault=rehearsed(mesh=hybrid(8, 1)),
    ),
    Entry(
        number="H05",
        why="the frozen base is gathered again in each micro-batch",
        fault=BASE,
        cure=but(BASE, mesh=hybrid(8, 1)),
        codes=("FD503",),
        units=("layers.3",),
    ),
    Entry(
        number="H06",
        why="no mesh was given: it is one of all ranks, over four nodes",
        fault=FOUR_NODES,
        cure=but(FOUR_NODES, mesh=hybrid(4, 8)),
        codes=("FD501",),
    ),
    Entry(
        number="H07",
        why="hybrid sharding with one shard is refused: nothing is sharded",
        fault=rehearsed(world=16, mesh=hybrid(16, 1), wire=NODES),
        cure=rehearsed(world=16, mesh=hybrid(2, 8), wire=NODES),
        codes=("FD501",),
        least=Severity.INFO,
    ),
    Entry(
        number="H08",
        why="replicas' all-reduces are waited for one by one",
        fault=drawn(
            ALL_REDUCED_AT_ONCE, ALL_REDUCED_AT_ONCE, device="cuda", clock="cuda"
        ),
        cure=drawn(ALL_REDUCED_BESIDE, ALL_REDUCED_BESIDE, device="cuda", clock="cuda"),
        codes=("FD102",),
        units=("layers.1", "layers.2"),
        fast=True,
    ),
    Untold(
        number="H10",
        why="the job of B01; what it adds is that the gain differs with the nodes",
    ),
    Entry(
        number="I01",
        why="gathers carry the stored dtype, not the one that is computed in",
        fault=rehearsed(build=cast_late, precision=None),
        cure=rehearsed(build=cast_late),
        codes=("FD502",),
        units=("layers.3",),
    ),
    Untold(
        number="I02",
        why="a wish for float8 that was ignored: nothing shows the wish, and there are "
        "no float8 layers here",
    ),
    Entry(
        number="I03",
        why="an all-reduce of one number for each weight before the gathers",
        fault=rehearsed(after=amax_each, blocks=16, width=1024),
        cure=rehearsed(after=amax_at_once, blocks=16, width=1024),
        codes=("FD407",),
    ),
    Entry(
        number="I04",
        why="layers ask for scales that nobody expected",
        fault=rehearsed(build=scaled(Scaled), batch=4),
        cure=rehearsed(build=scaled(LocallyScaled), batch=4),
        codes=("FD407",),
        least=Severity.INFO,  # a layer's own are to be named, not blamed (D26)
    ),
    Untold(
        number="I05",
        why="two runs that differed in more than the sharding: a comparison",
    ),
    Entry(
        number="I06",
        why="one unit holds trainable parameters of two dtypes",
        fault=rehearsed(prepare=mixed, raises="AssertionError"),
        cure=rehearsed(),
        codes=("FD408",),
    ),
    Entry(
        number="I07",
        why="autocast in place of a policy: float32 travels, and is cast afterwards",
        fault=AUTOCAST,
        cure=rehearsed(),
        codes=("FD502",),
        units=("layers.3",),
    ),
    Untold(
        number="I08",
        why="the reduction's dtype was asked for and not handed on: what was asked for "
        "stands nowhere",
    ),
]
