"""Memory budgets without a run: what each way of sharding needs on every rank.

[Note: Budgets]
The figures of FSDP2 are not formulas: a `Step` of the model goes through the simulator
of FSDP2's own rules, and the peak is where all that is held at once is largest, with
activations growing through forward and shrinking through backward. What stays is
derived from dtypes. Not in it: the allocator's own rounding and fragmentation, CUDA's
context and NCCL's buffers (together 1 to 3 GiB a device), and temporary results of
single operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fsdpdoctor.errors import UsageError
from fsdpdoctor.planning.model_shape import ModelShape
from fsdpdoctor.schema import ITEMSIZE, ROOT
from fsdpdoctor.simulate.engine.memory import Peak, peak_of
from fsdpdoctor.simulate.engine.opcodes import Held
from fsdpdoctor.simulate.engine.step import (
    CommCost,
    CommCosts,
    Mesh,
    MicroBatch,
    Node,
    Param,
    Segment,
    Step,
    Unit,
)

OPTIMIZERS: Mapping[str, float] = {
    "adamw": 8.0,
    "adamw8bit": 2.0,
    "sgd-momentum": 4.0,
    "sgd": 0.0,
}
"""Bytes of optimizer state for each parameter: two float32 moments, two of one byte
(block scales left out), one float32 momentum, none."""

LOGITS_COPIES = 3
"""Cross entropy works on logits in float32: as backward begins, the logarithms that it
saved, the gradient of the picked ones and that of all are there at once. Beside them
stand the logits in the compute dtype, which the script still holds."""

TIED_COPIES = 2
"""A matrix that embeds and projects back has one gradient of each use. They are added
as backward ends, out of place: two such gradients stand beside the sum."""

EMBEDDING = 0
"""The first segment of a step of `step_of`: what the root does before its blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the model is trained."""

    world_size: int
    replicas: int = 1
    stored_dtype: str = "float32"
    compute_dtype: str | None = "bfloat16"  # None: the stored one
    reduce_dtype: str | None = "float32"
    optimizer: str = "adamw"
    batch: int | None = None  # sequences in a micro-batch; None: no activations
    sequence: int | None = None  # tokens in each
    micro_batches: int = 1
    flash_attention: bool = True  # no attention weights are kept
    checkpointing: bool = False

    def __post_init__(self) -> None:
        for name in ("stored_dtype", "compute_dtype", "reduce_dtype"):
            dtype = getattr(self, name)
            if dtype is not None and dtype not in ITEMSIZE:
                raise UsageError(
                    f"{name} is {dtype!r}; expected one of {', '.join(ITEMSIZE)}"
                )
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(
                f"optimizer is {self.optimizer!r}; expected one of "
                f"{', '.join(OPTIMIZERS)}"
            )
        if self.world_size < 1 or self.world_size % self.replicas:
            raise UsageError(
                f"{self.world_size} ranks cannot be {self.replicas} replicas of a shard"
            )

    @property
    def working_dtype(self) -> str:
        """That of the gathered parameters and the activations."""
        return self.compute_dtype or self.stored_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """One strategy's bytes on a rank's device, at the step's peak."""

    strategy: str
    parameters: int
    optimizer: int
    gradients: int  # sharded and not
    gathered: int  # unsharded parameters and gathers' outputs, or autocast's copies
    buffers: int  # of reductions
    activations: int | None  # None: not known
    host: int = 0  # offloaded, in the memory of the host

    @property
    def total(self) -> int:
        """Of what is known."""
        return (
            self.parameters
            + self.optimizer
            + self.gradients
            + self.gathered
            + self.buffers
            + (self.activations or 0)
        )


def budgets(shape: ModelShape, how: Training) -> list[MemoryBudget]:
    """Every strategy, from the one that needs most to the one that needs least."""
    found = [_ddp(shape, how)]
    sharded = replace(how, replicas=1)
    found.append(_fsdp2("zero1", shape, sharded, _keep_all))
    found.append(_fsdp2("zero2", shape, sharded, _keep_parameters))
    if how.replicas > 1:
        found.append(_fsdp2("hsdp", shape, how, _as_it_is))
    found.append(_fsdp2("zero3", shape, sharded, _as_it_is))
    found.append(_offloaded(found[-1], shape, sharded))
    return found


