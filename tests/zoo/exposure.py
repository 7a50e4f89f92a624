"""A: all-gathers that are not hidden, and prefetch."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from fsdpdoctor.schema import Evidence, Phase
from fsdpdoctor.testing import RECORDED, Call
from tests.zoo.entry import Entry, Untold
from tests.zoo.job import (
    NARROW,
    Block,
    Decoder,
    Job,
    Moment,
    Tensor,
    chain,
    go_back,
    set_chain,
)
from tests.zoo.situations import but, drawn, rehearsed

HEARD = (*RECORDED, Evidence.OTHER_COLLECTIVES)

TINY = rehearsed(width=1024, blocks=12, batch=1, length=256)


class Reading(Block):
    """A layer that needs numbers of the device: token counts of experts, the longest
    sequence of a packed batch.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Attention's products, then the counts."""
        y = super().forward(x)
        torch.zeros(8, dtype=torch.int64, device=x.device).tolist()
        return y


class Even(Block):
    """The same with an even split, for which nothing is read."""

    def forward(self, x: Tensor) -> Tensor:
        """The counts stay on the device."""
        y = super().forward(x)
        torch.zeros(8, dtype=torch.int64, device=x.device)
        return y


def reading(job: Job) -> nn.Module:
    """Each layer reads."""
    return Decoder(job, [Reading(job.width) for _ in range(job.blocks)])


def even(job: Job) -> nn.Module:
    """No layer does."""
    return Decoder(job, [Even(job.width) for _ in range(job.blocks)])


READS = rehearsed(build=reading, wire="80GB/s@15us", batch=16)
STILL_READS = {
    "FD104": "each layer still reads, and the device runs dry meanwhile",
    "FD103": "after each read the host starts with no lead",
}


def backward_of_itself(model: Any) -> None:
    """Backward prefetch that fetches nothing ahead."""
    for layer in model.layers:
        layer.set_modules_to_backward_prefetch([layer])


class Shuffled(Decoder):
    """Its layers run from the last to the first."""

    def hidden(self, tokens: Tensor) -> Tensor:
        """The other way round."""
        x = self.embedding(tokens)
        for layer in reversed(self.layers):
            x = layer(x)
        y: Tensor = self.norm(x)
        return y


def chained_as_it_runs(model: Any) -> None:
    """The lists follow the order of the forward."""
    set_chain(list(model.layers)[::-1])


def log_and_load(moment: Moment) -> None:
    """The loss is printed, then a batch is fetched."""
    torch.zeros((), device="cuda").item()
    time.sleep(0.002)


def load_meanwhile(moment: Moment) -> None:
    """The first units' gathers run while the loader does."""
    torch.zeros((), device="cuda").item()
    moment.model.unshard(async_op=True)
    moment.model.layers[0].unshard(async_op=True)
    time.sleep(0.002)


def read_then_backward(moment: Moment) -> None:
    """The loss is looked at before it is used."""
    loss = moment.job.loss(moment)
    loss.item()
    go_back(loss)


def last_unit_kept(model: Any) -> None:
    """What runs last in forward runs first in backward."""
    model.layers[-1].set_reshard_after_forward(False)


FEW = rehearsed(blocks=2, wire="75GB/s@15us", precision=NARROW, vocabulary=1024)
"""A gather takes nearly as long as a block's forward."""

LAST_REDUCTION = {"FD102": "of two blocks the last reduction is a large part"}

FIRST_ONLY = but(FEW, after=log_and_load)
READ_FIRST = but(FEW, run=read_then_backward)

NO_OVERLAP = """
all_gather          00..11..22..................
wait                00..11..22..................
forward             ..00..11..22................
backward_all_gather ............22..11..00......
backward_wait       ............22..11..00......
backward            ..............22..11..00....
reduce_scatter      ................22..11..00..
rs_wait             ..........................00
optimizer           ............................
"""
OVERLAPPED = """
all_gather          0.11..22....................
wait                0...........................
forward             .000001111122222............
backward_all_gather ...............1....0.......
backward            ................22221111000.
reduce_scatter      ....................22.11..0
rs_wait             ...........................0
"""

