"""C: embeddings, heads and tied weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.finding import Severity
from tests.zoo.entry import Entry, Untold
from tests.zoo.exposure import read_then_backward
from tests.zoo.job import (
    Block,
    Decoder,
    Job,
    Moment,
    Tensor,
    by_block,
    cross_entropy,
    go_back,
    with_tables,
)
from tests.zoo.situations import but, rehearsed
from tests.zoo.wrapping import NODES


def root_freed(model: Any, job: Job) -> None:
    """A root that is freed after forward, though backward begins with it."""
    for layer in model.layers:
        fully_shard(layer, **job.options())
    fully_shard(model, **job.options(), reshard_after_forward=True)


class Tied(Decoder):
    """Head and embedding are one table."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.head.weight = self.embedding.weight


def embedding_apart(model: Any, job: Job) -> None:
    """The table is in two units."""
    fully_shard(model.embedding, **job.options())
    by_block(model, job)


def tied_together(model: Any, job: Job) -> None:
    """Norm, table and head are one unit."""
    for layer in model.layers:
        fully_shard(layer, **job.options())
    fully_shard([model.norm, model.embedding, model.head], **job.options())
    fully_shard(model, **job.options())


def chunked(moment: Moment) -> None:
    """The head runs, and is reduced, chunk by chunk."""
    model = moment.model
    tokens = moment.tokens()
    hidden = model.hidden_of(tokens)
    held = hidden.detach().requires_grad_()
    for part, wanted in zip(held.chunk(8, 1), tokens.chunk(8, 1), strict=True):
        go_back(cross_entropy(model.head(part), wanted))
    torch.autograd.backward(hidden, held.grad)


def chunked_once(moment: Moment) -> None:
    """The same, reduced after the last chunk."""
    model = moment.model
    tokens = moment.tokens()
    hidden = model.hidden_of(tokens)
    held = hidden.detach().requires_grad_()
    model.head.set_reshard_after_backward(False)
    parts = list(zip(held.chunk(8, 1), tokens.chunk(8, 1), strict=True))
    for at, (part, wanted) in enumerate(parts):
        last = at == len(parts) - 1
        model.head.set_requires_gradient_sync(last)
        model.head.set_reshard_after_backward(last)
        go_back(cross_entropy(model.head(part), wanted))
    torch.autograd.backward(hidden, held.grad)


class Trunk(nn.Module):
    """All but the head."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.embedding = nn.Embedding(job.vocabulary, job.width)
        self.layers = nn.ModuleList(Block(job.width) for _ in range(job.blocks))

    def forward(self, tokens: Tensor) -> Tensor:
        """What the head gets."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = x
        return y


class Stage(nn.Module):
    """The last stage of a pipeline: a trunk, and a head that is called in chunks."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.trunk = Trunk(job)
        self.head = nn.Linear(job.width, job.vocabulary, bias=False)

    def hidden_of(self, tokens: Tensor) -> Tensor:
        """The trunk's output."""
        y: Tensor = self.trunk(tokens)
        return y


def trunk_and_head(model: Any, job: Job) -> None:
    """Two trees: the trunk's layers and the head."""
    for layer in model.trunk.layers:
        fully_shard(layer, **job.options())
    fully_shard(model.trunk, **job.options())
    fully_shard(model.head, **job.options(), reshard_after_forward=False)


def embedding_needs_no_backward(model: Any) -> None:
    """Its gradient does not depend on its weight."""
    model.embedding.set_unshard_in_backward(False)


TABLES = rehearsed(vocabulary=65536, batch=4)
SLOW_ROOT = rehearsed(vocabulary=65536, blocks=4, wire=NODES, run=read_then_backward)
CHUNKS = rehearsed(build=Stage, shard=trunk_and_head, run=chunked, vocabulary=32768)

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="C01",
        why="embedding and head are in the root: gathered too early, freed too late",
        fault=TABLES,
        cure=but(TABLES, shard=with_tables),
        codes=("FD203",),
        units=("<root>",),
    ),
    Entry(
        number="C02",
        why="the embedding in a group of its own: 0.84 GiB less at 7 B, no speed",
        fault=rehearsed(vocabulary=32000, width=4096, blocks=4, batch=4),
        cure=rehearsed(
            vocabulary=32000, width=4096, blocks=4, batch=4, shard=with_tables
        ),
        codes=("FD203",),
        units=("<root>",),
        least=Severity.INFO,
    ),
    Entry(
        number="C04",
        why="the embedding is gathered in backward, which does not need its weight",
        fault=rehearsed(shard=with_tables, vocabulary=65536),
        cure=rehearsed(
            shard=with_tables, vocabulary=65536, settle=embedding_needs_no_backward
        ),
        codes=("FD303", "FD301", "FD203"),
        units=("embedding",),
        least=Severity.INFO,
    ),
    Untold(
        number="C05",
        why="a flag that did not mean what was thought: it changes nothing, and costs "
        "nothing that could be seen",
    ),
    Entry(
        number="C06",
        why="the root was told to reshard: gathered again as backward begins",
        fault=but(SLOW_ROOT, shard=root_freed),
        cure=SLOW_ROOT,
        codes=("FD301", "FD101"),
        units=("<root>",),
        still={
            "FD203": "the tables are in the root all the same",
            "FD104": "the loss is still read before backward",
        },
    ),
    Entry(
        number="C07",
        why="tied tables in two units: an error at the first forward",
        fault=rehearsed(build=Tied, shard=embedding_apart, raises="ValueError"),
        cure=rehearsed(build=Tied, shard=tied_together),
        codes=("FD408",),
        fast=True,
    ),
    Entry(
        number="C08",
        why="a loss in chunks reduces the head's gradient once a chunk",
        fault=CHUNKS,
        cure=but(CHUNKS, run=chunked_once),
        codes=("FD108", "FD107"),
        units=("head",),
    ),
    Untold(
        number="C09",
        why="two tables that should be one look, once sharded, like two that are meant",
    ),
]