def _ddp(shape: ModelShape, how: Training) -> MemoryBudget:
    """DistributedDataParallel under autocast: everything whole on every rank."""
    stored = ITEMSIZE[how.stored_dtype]
    trainable = shape.trainable_numel
    copies = 0
    if how.working_dtype != how.stored_dtype:
        # Autocast keeps a cast copy of every weight until its context ends.
        copies = shape.numel * ITEMSIZE[how.working_dtype]
    return MemoryBudget(
        strategy="ddp",
        parameters=shape.numel * stored,
        optimizer=round(trainable * OPTIMIZERS[how.optimizer]),
        gradients=trainable * stored,
        gathered=copies,
        buffers=trainable * stored,  # its buckets; gradient_as_bucket_view saves them
        activations=activations(shape, how),
    )


Policy = Callable[[Step], Step]


def _as_it_is(step: Step) -> Step:
    return step


def _keep_parameters(step: Step) -> Step:
    """ZeRO-2: gathered once in forward, freed after backward."""
    units = tuple(replace(u, reshard_after_forward=False) for u in step.units)
    return replace(step, units=units)


def _keep_all(step: Step) -> Step:
    """ZeRO-1: unsharded gradients add up, parameters stay, until the last one."""
    before = MicroBatch(
        sync=False, reshard_after_backward=False, is_last_backward=False
    )
    count = max(len(step.micro_batches), 2)
    flags = (*(before for _ in range(count - 1)), MicroBatch())
    return replace(_keep_parameters(step), micro_batches=flags)


def _fsdp2(name: str, shape: ModelShape, how: Training, policy: Policy) -> MemoryBudget:
    step = policy(step_of(shape, how))
    peak = peak_of(step)
    held = peak.held
    shards = step.mesh.shard
    known = shape.activations is not None and how.batch is not None
    of_tied = peak.other_bytes if peak.segment == EMBEDDING else 0
    gradients = held.get(Held.GRADS, 0) + held.get(Held.SHARDED_GRADS, 0) + of_tied
    return MemoryBudget(
        strategy=name,
        parameters=_stored_bytes(step, shards),
        optimizer=_optimizer_bytes(step, shards, how),
        gradients=gradients,
        gathered=sum(
            held.get(kind, 0)
            for kind in (Held.GATHERED, Held.GATHER_OUTPUT, Held.POST_FORWARD)
        ),
        buffers=held.get(Held.REDUCE_INPUT, 0) + held.get(Held.REDUCE_OUTPUT, 0),
        activations=peak.other_bytes - of_tied if known else None,
    )


def _stored_bytes(step: Step, shards: int) -> int:
    return sum(
        u.padded(shards)[0] // shards * ITEMSIZE[u.orig_dtype] for u in step.units
    )


