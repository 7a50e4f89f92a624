"""L: ranks that are late, collections, reads, loaders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from fsdpdoctor.finding import Severity
from fsdpdoctor.schema import (
    COUNTER_PYTHON_OBJECTS,
    Activity,
    Evidence,
)
from fsdpdoctor.testing import RECORDED, Sample
from tests.zoo.accumulation import sync_on_last
from tests.zoo.entry import Entry, Untold
from tests.zoo.exposure import FEW, LAST_REDUCTION, read_then_backward
from tests.zoo.job import Moment, Tensor, cross_entropy, go_back
from tests.zoo.situations import Drawn, but, drawn, rehearsed

# -- ranks

IN_TIME = """
all_gather          000000.1.....................
wait                000000.......................
forward             ......000000111111...........
backward_all_gather ..............0..............
backward            ..................11111100000
reduce_scatter      ........................1....
"""
LATE = """
all_gather          .....0.1.....................
wait                .....0.......................
forward             ......000000111111...........
backward_all_gather ..............0..............
backward            ..................11111100000
reduce_scatter      ........................1....
"""
TOGETHER = """
all_gather          0.1.....................
wait                0.......................
forward             .000000111111...........
backward_all_gather .........0..............
backward            .............11111100000
reduce_scatter      ...................1....
"""
SHORT = """
all_gather          00000000.1.......................
wait                00000000.........................
forward             ........000000111111.............
backward_all_gather ................0................
backward            ....................1111110000000
reduce_scatter      ............................1....
"""
LONGER = """
all_gather          .......0.1.......................
wait                .......0.........................
forward             ........000000111111.............
backward_all_gather ................0................
backward            ....................1111110000000
reduce_scatter      ............................1....
"""

DEVICE: dict[str, Any] = {"device": "cuda", "clock": "cuda"}


def four(late: str, others: str, tokens: tuple[int, ...] = ()) -> Drawn:
    """Ranks 0, 1 and 3 in one way, rank 2 in another."""
    each = [{"tokens": count} for count in tokens] if tokens else ()
    return drawn(others, others, late, others, each=each, **DEVICE)


# -- collections

COLLECTED = """
gc                  222.............................
all_gather          ....0.1.........................
wait                ....0...........................
forward             .....000000111111...............
backward_all_gather .............0..................
backward            .................11111100000....
reduce_scatter      .......................1....0...
rs_wait             ............................0...
"""
COLLECTED_LATER = """
gc                  ............................2222
all_gather          00000.1.........................
wait                00000...........................
forward             .....000000111111...............
backward_all_gather .............0..................
backward            .................11111100000....
reduce_scatter      .......................1....0...
rs_wait             ............................0...
"""
MIDDLE = """
gc                  11..............................
all_gather          ...0..1.........................
wait                ...0............................
forward             ....0000000111111...............
backward_all_gather .............0..................
backward            .................11111100000....
reduce_scatter      .......................1....0...
rs_wait             ............................0...
"""
UNCOLLECTED = """
all_gather          0.1.........................
wait                0...........................
forward             .000000111111...............
backward_all_gather .........0..................
backward            .............11111100000....
reduce_scatter      ...................1....0...
rs_wait             ........................0...
optimizer           .........................0..
"""
MOVED = """
gc                  ...222..........................
all_gather          ......0.1.......................
wait                ......0.........................
forward             .......00000111111..............
backward_all_gather .............0..................
backward            ..................1111110000....
reduce_scatter      ........................1...0...
rs_wait             ............................0...
optimizer           .............................000
"""
WITH_STACKS = (*RECORDED, Evidence.STACKS)
MOVES = (Sample(at=1.5, activity=Activity.USER, site="train_mode.py:57"),)

# -- reads


def read_three(moment: Moment) -> None:
    """Loss, accuracy and a norm, before they are needed."""
    loss = moment.job.loss(moment)
    loss.item()
    (loss * 2).item()
    go_back(loss)
    (loss * 3).item()


def read_at_end(moment: Moment) -> None:
    """The loss is added up on the device."""
    loss = moment.job.loss(moment)
    go_back(loss)
    moment.kept.append(loss.detach())


def log_kept(moment: Moment) -> None:
    """One read a step, after the optimizer."""
    torch.stack(moment.kept).sum().item()
    moment.kept.clear()


def masked(moment: Moment) -> Tensor:
    """A loss in fifteen parts, each of which asks how many tokens it has."""
    tokens = moment.tokens()
    logits = moment.model(tokens)
    total = cross_entropy(logits, tokens)
    for at in range(15):
        count = part_of(tokens, at).item()
        total = total / max(int(count), 1)
    return total


def part_of(tokens: Tensor, at: int) -> Tensor:
    """How many tokens a part has, by some small operations."""
    mask = tokens > at
    for bound in range(8):
        mask = mask & (tokens != at + bound)
    return mask.sum()


def unmasked(moment: Moment) -> Tensor:
    """The counts stay on the device."""
    tokens = moment.tokens()
    logits = moment.model(tokens)
    total = cross_entropy(logits, tokens)
    for at in range(15):
        total = total / part_of(tokens, at).clamp(min=1)
    return total


def reduce_to_log(moment: Moment) -> None:
    """Each micro-batch's loss is averaged over ranks, for a log."""
    loss = moment.job.loss(moment)
    go_back(loss)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    moment.kept.append(mean)


