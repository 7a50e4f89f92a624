"""G: collectives that contend with each other, and buffers that add up."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from fsdpdoctor.finding import Severity
from tests.zoo.entry import Entry, Untold
from tests.zoo.job import Block, Decoder, Job, Moment, Tensor
from tests.zoo.situations import but, rehearsed


def apart(model: Any) -> None:
    """A communicator of their own for reduce-scatters."""
    model.set_separate_reduce_scatter_group()


def two_buffers(model: Any) -> None:
    """Two reductions may be under way, beside the gathers."""
    apart(model)
    model.set_reduce_scatter_max_input_buffers(2)


def uneven(job: Job) -> nn.Module:
    """Large blocks and small ones, in turns."""
    sizes = [4 * job.width, job.width // 2] * (job.blocks // 2)
    return Decoder(job, [Block(job.width, hidden) for hidden in sizes])


class Holding(Block):
    """Each backward leaves a buffer behind, as a release did that drained none."""

    held: ClassVar[list[Tensor]] = []
    size = 256 << 20

    def forward(self, x: Tensor) -> Tensor:
        """As ever."""
        y: Any = super().forward(x)
        if y.requires_grad:
            y.register_hook(self.hold)
        z: Tensor = y
        return z

    def hold(self, gradient: Tensor) -> None:
        """What a reduction was given."""
        held = torch.empty(self.size, dtype=torch.uint8, device=gradient.device)
        self.held.append(held)


class Draining(Holding):
    """Keeps the latest one."""

    def hold(self, gradient: Tensor) -> None:
        """In place of the one before."""
        self.held.clear()
        super().hold(gradient)


def holding(job: Job) -> nn.Module:
    """Buffers add up over the layers."""
    return Decoder(job, [Holding(job.width) for _ in range(job.blocks)])


def draining(job: Job) -> nn.Module:
    """They do not."""
    return Decoder(job, [Draining(job.width) for _ in range(job.blocks)])


def drained(moment: Moment) -> None:
    """At the end of backward all are freed."""
    Holding.held.clear()


SHARED = rehearsed(wire="64GB/s@15us", blocks=12)
TURNS = rehearsed(build=uneven, blocks=12, wire="110GB/s@15us", settle=apart)
BUFFERS = rehearsed(build=holding, between=drained, memory_gib=3.6)

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="G01",
        why="two streams, one communicator: gathers and reductions take turns",
        fault=SHARED,
        cure=but(SHARED, settle=apart),
        codes=("FD106",),
    ),
    Entry(
        number="G02",
        why="one input buffer: compute waits for the reduction before",
        fault=TURNS,
        cure=but(TURNS, settle=two_buffers),
        codes=("FD102",),
        units=("layers.4",),
    ),
    Entry(
        number="G03",
        why="states of reductions are not drained: retries in every step",
        fault=BUFFERS,
        cure=but(BUFFERS, build=draining),
        codes=("FD302", "FD408"),
    ),
    Entry(
        number="G04",
        why="CUDA_DEVICE_MAX_CONNECTIONS=1 makes all streams take turns",
        fault=rehearsed(environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        cure=rehearsed(environment={"CUDA_DEVICE_MAX_CONNECTIONS": "32"}),
        codes=("FD106",),
        least=Severity.INFO,  # a modelled device obeys no variable: a prediction
        fast=True,
    ),
    Untold(
        number="G05",
        why="that products are slower beside a collective needs their times alone, by "
        "name, which neither a drawing nor a rehearsal has",
    ),
    Untold(
        number="G06",
        why="which path a collective took stands in its kernel's name; no kernel runs",
    ),
    Untold(
        number="G07",
        why="as G05: products beside a collective against the same alone",
    ),
    Entry(
        number="G08",
        why="reductions wait for gathers of the same group: 20 % at 13 B",
        fault=but(SHARED, width=3072, batch=4, length=2048),
        cure=but(SHARED, width=3072, batch=4, length=2048, settle=apart),
        codes=("FD106",),
    ),
    Entry(
        number="G09",
        why="gathers and reductions on one stream",
        fault=but(SHARED, width=1536, blocks=16, wire="56GB/s@15us"),
        cure=but(SHARED, width=1536, blocks=16, wire="56GB/s@15us", settle=apart),
        codes=("FD106",),
    ),
    Entry(
        number="G10",
        why="one process group for both directions",
        fault=but(SHARED, world=16, node=16, blocks=16),
        cure=but(SHARED, world=16, node=16, blocks=16, settle=apart),
        codes=("FD106",),
    ),
    Entry(
        number="G11",
        why="inputs of reductions are held until backward ends: as many as layers",
        fault=but(BUFFERS, blocks=16, width=1024, memory_gib=4.2),
        cure=but(BUFFERS, blocks=16, width=1024, memory_gib=4.2, build=draining),
        codes=("FD302", "FD408"),
    ),
    Untold(
        number="G12",
        why="one float32 output a layer, freed since torch 2.12; a job with room shows "
        "nothing, one without is G11's",
    ),
    Untold(
        number="G13",
        why="a race of one release, with offloading and replicas: gradients are wrong "
        "at random, and no other sign is there",
    ),
]