def _optimizer_bytes(step: Step, shards: int, how: Training) -> int:
    numel = sum(u.padded(shards)[1] // shards for u in step.units)
    return round(numel * OPTIMIZERS[how.optimizer])


def _offloaded(zero3: MemoryBudget, shape: ModelShape, how: Training) -> MemoryBudget:
    """CPUOffloadPolicy: shards, their gradients and the optimizer on the host."""
    step = step_of(shape, how)
    shards = step.mesh.shard
    grads = sum(u.sharded_grad_bytes(shards) for u in step.units)
    largest = max(
        u.padded(shards)[0] // shards * ITEMSIZE[u.orig_dtype] for u in step.units
    )
    peak: Peak = peak_of(step)
    on_device = peak.held.get(Held.SHARDED_GRADS, 0)
    return replace(
        zero3,
        strategy="offload",
        parameters=largest,  # one unit's shard at a time, on its way to the gather
        optimizer=0,
        gradients=zero3.gradients - on_device,
        host=zero3.parameters + zero3.optimizer + grads,
    )


# -- the model as a step


def step_of(shape: ModelShape, how: Training) -> Step:
    """The model, block-wrapped, under FSDP2 with a default policy."""
    free = CommCost(latency_ns=0, bytes_per_second=1e18)
    units, items = [_unit(ROOT, shape.root, how, root=True)], []
    kept, full, logits = _by_block(shape, how)
    tied = TIED_COPIES * shape.tied_numel * ITEMSIZE[how.working_dtype]
    segments = [Segment(forward_ns=1, backward_ns=1, other_backward_bytes=tied)]
    for at, block in enumerate(shape.blocks):
        units.append(_unit(_fqn(at, block), block, how, root=False))
        before = at * kept
        segments.append(
            Segment(
                forward_ns=1,
                backward_ns=1,
                other_forward_bytes=before + full,
                other_backward_bytes=before + full,
            )
        )
        items.append(Node(units=(at + 1,), items=(at + 1,)))
    whole = len(shape.blocks) * kept + logits
    segments.append(
        Segment(
            forward_ns=1,
            backward_ns=1,
            other_forward_bytes=whole,
            other_backward_bytes=whole,
        )
    )
    shard = how.world_size // how.replicas
    step = Step(
        units=tuple(units),
        segments=tuple(segments),
        root=Node(units=(0,), items=(0, *items, len(segments) - 1)),
        mesh=Mesh(shard=shard, replicate=how.replicas),
        wires=CommCosts(all_gather=free, reduce_scatter=free, all_reduce=free),
        micro_batches=(MicroBatch(),) * how.micro_batches,
    )
    stays = _stored_bytes(step, shard) + _optimizer_bytes(step, shard, how)
    return replace(step, resident_bytes=stays)


def _fqn(at: int, block: tuple[Param, ...]) -> str:
    name = block[0].fqn if block else ""
    parts = name.split(".")
    index = next((i for i, part in enumerate(parts) if part == str(at)), None)
    return ".".join(parts[: index + 1]) if index is not None else f"layers.{at}"


def _unit(fqn: str, params: tuple[Param, ...], how: Training, *, root: bool) -> Unit:
    return Unit(
        fqn=fqn,
        params=params,
        orig_dtype=how.stored_dtype,
        param_dtype=how.compute_dtype,
        reduce_dtype=how.reduce_dtype,
        reshard_after_forward=not root,
        post_backward_at_end=root,
    )


def _by_block(shape: ModelShape, how: Training) -> tuple[int, int, int]:
    """Bytes that a block keeps, that it needs while it runs, and of the logits."""
    block = shape.activations
    if block is None or how.batch is None or how.sequence is None:
        return 0, 0, 0
    tokens = how.batch * how.sequence
    itemsize = ITEMSIZE[how.working_dtype]
    elements = block.kept
    if not how.flash_attention:
        elements += 2 * block.scores_per_key * how.sequence  # before and after softmax
    full = tokens * elements * itemsize
    kept = tokens * block.input * itemsize if how.checkpointing else full
    logits = tokens * shape.vocabulary * (itemsize + LOGITS_COPIES * 4)
    return kept, full, logits


def activations(shape: ModelShape, how: Training) -> int | None:
    """The most that is kept for backward at once; None where it is not known."""
    if shape.activations is None or how.batch is None:
        return None
    kept, full, logits = _by_block(shape, how)
    count = len(shape.blocks)
    return max(count * kept + logits, (count - 1) * kept + full)


def cost_of_tokens(
    tokens: int, tokens_per_second: float, world_size: int, price_per_hour: float | None
) -> tuple[float, float | None]:
    """Hours, and money where a device's hour has a price, for so many tokens.

    `tokens_per_second` is one device's.
    """
    if tokens_per_second <= 0:
        raise UsageError("tokens per second must be more than zero")
    hours = tokens / (tokens_per_second * world_size) / 3600
    return (
        hours,
        None if price_per_hour is None else hours * world_size * price_per_hour,
    )