# -- loaders


class Images(Dataset[Tensor]):
    """Samples that take their time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Tensor:
        """Augment one."""
        time.sleep(self.seconds)
        return torch.zeros((), dtype=torch.int64)


def loading(seconds: float) -> Any:
    """Fetch a batch of eight before each micro-batch."""
    held: list[Iterator[Tensor]] = []

    def fetch(moment: Moment) -> None:
        if moment.step == moment.micro_batch == 0:
            held[:] = [iter(DataLoader(Images(seconds), batch_size=8))]
        torch.zeros((), device="cuda").item()  # the loop logs, and has no lead
        next(held[0])

    return fetch


FETCHED = """
input               000000....................
all_gather          ......0.1.................
wait                ......0...................
forward             .......000000111111.......
backward_all_gather ...............0..........
backward            ...................1111110
reduce_scatter      .........................1
"""
AHEAD = """
input               0.........................
all_gather          .0.1......................
wait                .0........................
forward             ..00000000011111111.......
backward_all_gather ...............0..........
backward            ...................1111110
reduce_scatter      .........................1
"""

LEAD = but(FEW, micro_batches=2)
"""A gather is hidden only as long as the host is ahead."""

QUICK = rehearsed(blocks=4, batch=3, host=3.0, wire="nvlink5")
ACCUMULATING = rehearsed(batch=6, host=4.0, micro_batches=2)
LOGGED = rehearsed(
    world=64,
    node=64,
    wire="300GB/s@300us",
    batch=5,
    micro_batches=8,
    before=sync_on_last,
    after=log_kept,
)
SLOW = rehearsed(blocks=4, before=loading(0.001))
LOG = {"FD104": "the loop still logs once a step"}

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="L01",
        why="each long gather has one rank that is busy on its host",
        fault=four(LATE, IN_TIME),
        cure=four(TOGETHER, TOGETHER),
        codes=("FD401",),
        ranks=(2,),
        fast=True,
    ),
    Entry(
        number="L02",
        why="Python collects on each rank when it likes, and all others wait",
        fault=drawn(COLLECTED, COLLECTED_LATER, **DEVICE),
        cure=drawn(UNCOLLECTED, UNCOLLECTED, **DEVICE),
        codes=("FD403",),
        fast=True,
    ),
    Entry(
        number="L03",
        why="collections of the middle generation come at different steps",
        fault=drawn(MIDDLE, MIDDLE, **DEVICE),
        cure=drawn(UNCOLLECTED, UNCOLLECTED, **DEVICE),
        codes=("FD403",),
        fast=True,
    ),
    Entry(
        number="L04",
        why="a full collection takes more than a second",
        fault=drawn(COLLECTED, COLLECTED, scale_ns=400_000_000, **DEVICE),
        cure=drawn(UNCOLLECTED, UNCOLLECTED, scale_ns=400_000_000, **DEVICE),
        codes=("FD403",),
        fast=True,
    ),
    Entry(
        number="L05",
        why="19.6 thousand objects more in each step: collections take ever longer",
        fault=drawn(
            COLLECTED,
            COLLECTED,
            steps=12,
            rising={COUNTER_PYTHON_OBJECTS: 19_600},
            **DEVICE,
        ),
        cure=drawn(UNCOLLECTED, UNCOLLECTED, steps=12, **DEVICE),
        codes=("FD403", "FD404"),
        fast=True,
    ),
    Entry(
        number="L06",
        why="a model in place is moved again, and all is collected, before each step",
        fault=drawn(MOVED, MOVED, evidence=WITH_STACKS, samples=MOVES, **DEVICE),
        cure=drawn(UNCOLLECTED, UNCOLLECTED, evidence=WITH_STACKS, **DEVICE),
        codes=("FD403",),
        fast=True,
    ),
    Entry(
        number="L07",
        why="the loss is read between forward and backward",
        fault=but(LEAD, run=read_then_backward),
        cure=LEAD,
        codes=("FD104",),
        least=Severity.INFO,  # no gain is given
        still=LAST_REDUCTION
        | {
            "FD101": "of two blocks the step's first gathers are a large part",
            "FD108": "both micro-batches are reduced",
        },
    ),
    Entry(
        number="L08",
        why="metrics are read as they are made, and not one step late",
        fault=but(ACCUMULATING, run=read_three),
        cure=but(ACCUMULATING, run=read_at_end, after=log_kept),
        codes=("FD104",),
    ),
    Untold(
        number="L09",
        why="a modelled device does not wait where a number of the host becomes a "
        "tensor: the job with it and the job without take as long",
    ),
    Entry(
        number="L10",
        why="the loss reads the device fifteen times a step",
        fault=but(QUICK, batch=8, loss=masked),
        cure=but(QUICK, batch=8, loss=unmasked),
        codes=("FD104",),
    ),
    Entry(
        number="L11",
        why="an all-reduce in each micro-batch, only to log its loss",
        fault=but(LOGGED, run=reduce_to_log),
        cure=but(LOGGED, run=read_at_end),
        codes=("FD407",),
        least=Severity.INFO,
    ),
    Entry(
        number="L12",
        why="augmentation without workers: the step waits for it",
        fault=SLOW,
        cure=but(SLOW, before=loading(0.00002)),
        codes=("FD402",),
        still=LOG,
    ),
    Entry(
        number="L13",
        why="every rank reads all samples: 13 of 55 seconds",
        fault=drawn(FETCHED, FETCHED, scale_ns=2_000_000_000, **DEVICE),
        cure=drawn(AHEAD, AHEAD, scale_ns=2_000_000_000, **DEVICE),
        codes=("FD402",),
        fast=True,
    ),
    Entry(
        number="L14",
        why="a loader's defaults leave the device without work",
        fault=but(SLOW, before=loading(0.0004)),
        cure=but(SLOW, before=loading(0.00001)),
        codes=("FD402",),
        still=LOG,
    ),
    Entry(
        number="L15",
        why="sequences of unlike length: one rank has twice the tokens",
        fault=four(LONGER, SHORT, tokens=(4096, 4096, 8192, 4096)),
        cure=four(TOGETHER, TOGETHER, tokens=(5120, 5120, 5120, 5120)),
        codes=("FD401",),
        ranks=(2,),
        fast=True,
    ),
]
