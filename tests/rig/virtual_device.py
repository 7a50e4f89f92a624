"""Small trainings on a device that is not there, recorded, beside its own log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fsdpdoctor import recorder
from fsdpdoctor.network import NetworkModel, parse_network
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.storage.sampling import sampling_of
from fsdpdoctor.rehearsal.device.spec import load_spec
from fsdpdoctor.rehearsal.device.streams import DeviceLog, StreamWait
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice
from fsdpdoctor.rehearsal.device.virtual_session import Rig, on_device
from fsdpdoctor.rehearsal.modelled_work import Transfer
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing

BLOCKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained, and on what."""

    world_size: int = 16
    replicas: int = 1
    wire: NetworkModel = field(default_factory=lambda: parse_network("ib400"))
    width: int = 1024
    batch: int = 4
    length: int = 512
    blocks: int = BLOCKS
    forward_prefetch: int = 0  # units ahead, explicitly
    backward_prefetch: int | None = None  # None: FSDP2's own
    reshard: bool | int | None = None
    micro_batches: int = 1
    sync_last: bool = False  # gradients are reduced in the last micro-batch only
    separate_group: bool = False
    host_scale: float = 1.0
    memory_gib: float | None = None
    param_dtype: torch.dtype = torch.bfloat16
    steps: int = 3
    wrap: str = "blocks"  # "all": every module with parameters, "root": one unit
    head: bool = True
    vocabulary: int = 4096
    mesh: Callable[[], DeviceMesh] | None = None
    change: Callable[[nn.Module, Job], None] | None = None
    each_block: Callable[[torch.Tensor], None] | None = None


class Block(nn.Module):
    """Attention's products and an MLP."""

    def __init__(self, width: int, then: Callable[[torch.Tensor], None] | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self._then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The residual."""
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        if self._then is not None:
            self._then(x)
        return x


class Net(nn.Module):
    """An embedding, blocks, a head."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.embedding = nn.Embedding(job.vocabulary, job.width)
        self.layers = nn.ModuleList(
            Block(job.width, job.each_block) for _ in range(job.blocks)
        )
        self.head = nn.Linear(job.width, job.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(x)
        return logits


def build(job: Job) -> Any:
    """The model, sharded as the job says."""
    model: Any = Net(job).to("cuda")
    more: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=job.param_dtype)
    }
    if job.mesh is not None:
        more["mesh"] = job.mesh()
    if job.reshard is not None:
        more["reshard_after_forward"] = job.reshard
    if job.wrap == "all":
        for layer in model.layers:
            for part in (layer.norm, layer.up, layer.down):
                fully_shard(part, **more)
    elif job.wrap == "blocks":
        for layer in model.layers:
            fully_shard(layer, **more)
    fully_shard(model, **more)
    layers = list(model.layers)
    if job.forward_prefetch:
        for i, layer in enumerate(layers):
            layer.set_modules_to_forward_prefetch(
                layers[i + 1 : i + 1 + job.forward_prefetch]
            )
    if job.backward_prefetch is not None:
        for i, layer in enumerate(layers):
            before = layers[max(i - job.backward_prefetch, 0) : i]
            layer.set_modules_to_backward_prefetch(before[::-1] or [layer])
    if job.separate_group:
        model.set_separate_reduce_scatter_group()
    if job.change is not None:
        job.change(model, job)
    return model


def train(job: Job) -> None:
    """What a script does."""
    dist.init_process_group("nccl")
    model = build(job)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(job.steps):
        for at in range(job.micro_batches):
            if job.sync_last:
                model.set_requires_gradient_sync(at == job.micro_batches - 1)
            tokens = torch.randint(0, 4096, (job.batch, job.length), device="cuda")
            logits = model(tokens).flatten(0, 1)
            loss: Any = nn.functional.cross_entropy(logits, tokens.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@dataclass(slots=True, kw_only=True)
class Log:
    """What the device and the wire say of themselves."""

    device: DeviceLog = field(default_factory=DeviceLog)
    transfers: list[Transfer] = field(default_factory=list)
    rig: Rig | None = None

    def stood_still(self, stream: int = 0) -> list[StreamWait]:
        """The waits of a stream that held it up."""
        return [
            w for w in self.device.waits if w.stream == stream and w.end_ns > w.start_ns
        ]


@contextmanager
def rehearsed(job: Job) -> Iterator[Log]:
    """On the device, without a recorder."""
    spec = load_spec("h100")
    if job.memory_gib is not None:
        spec = replace(spec, memory_gib=job.memory_gib + spec.context_gib)
    log = Log()
    device = VirtualDevice(spec, host_scale=job.host_scale, log=log.device)
    rehearsal = Rehearsal(
        wire=job.wire, world_size=job.world_size, replicas=job.replicas
    )
    with (
        rehearsing(rehearsal, log.transfers, device.collective),
        on_device(device) as log.rig,
    ):
        yield log


def record(job: Job, folder: Path) -> Log:
    """Train it, and leave a recorded run."""
    with rehearsed(job) as log:
        recorder.start(
            RecordingConfig(
                folder=folder,
                run_id="virtual",
                sampling=sampling_of(None, 1),
                source="rehearsal",
            )
        )
        try:
            train(job)
        finally:
            recorder.stop()
    return log


def launched(log: Log, since: int = 0) -> list[tuple[str, int]]:
    """Kernels of the device, from one on: their names, and how long each ran."""
    return [(k.name, k.end_ns - k.start_ns) for k in log.device.kernels[since:]]
