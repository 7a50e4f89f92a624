"""One process trains as rank 0 of N on a modelled wire; what happened is known.

The truth is the wire's own log and the sleeps' lengths: what a recorder says of
such a run can be held against it, on however busy a machine.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fsdpdoctor import recorder
from fsdpdoctor.network import NetworkModel
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.storage.sampling import EveryStep, Sampling
from fsdpdoctor.rehearsal.modelled_group import World
from fsdpdoctor.rehearsal.modelled_work import Transfer
from fsdpdoctor.schema import Kind
from tests.models import Spins, Stack, sleepers
from tests.networks import due_ns, modelled_world


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained, on what network, and how FSDP2 is told to do it."""

    wire: NetworkModel
    world_size: int = 8
    replicas: int = 1  # more: HSDP
    blocks: int = 6
    width: int = 64
    forward_ns: int = 0  # of a block
    backward_ns: int = 0
    depth: int = 0  # explicit prefetch, forward and backward; 0: FSDP2's default
    unshard_async_op: bool = False  # without it every gather blocks, on CPU
    reshard_after_forward: bool | int | None = None
    micro_batches: int = 1
    reduce_each: bool = True  # False: gradients are reduced on the last micro-batch
    steps: int = 3
    device: str = "cpu"

    def model(self, spins: Spins) -> Stack:
        """The model of this job, not yet sharded."""
        lengths = (self.forward_ns, self.backward_ns)
        return sleepers(self.blocks, self.width, *lengths, spins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What really happened."""

    log: tuple[Transfer, ...]
    steps: tuple[tuple[int, int], ...]  # perf_counter_ns, start and end
    losses: tuple[float, ...]  # of each micro-batch
    spins: Spins  # on CUDA: each block's, in order

    def transfers(self, step: int, *kinds: Kind) -> list[Transfer]:
        """The collectives that a step issued, in order."""
        start_ns, end_ns = self.steps[step]
        return [
            transfer
            for transfer in self.log
            if transfer.kind in kinds and start_ns <= transfer.issue_ns < end_ns
        ]

    def exposed_ns(self, step: int, *kinds: Kind) -> int:
        """How long the host stood still for these collectives in a step."""
        return sum(transfer.exposed_ns for transfer in self.transfers(step, *kinds))

    def due_ns(self, step: int, *kinds: Kind) -> int:
        """The same, had the machine always woken it up in time."""
        return sum(due_ns(transfer) for transfer in self.transfers(step, *kinds))

    def durations_ns(self, step: int, kind: Kind) -> list[int]:
        """How long each collective of a step had the communicator, in order."""
        return [t.end_ns - t.start_ns for t in self.transfers(step, kind)]


def shard(model: Stack, job: Job) -> Any:
    """Each block a unit, the head in the root, with the job's prefetch lists."""
    options: dict[str, Any] = {}
    if job.replicas > 1:
        shape = (job.replicas, job.world_size // job.replicas)
        options["mesh"] = init_device_mesh(
            job.device, shape, mesh_dim_names=("replicate", "shard")
        )
    if job.reshard_after_forward is not None:
        options["reshard_after_forward"] = job.reshard_after_forward
    for layer in model.layers:
        fully_shard(layer, **options)
    options.pop("reshard_after_forward", None)  # the root never reshards by default
    root: Any = fully_shard(model, **options)
    if job.unshard_async_op:
        root._set_unshard_async_op(True)
    if job.depth:
        set_prefetch(list(model.layers), job.depth)
    return root


def set_prefetch(layers: list[Any], depth: int) -> None:
    """Each layer prefetches the next `depth` in forward, the last in backward."""
    for i, layer in enumerate(layers):
        if ahead := layers[i + 1 : i + 1 + depth]:
            layer.set_modules_to_forward_prefetch(ahead)
        if behind := layers[max(i - depth, 0) : i][::-1]:
            layer.set_modules_to_backward_prefetch(behind)


def _step(model: Any, optimizer: torch.optim.Optimizer, job: Job) -> list[torch.Tensor]:
    losses = []
    for micro_batch in range(job.micro_batches):
        last = micro_batch == job.micro_batches - 1
        if not job.reduce_each:
            model.set_requires_gradient_sync(last)
        # The first block's input needs a gradient, as an embedding's output would.
        x = torch.ones(2, job.width, device=job.device, requires_grad=True)
        loss = model(x)
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
    return losses


_CALLS = (
    "all_gather_single",
    "all_gather_into_tensor",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "all_reduce",
)
"""What FSDP2 calls in torch.distributed, in one version or another."""


@contextmanager
def timing_calls(log: list[Transfer]) -> Iterator[None]:
    """A stopwatch around torch.distributed's calls.

    A call that blocks has the host stand still from its first instruction to its
    last, a little longer than the process group inside it sees.
    """
    originals = {name: getattr(dist, name) for name in _CALLS if hasattr(dist, name)}

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            seen, start_ns = len(log), time.perf_counter_ns()
            result = original(*args, **kwargs)
            end_ns = time.perf_counter_ns()
            for transfer in log[seen:]:
                if transfer.blocking:
                    transfer.waits[:] = [(start_ns, end_ns)]
            return result

        return call

    for name, original in originals.items():
        setattr(dist, name, timed(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


Recording = Callable[[], AbstractContextManager[object]]
"""What surrounds the training: a recorder, or nothing."""


def train_fake(
    job: Job,
    recording: Recording = nullcontext,
    on_model: Callable[[nn.Module], None] = lambda model: None,
) -> Truth:
    """Train; the truth of it. The recording, if any, starts before the model is made.

    `on_model` is called once with the sharded model, before the first step.
    """
    log: list[Transfer] = []
    world = World(
        wire=job.wire,
        size=job.world_size,
        shard_size=job.world_size // job.replicas,
        node_size=job.world_size,
        log=log,
    )
    starts: list[int] = []
    spins: Spins = []
    losses: list[torch.Tensor] = []
    with one_thread(), modelled_world(world), timing_calls(log), recording():
        model = shard(job.model(spins).to(job.device), job)
        on_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(job.steps):
            starts.append(time.perf_counter_ns())
            losses += _step(model, optimizer, job)
        starts.append(time.perf_counter_ns())
    return Truth(
        log=tuple(log),
        steps=tuple(pairwise(starts)),
        losses=tuple(float(loss) for loss in losses),
        spins=spins,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: the machine is shared with other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def recording_to(folder: Path, sampling: Sampling | None = None) -> Iterator[None]:
    """Record what is trained inside, by default each step of it, into `folder`."""
    recorder.start(
        RecordingConfig(
            folder=folder,
            run_id="rig",
            sampling=sampling or EveryStep(),
            source="rehearsal",
            notes=("losses are meaningless",),
        )
    )
    try:
        yield
    finally:
        recorder.stop()
