"""P, R and S: hooks, saves and exports, and what is not FSDP2's fault."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import register_fsdp_forward_method

from fsdpdoctor.finding import Severity
from tests.zoo.accumulation import all_reduce_on_last, hybrid
from tests.zoo.entry import Entry, Untold
from tests.zoo.job import (
    Block,
    Decoder,
    Job,
    Moment,
    Tensor,
    chain,
    cross_entropy,
    set_chain,
    with_tables,
)
from tests.zoo.situations import Drawn, but, drawn, rehearsed

# -- P


class Scored(Decoder):
    """Has another way in than `forward`."""

    def score(self, tokens: Tensor) -> Tensor:
        """Logits, by another name."""
        return self.forward(tokens)


def by_score(moment: Moment) -> Tensor:
    """The other way."""
    tokens = moment.tokens()
    return cross_entropy(moment.model.score(tokens), tokens)


def registered(model: Any) -> None:
    """FSDP2 is told of it."""
    register_fsdp_forward_method(model, "score")


class Viewing(Block):
    """Returns a view."""

    def forward(self, x: Tensor) -> Tensor:
        """The block, seen in another shape."""
        return super().forward(x).view(x.shape)


class InPlace(Decoder):
    """Changes in place what a layer returned, which is a view."""

    apart = False

    def __init__(self, job: Job) -> None:
        super().__init__(job, [Viewing(job.width) for _ in range(job.blocks)])

    def hidden(self, tokens: Tensor) -> Tensor:
        """Layers, each followed by a scale."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
            if self.apart:
                x = x * 0.5
            else:
                x.mul_(0.5)
        y: Tensor = self.norm(x)
        return y


class OutOfPlace(InPlace):
    """Does not."""

    apart = True


