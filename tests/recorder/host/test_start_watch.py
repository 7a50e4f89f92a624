"""Until the first step: what took how long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from fsdpdoctor.recorder.fsdp2.internals import TorchSymbols
from fsdpdoctor.recorder.host import start_watch
from fsdpdoctor.recorder.host.start_watch import StartWatch, process_age_ns
from fsdpdoctor.recorder.patching import ErrorBorder
from fsdpdoctor.recorder.storage.clocks import HostClock
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.run_writer import Heartbeat

MS = 1_000_000
torch_distributed: Any = dist


class Clock:
    """A host's clock that somebody moves."""

    def __init__(self) -> None:
        self.now = 1000 * MS

    def __call__(self) -> int:
        """The time."""
        return self.now


def recording(folder: Path) -> Recording:
    """One that fails on an error of ours."""

    def stop(reason: str) -> None:
        raise AssertionError(reason)

    return Recording(HostClock(), ErrorBorder(stop), Heartbeat(folder, 0))


def test_calls_inside_others_are_the_inner_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mesh of 50 ms makes its process group in 30; the first step ends 20 ms after
    its forward began; the process was 100 ms old.
    """
    clock = Clock()
    monkeypatch.setattr(start_watch, "perf_counter_ns", clock)
    monkeypatch.setattr(start_watch, "process_age_ns", lambda: 100 * MS)

    def init_process_group() -> None:
        clock.now += 30 * MS

    def init_device_mesh() -> None:
        dist.init_process_group()
        clock.now += 20 * MS

    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.setattr(dist, "init_device_mesh", init_device_mesh)
    watch = StartWatch(recording(tmp_path))
    watch.attach(TorchSymbols())
    clock.now += 7 * MS
    torch_distributed.init_device_mesh()
    clock.now += 5 * MS
    assert watch.spec() is None
    watch.forward_began()
    clock.now += 20 * MS
    watch.forward_began()
    watch.step_ended(clock.now)
    watch.step_ended(clock.now + MS)

    spec = watch.spec()

    assert spec is not None
    assert spec.total_ns == (100 + 7 + 50 + 5 + 20) * MS
    assert spec.import_ns == 107 * MS
    assert (spec.init_ns, spec.mesh_ns, spec.wrap_ns) == (30 * MS, 20 * MS, 0)
    assert spec.first_step_ns == 20 * MS
    assert dist.init_process_group is init_process_group


def test_a_process_has_an_age() -> None:
    """This one was there before, and gets older."""
    before = process_age_ns()
    time.sleep(0.03)
    after = process_age_ns()

    assert before is not None
    assert after is not None
    assert 0 < before < after


def test_what_began_before_us_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that is there already was made unseen."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    watch = StartWatch(recording(tmp_path))
    watch.step_ended(5)

    assert watch.spec() is None


def test_torch_finds_a_module_s_state_while_it_is_watched_and_after(
    tmp_path: Path,
) -> None:
    """Pipelines ask `fully_shard.state(module)`, which is kept under the function."""
    plain: Any = fully_shard
    watch = StartWatch(recording(tmp_path))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        watch.attach(TorchSymbols())
        model = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)))
        watched = plain.state(model)
        watch.forward_began()
        watch.step_ended(time.perf_counter_ns())
        after = plain.state(model)
    finally:
        dist.destroy_process_group()
    spec = watch.spec()

    assert watched is not None
    assert after is watched
    assert spec is not None
    assert spec.wrap_ns > 0