OUTER = """
other               000.........................
other_wait          000.........................
all_gather          ...0....11..22..............
wait                ...0........................
forward             ....000011112222............
backward_all_gather ............1...0...........
backward            ............222211110000....
reduce_scatter      ................22..11..00..
rs_wait             ..........................00
"""
OUTER_AHEAD = """
other               ......................00....
all_gather          0...11..22..................
wait                0...........................
forward             .00001111.2222..............
backward_all_gather ............1...0...........
backward            ..............22221111000...
reduce_scatter      ..................22..11..0.
rs_wait             ..........................0.
"""
OUTER_CALL = Call(kind="all_gather", site="optimizer.py:88", phase=Phase.OPTIMIZER)

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="A01",
        why="so little is computed that the host does not run ahead",
        fault=TINY,
        cure=but(TINY, batch=32, length=1024),
        codes=("FD103",),
    ),
    Entry(
        number="A02",
        why="prefetch was asked for and dropped: forward's gathers are exposed",
        fault=READS,
        cure=but(READS, settle=chain()),
        codes=("FD101",),
        units=("layers.3", "layers.5"),
        still=STILL_READS,
    ),
    Entry(
        number="A03",
        why="token counts are read in each layer, so the next gather is issued late",
        fault=READS,
        cure=but(READS, build=even),
        codes=("FD104",),
    ),
    Entry(
        number="A04",
        why="split sizes of the all-to-all are numbers of the host",
        fault=but(READS, width=1024, batch=32),
        cure=but(READS, width=1024, batch=32, build=even),
        codes=("FD104",),
    ),
    Entry(
        number="A05",
        why="the gather of the next expert layer waits for the read of this one",
        fault=but(READS, blocks=12, world=16, node=16),
        cure=but(READS, blocks=12, world=16, node=16, settle=chain()),
        codes=("FD101",),
        units=("layers.3", "layers.10"),
        still=STILL_READS,
    ),
    Entry(
        number="A07",
        why="nothing runs before the step's first gathers",
        fault=FIRST_ONLY,
        cure=but(FIRST_ONLY, after=load_meanwhile),
        codes=("FD101",),
        units=("layers.0",),
        still=LAST_REDUCTION
        | {
            "FD402": "batches are still fetched between steps",
            "FD104": "the loss is still read",
            "FD902": "batches are still fetched between steps",
        },
    ),
    Entry(
        number="A08",
        why="in backward each unit is gathered when it is needed",
        fault=rehearsed(settle=backward_of_itself, wire="ib400", batch=16),
        cure=rehearsed(wire="ib400", batch=16),
        codes=("FD105", "FD101"),
        units=("layers.3",),
    ),
    Entry(
        number="A09",
        why="a prefetch budget of nothing: no gather runs beside a product",
        fault=drawn(NO_OVERLAP, NO_OVERLAP, device="cuda", clock="cuda"),
        cure=drawn(OVERLAPPED, OVERLAPPED, device="cuda", clock="cuda"),
        codes=("FD101",),
        units=("layers.0", "layers.1", "layers.2"),
        fast=True,
    ),
    Entry(
        number="A10",
        why="explicit prefetch needs the order in which modules run",
        fault=rehearsed(build=Shuffled, settle=chain()),
        cure=rehearsed(build=Shuffled, settle=chained_as_it_runs),
        codes=("FD105",),
        units=("layers.3",),
    ),
    Entry(
        number="A11",
        why="the last unit is freed and gathered again between loss and backward",
        fault=READ_FIRST,
        cure=but(READ_FIRST, settle=last_unit_kept),
        codes=("FD301", "FD101"),
        units=("layers.1",),
        still=LAST_REDUCTION
        | {
            "FD104": "the loss is still read before backward",
            "FD101": "of two blocks the step's first gathers are a large part",
        },
    ),
    Entry(
        number="A12",
        why="the knob for prefetch exists and is off",
        fault=but(READS, width=1536, blocks=12, batch=24),
        cure=but(READS, width=1536, blocks=12, batch=24, settle=chain()),
        codes=("FD101",),
        units=("layers.5",),
        still=STILL_READS,
    ),
    Entry(
        number="A13",
        why="the outer gather of hybrid sharding waits after the optimizer",
        fault=drawn(
            OUTER,
            OUTER,
            calls=(OUTER_CALL,),
            evidence=HEARD,
            device="cuda",
            clock="cuda",
        ),
        cure=drawn(
            OUTER_AHEAD,
            OUTER_AHEAD,
            calls=(OUTER_CALL,),
            evidence=HEARD,
            device="cuda",
            clock="cuda",
        ),
        codes=("FD407", "FD101"),
        fast=True,
    ),
    Entry(
        number="A14",
        why="copies beside the gathers cost 1.4 %: to be reported, not to alarm",
        fault=rehearsed(),
    ),
    Untold(
        number="A15",
        why="a rehearsal has two ranks at least, and on a CPU nothing is copied to a "
        "device",
    ),
]