class Wrapped:
    """An output that nobody looks into."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Hidden(Block):
    """Returns its tensor in an object."""

    def forward(self, x: Any) -> Any:
        """Unpack, compute, pack."""
        return Wrapped(super().forward(x.value if isinstance(x, Wrapped) else x))


class WithObjects(Decoder):
    """Its layers hand objects on."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, [Hidden(job.width) for _ in range(job.blocks)])

    def hidden(self, tokens: Tensor) -> Tensor:
        """Layers, then what is in the last object."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.norm(x.value)
        return y


class Skipping(Decoder):
    """One of its layers is not used."""

    def hidden(self, tokens: Tensor) -> Tensor:
        """All but the fourth."""
        x = self.embedding(tokens)
        for at, layer in enumerate(self.layers):
            if at != 3:
                x = layer(x)
        y: Tensor = self.norm(x)
        return y


def without_the_skipped(model: Any) -> None:
    """Lists of what runs."""
    set_chain([layer for at, layer in enumerate(model.layers) if at != 3])


def frozen_fourth(model: Any) -> None:
    """What does not run is not trained, either."""
    model.layers[3].requires_grad_(False)


# -- R


def saving(length: int, rest: int = 24) -> Drawn:
    """A save of so many milliseconds in each step."""
    pad = "." * length
    rows = {
        "all_gather": "0.1" + "." * (rest - 3) + pad,
        "wait": "0" + "." * (rest - 1) + pad,
        "forward": ".000000111111" + "." * (rest - 13) + pad,
        "backward_all_gather": "." * 9 + "0" + "." * (rest - 10) + pad,
        "backward": "." * 13 + "11111100000" + "." * (rest - 24) + pad,
        "reduce_scatter": "." * 19 + "1...0" + "." * (rest - 24) + pad,
        "checkpoint": "." * rest + "0" * length,
    }
    picture = "\n".join(
        f"{name:<20}{row}" for name, row in rows.items() if row.strip(".")
    )
    return drawn(picture, picture, device="cuda", clock="cuda", scale_ns=10_000_000)


def gather_each(moment: Moment) -> None:
    """Each parameter is gathered whole, one after the other."""
    world = dist.get_world_size()
    for p in moment.model.parameters():
        local = p.to_local()
        whole = torch.empty(world * local.numel(), device="cuda")
        dist.all_gather_into_tensor(whole, local.flatten())


def broadcast_all(moment: Moment) -> None:
    """The whole model is sent to those who generate."""
    for p in moment.model.parameters():
        whole = torch.empty(p.shape, device="cuda")
        dist.broadcast(whole, src=0)


def own_shards(moment: Moment) -> None:
    """Sharded state: nothing is sent."""
    moment.model.state_dict()


def slow_start(moment: Moment) -> None:
    """The first step takes minutes."""
    if moment.step == 0:
        time.sleep(60.0)


# -- S


class Unfused(Block):
    """A norm in float32, pass by pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Norm by hand, then the block."""
        y = x.float()
        for _ in range(3):
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        z: Tensor = super().forward(y.to(x.dtype))
        return z


class Recurrent(Block):
    """A recurrence in plain torch, chunk by chunk."""

    def forward(self, x: Tensor) -> Tensor:
        """One chunk after the other."""
        parts = []
        state = torch.zeros_like(x[:, :64])
        for part in torch.split(x, 64, 1):
            state = torch.tanh(state * 0.9 + part.float().exp().log().to(part.dtype))
            parts.append(part + state)
        y: Tensor = super().forward(torch.cat(parts, 1))
        return y


def layers_of(kind: type[Block]) -> Any:
    """A decoder of such layers."""

    def build(job: Job) -> nn.Module:
        return Decoder(job, [kind(job.width) for _ in range(job.blocks)])

    return build


HYBRID = rehearsed(
    world=32,
    mesh=hybrid(4, 8),
    wire="shard=nvlink4,replicate=5GB/s@30us",
    micro_batches=4,
    shard=with_tables,
)
DEEP = rehearsed(memory_gib=2.85)
SCORES = rehearsed(build=Scored, loss=by_score, blocks=4)
EXPORT = rehearsed(blocks=6, wire="80GB/s@15us", batch=12)

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="A06",
        why="explicit prefetch many units ahead: gathered blocks fill the memory",
        fault=but(DEEP, settle=chain(7, 7)),
        cure=but(DEEP, settle=chain()),
        codes=("FD105", "FD301", "FD302"),
    ),
    Entry(
        number="C03",
        why="replicas all-reduce in each micro-batch, not in the last",
        fault=HYBRID,
        cure=but(HYBRID, before=all_reduce_on_last),
        codes=("FD108",),
        units=("layers.3",),
    ),
    Entry(
        number="P01",
        why="hooks run for forward, and another method was called",
        fault=but(SCORES, raises="RuntimeError"),
        cure=but(SCORES, settle=registered),
        codes=("FD504", "FD408"),
        fast=True,
    ),
    Entry(
        number="P02",
        why="a view of a layer's output is changed in place: its hook is lost",
        fault=rehearsed(build=InPlace, blocks=4),
        cure=rehearsed(build=OutOfPlace, blocks=4),
        codes=("FD504", "FD408"),
    ),
    Entry(
        number="P03",
        why="outputs in an object carry no hook: no gather for their backward",
        fault=rehearsed(build=WithObjects, blocks=4),
        cure=rehearsed(blocks=4),
        codes=("FD504", "FD408"),
    ),
    Entry(
        number="P06",
        why="a prefetch of what does not run next",
        fault=rehearsed(build=Skipping, prepare=frozen_fourth, settle=chain()),
        cure=rehearsed(
            build=Skipping, prepare=frozen_fourth, settle=without_the_skipped
        ),
        codes=("FD105", "FD303"),
        units=("layers.3",),
    ),
    Untold(
        number="P09",
        why="one release of a library could not be sharded at all: no unit, no run",
    ),
    Untold(
        number="Q04",
        why="a change of torch's hooks; no job is wrong in it",
    ),
    Entry(
        number="R01",
        why="the whole optimizer state is gathered",
        fault=saving(60),
        cure=saving(1),
        codes=("FD405",),
        fast=True,
    ),
    Entry(
        number="R02",
        why="the full state is gathered for each save: 400 s",
        fault=saving(40),
        cure=saving(1),
        codes=("FD405",),
        fast=True,
    ),
    Entry(
        number="R03",
        why="training stands still while a checkpoint is written",
        fault=saving(6),
        cure=saving(1),
        codes=("FD405",),
        fast=True,
    ),
    Untold(
        number="R04",
        why="host memory that saves leave behind where nothing is collected; it is not "
        "recorded",
    ),
    Untold(
        number="R06",
        why="a copy of the whole model on one device before the first step, which is "
        "before a record",
    ),
    Untold(
        number="R07",
        why="as R06, in one release's functions for state",
    ),
    Entry(
        number="R08",
        why="the whole model is broadcast after each step: 34 s in place of 3",
        fault=but(EXPORT, after=broadcast_all),
        cure=but(EXPORT, after=own_shards),
        codes=("FD407",),
    ),
    Entry(
        number="R09",
        why="weights are gathered parameter by parameter",
        fault=but(EXPORT, after=gather_each),
        cure=but(EXPORT, after=own_shards),
        codes=("FD407",),
    ),
    Entry(
        number="R10",
        why="the first forward takes minutes at 1024 ranks: it is not the others'",
        fault=rehearsed(before=slow_start, blocks=6),
    ),
    Entry(
        number="S01",
        why="unfused passes of a norm in float32",
        fault=rehearsed(build=layers_of(Unfused)),
        cure=rehearsed(),
        codes=("FD900",),
        least=Severity.INFO,
    ),
    Entry(
        number="S02",
        why="a recurrence in plain torch",
        fault=rehearsed(build=layers_of(Recurrent), blocks=4, batch=16),
        cure=rehearsed(blocks=4, batch=16),
        codes=("FD900",),
        least=Severity.INFO,
    ),
    Untold(
        number="S03",
        why='"slow" was of the loss; what a model learns is not recorded',
    ),
]
