"""A job that tunes itself on a modelled device whose memory is tight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fsdpdoctor
from fsdpdoctor.quantities import GIB, MIB
from fsdpdoctor.rehearsal.device.spec import load_spec
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice
from fsdpdoctor.rehearsal.device.virtual_session import on_device
from fsdpdoctor.rehearsal.modelled_group import World
from tests.models import SleepBlock
from tests.networks import modelled_world, uniform
from tests.recorder.autotune.modelled import Looking, one_thread_tuning
from tests.simulate.kinds import units
from tests.simulate.networks import Row

WIDE = 4096
"""Of a square matrix: 64 MiB a block, in float32."""

BLOCKS = 6
MOST_STEPS = 2500


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a job has come to."""

    gathered: int  # units that stay gathered after forward
    peak_bytes: int  # of the allocator, and so of the device
    retries: int  # of the allocator, with all that it had cached given back
    ooms: int


@contextmanager
def device_of(capacity_bytes: int) -> Iterator[VirtualDevice]:
    """Eight ranks; this one's device has so much memory, none of it a context's."""
    spec = replace(
        load_spec("h100"), comm_sms=0, context_gib=0.0, memory_gib=capacity_bytes / GIB
    )
    device = VirtualDevice(spec)
    wire = uniform(20e9)
    world = World(
        wire=wire, size=8, shard_size=8, node_size=8, virtual=device.collective
    )
    with modelled_world(world), on_device(device):
        yield device


def steps() -> Iterator[None]:
    """A training of blocks that would best all stay gathered."""
    layers: list[nn.Module] = [
        SleepBlock(WIDE, 1_000_000, 2_000_000, []) for _ in range(BLOCKS)
    ]
    model: Any = Row(layers, embeds=False, head=False).to("cuda")
    units(model, model.layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    while True:
        x = torch.ones(2, WIDE, device="cuda", requires_grad=True)
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
        # As who reads the loss: a host that never waits is ahead of a modelled device
        # by all that it has to do, and no step of it would ever be over.
        torch.cuda.synchronize()
        yield


def plain(capacity_bytes: int) -> int:
    """What the job needs that is not tuned."""
    with device_of(capacity_bytes) as device:
        for _, _ in zip(steps(), range(20), strict=False):
            pass
        return device.allocator.peak_reserved


def tuned(folder: Path, capacity_bytes: int) -> Held:
    """Until nothing more is tried, and a while longer."""
    with (
        one_thread_tuning(),
        device_of(capacity_bytes) as device,
        fsdpdoctor.record(folder, every=1, autotune=True),
    ):
        training = steps()
        for _ in range(MOST_STEPS):
            next(training)
            if Looking.now.over:
                break
        for _ in range(20):
            next(training)
        assert Looking.now.over
        assert not Looking.now.failed
        said = Looking.now.apply.get("units", {}).values()
        it = device.allocator
        return Held(
            gathered=sum(one.get("reshard_after_forward") is False for one in said),
            peak_bytes=it.peak_reserved,
            retries=it.retries,
            ooms=it.ooms,
        )


@pytest.mark.slow
def test_memory_is_never_exceeded_and_what_fits_is_kept(tmp_path: Path) -> None:
    """From a device that the job just fits on to one that has room for all: in no step
    has the allocator to give anything back, and the more room there is, the more units
    stay gathered, one by one. The sixth would save nothing.
    """
    needs = plain(16 * GIB)
    kept = []
    for more in range(0, 400, 40):
        capacity = needs + more * MIB
        held = tuned(tmp_path / str(more), capacity)
        assert (held.retries, held.ooms) == (0, 0)
        assert held.peak_bytes <= capacity
        kept.append(held.gathered)

    assert kept == [0, 2, 2, 3, 3, 4, 4, 5, 5, 5]
