"""D: what stays gathered, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.testing import unit
from tests.zoo.entry import Entry, Untold
from tests.zoo.exposure import read_then_backward
from tests.zoo.job import (
    Decoder,
    Job,
    Moment,
    Tensor,
    by_block,
    cross_entropy,
    go_back,
    loss_of,
)
from tests.zoo.situations import but, drawn, rehearsed


class Conditioned(nn.Module):
    """A frozen encoder, and a decoder that is trained on what it says."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.encoder = Decoder(job).requires_grad_(False)
        self.denoiser = Decoder(job)

    def forward(self, tokens: Tensor) -> Tensor:
        """Only parts of it are called."""
        raise NotImplementedError


def both_trees(model: Any, job: Job) -> None:
    """Encoder and denoiser are roots of their own."""
    by_block(model.encoder, job)
    by_block(model.denoiser, job)


def conditioned(moment: Moment) -> Tensor:
    """Encode without gradients, then train."""
    tokens = moment.tokens()
    with torch.no_grad():
        condition = moment.model.encoder(tokens).argmax(-1)
    return cross_entropy(moment.model.denoiser(condition), tokens)


def conditioned_and_freed(moment: Moment) -> Tensor:
    """The same; the encoder's root is sharded again."""
    tokens = moment.tokens()
    with torch.no_grad():
        condition = moment.model.encoder(tokens).argmax(-1)
    moment.model.encoder.reshard()
    return cross_entropy(moment.model.denoiser(condition), tokens)


def root_freed(model: Any, job: Job) -> None:
    """`reshard_after_forward=True`, said of the root, too."""
    options = job.options() | {"reshard_after_forward": True}
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)


def forwards_first(moment: Moment) -> None:
    """A pipeline's stage: all forwards, then all backwards."""
    job, model = moment.job, moment.model
    losses = []
    for moment.micro_batch in range(job.micro_batches):
        losses.append(loss_of(moment))
    for moment.micro_batch, loss in enumerate(losses):
        model.set_is_last_backward(moment.last)
        model.set_requires_gradient_sync(moment.last)
        model.set_reshard_after_backward(moment.last)
        go_back(loss)
    moment.optimizer.step()
    moment.optimizer.zero_grad()


NEW_TOKENS = 12


def generate(moment: Moment) -> None:
    """A rollout before each step, one forward a token."""
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            moment.model(moment.tokens(length=64))


@contextmanager
def gathered(model: Any) -> Iterator[None]:
    """Everything unsharded meanwhile."""
    parts = [model, *model.layers]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
    yield
    for part in model.layers:
        part.set_reshard_after_forward(True, recurse=False)
    for part in parts:
        part.reshard()


def generate_gathered(moment: Moment) -> None:
    """The same, gathered once."""
    with gathered(moment.model):
        generate(moment)


def whole_and_sync_on_last(moment: Moment) -> None:
    """ZeRO-1: whole until the last micro-batch's backward."""
    model = moment.model
    model.set_is_last_backward(moment.last)
    model.set_requires_gradient_sync(moment.last)
    model.set_reshard_after_backward(moment.last)


HEAVY: dict[str, Any] = {
    "blocks": 3,
    "vocabulary": 65536,
    "wire": "80GB/s@15us",
    "run": read_then_backward,
}
KEPT = {"reshard_after_forward": False}
ROOM = rehearsed(wire="56GB/s@15us", blocks=16)
"""Backward has to gather and to reduce, and has no time for both."""

PIPELINE = rehearsed(
    wire="160GB/s@15us", micro_batches=8, batch=2, iteration=forwards_first
)
ACCUMULATED = rehearsed(wire="40GB/s@15us", micro_batches=4)
ROLLOUT = rehearsed(before=generate)

WHOLE_UNITS = (
    unit("<root>", is_root=True, reshard_after_forward=False, module_class="Net"),
    *(unit(f"layers.{at}", reshard_after_forward=False) for at in range(3)),
)
AGAIN = """
all_gather          0.112233................................
wait                00......................................
forward             ..001111222233330.......................
backward_all_gather ................33......22......11......
backward_wait       ................33......22......11......
backward            ..................333333..222222..1111110
reduce_scatter      ........................33......22......11
"""
ONCE = """
all_gather          0.112233................................
wait                00......................................
forward             ..001111222233330.......................
backward            ................333333222222111111000000.
reduce_scatter      ......................33....22....11....0
rs_wait             ........................................0
"""

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="D-01",
        why="the root of a text encoder stays gathered after passes without gradients",
        fault=rehearsed(
            build=Conditioned, shard=both_trees, loss=conditioned, vocabulary=32768
        ),
        cure=rehearsed(
            build=Conditioned,
            shard=both_trees,
            loss=conditioned_and_freed,
            vocabulary=32768,
        ),
        codes=("FD303", "FD301"),
        still={
            "FD203": "the tables are in the roots all the same",
            "FD503": "the encoder is frozen, and held in float32",
        },
    ),
    Entry(
        number="D-02",
        why="a root stays gathered from forward to backward: by design",
        fault=rehearsed(blocks=12, width=1536),
    ),
    Entry(
        number="D-03",
        why="an explicit True for the root is followed since 2.8: gathered again as "
        "backward begins",
        fault=rehearsed(shard=root_freed, **HEAVY),
        cure=rehearsed(**HEAVY),
        codes=("FD301", "FD101"),
        units=("<root>",),
        still={
            "FD104": "the loss is still read before backward",
            "FD203": "the tables are in the root all the same",
        },
    ),
    Entry(
        number="D-04",
        why="an integer makes a process group of each unit, about 1 GB each",
        fault=rehearsed(sharding={"reshard_after_forward": 4}),
        cure=rehearsed(sharding={"reshard_after_forward": True}),
        codes=("FD301",),
    ),
    Untold(
        number="D-05",
        why="a question on which group a collective uses; its job has no fault but "
        "that of D-04",
    ),
    Entry(
        number="D-06",
        why="there was room to stay gathered: 8 % more tokens a second",
        fault=ROOM,
        cure=but(ROOM, sharding=KEPT),
        codes=("FD301",),
        units=("layers.3",),
    ),
    Entry(
        number="D-07",
        why="a pipeline's stage gathers again for each micro-batch",
        fault=PIPELINE,
        cure=but(PIPELINE, sharding=KEPT),
        codes=("FD301", "FD107"),
        units=("layers.3",),
    ),
    Entry(
        number="D-08",
        why="units that were to stay gathered are gathered in backward all the same",
        fault=drawn(AGAIN, AGAIN, units=WHOLE_UNITS, device="cuda", clock="cuda"),
        cure=drawn(ONCE, ONCE, units=WHOLE_UNITS, device="cuda", clock="cuda"),
        codes=("FD107",),
        units=("layers.0", "layers.1"),
        fast=True,
    ),
    Entry(
        number="D-09",
        why="each forward of a generation gathers the same weights again",
        fault=ROLLOUT,
        cure=but(ROLLOUT, before=generate_gathered),
        codes=("FD301", "FD107"),
        units=("layers.3",),
    ),
    Entry(
        number="D-10",
        why="36 gathers where 5 suffice, and as many reductions",
        fault=ACCUMULATED,
        cure=but(ACCUMULATED, sharding=KEPT, before=whole_and_sync_on_last),
        codes=("FD108", "FD301"),
        units=("layers.3",),
    ),
    Entry(
        number="D-11",
        why="gathers take 0.5 % of the step: nothing can be gained from them",
        fault=rehearsed(batch=64),
    ),
]
