"""A small training of many shapes, run as rank 0 of a job on modelled GPUs.

The default is a decoder in bfloat16 on one node of eight H100s, whose gathers and
reductions hide: each entry of the zoo changes something of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

Tensor = torch.Tensor


@dataclass(slots=True, kw_only=True)
class Moment:
    """What a loop has in its hands."""

    job: Job
    model: Any
    optimizer: Any = None
    step: int = 0
    micro_batch: int = 0
    kept: list[Any] = field(default_factory=list)  # what the script holds on to

    @property
    def last(self) -> bool:
        """Whether it is the step's last micro-batch."""
        return self.micro_batch == self.job.micro_batches - 1

    def tokens(self, length: int | None = None) -> Tensor:
        """A batch on the device."""
        job = self.job
        shape = (job.batch, length or job.length)
        return torch.randint(0, job.vocabulary, shape, device="cuda")


Hook = Callable[[Moment], None]


def nothing(moment: Moment) -> None:
    """What most jobs do there."""


class Block(nn.Module):
    """The products of a transformer's block."""

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or 4 * width
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The residual."""
        y: Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return y


class Decoder(nn.Module):
    """An embedding, blocks, a norm, a head."""

    def __init__(self, job: Job, layers: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(job.vocabulary, job.width)
        self.layers = nn.ModuleList(layers or blocks_of(job))
        self.norm = nn.LayerNorm(job.width)
        self.head = nn.Linear(job.width, job.vocabulary, bias=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the head gets."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.norm(x)
        return y

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.hidden(tokens))
        return logits


def blocks_of(job: Job) -> list[nn.Module]:
    """The usual layers."""
    return [Block(job.width) for _ in range(job.blocks)]


def decoder(job: Job) -> nn.Module:
    """The usual model."""
    return Decoder(job)


def by_block(model: Any, job: Job) -> None:
    """Each block a unit, the rest in the root."""
    for layer in model.layers:
        fully_shard(layer, **job.options())
    fully_shard(model, **job.options())


def root_only(model: Any, job: Job) -> None:
    """One unit."""
    fully_shard(model, **job.options())


def with_tables(model: Any, job: Job) -> None:
    """Embedding, blocks, norm and head apart: what C01 ends at."""
    options = job.options()
    fully_shard(model.embedding, **options)
    for layer in model.layers:
        fully_shard(layer, **options)
    last = {**options, "reshard_after_forward": False}
    fully_shard([model.norm, model.head], **last)
    fully_shard(model, **options)


def adamw(moment: Moment) -> torch.optim.Optimizer:
    """The fused one, over what is trained."""
    return torch.optim.AdamW(trained(moment.model), lr=1e-4, fused=True)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Its trainable parameters."""
    return [p for p in model.parameters() if p.requires_grad]


def cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of tokens with themselves."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def loss_of(moment: Moment) -> Tensor:
    """One forward."""
    tokens = moment.tokens()
    return cross_entropy(moment.model(tokens), tokens)


def go_back(loss: Any) -> None:
    """Its backward, of which torch has no type."""
    loss.backward()


def backward(moment: Moment) -> None:
    """One micro-batch's forward and backward."""
    go_back(moment.job.loss(moment))


def one_step(moment: Moment) -> None:
    """Micro-batches, then the optimizer."""
    job = moment.job
    for moment.micro_batch in range(job.micro_batches):
        job.before(moment)
        job.run(moment)
    job.between(moment)
    moment.optimizer.step()
    moment.optimizer.zero_grad()
    job.after(moment)


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
NARROW = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
"""Gradients are reduced in bfloat16, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained, on what, and what else the loop does."""

    world: int = 8
    node: int = 8
    wire: str = "nvlink4"
    host: float = 1.0  # times slower than a server's
    memory_gib: float | None = None  # that the job may use
    environment: Mapping[str, str] = field(default_factory=dict)
    width: int = 2048
    blocks: int = 8
    batch: int = 8
    length: int = 1024
    vocabulary: int = 4096
    micro_batches: int = 1
    steps: int = 6
    precision: MixedPrecisionPolicy | None = BF16
    sharding: Mapping[str, Any] = field(default_factory=dict)  # of each fully_shard
    mesh: Callable[[], Any] | None = None
    build: Callable[[Job], nn.Module] = decoder
    prepare: Callable[[Any], None] = lambda model: None  # before it is sharded
    shard: Callable[[Any, Job], None] = by_block
    settle: Callable[[Any], None] = lambda model: None  # after it is sharded
    optimizer: Callable[[Moment], Any] = adamw
    early_optimizer: bool = False
    before: Hook = nothing  # each micro-batch
    loss: Callable[[Moment], Tensor] = loss_of
    run: Hook = backward
    between: Hook = nothing  # backward and the optimizer's step
    after: Hook = nothing  # each step
    iteration: Hook = one_step

    def options(self) -> dict[str, Any]:
        """Arguments of each `fully_shard`."""
        given: dict[str, Any] = {}
        if self.precision is not None:
            given["mp_policy"] = self.precision
        if self.mesh is not None:
            given["mesh"] = self.mesh()
        return given | dict(self.sharding)


def train(job: Job) -> None:
    """What its script does."""
    dist.init_process_group("nccl")
    model = job.build(job).to("cuda")
    job.prepare(model)
    moment = Moment(job=job, model=model)
    if job.early_optimizer:
        moment.optimizer = job.optimizer(moment)
    job.shard(model, job)
    job.settle(model)
    if not job.early_optimizer:
        moment.optimizer = job.optimizer(moment)
    for moment.step in range(job.steps):
        job.iteration(moment)


def chain(forward: int = 1, backward: int = 1) -> Callable[[Any], None]:
    """Explicit prefetch over `model.layers`, so many units ahead."""

    def settle(model: Any) -> None:
        set_chain(list(model.layers), forward, backward)

    return settle


def set_chain(layers: list[Any], forward: int = 1, backward: int = 1) -> None:
    """Explicit prefetch in the order in which modules run."""
    for at, layer in enumerate(layers):
        if ahead := layers[at + 1 : at + 1 + forward]:
            layer.set_modules_to_forward_prefetch(ahead)
        if behind := layers[max(at - backward, 0) : at][::-1]:
            layer.set_modules_to_backward_prefetch(behind)
