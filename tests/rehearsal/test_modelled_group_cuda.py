"""The wire on CUDA: what is put on which stream, in order.

torch.cuda is stood in for, so that this runs anywhere; what a device makes of it
is in `tests/benchmarks/gpu.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from fsdpdoctor.rehearsal import modelled_group
from fsdpdoctor.rehearsal.modelled_group import WireGroup, World
from fsdpdoctor.rehearsal.modelled_work import Transfer
from fsdpdoctor.schema import Kind
from tests.networks import uniform

DEVICE = torch.device("cuda", 0)


class FakeStream:
    """A CUDA stream that notes what is put on it."""

    def __init__(self, name: str, put: list[str]) -> None:
        self.name = name
        self.put = put

    def wait_stream(self, other: FakeStream) -> None:
        """As torch.cuda.Stream."""
        self.put.append(f"{self.name} waits for stream {other.name}")

    def wait_event(self, event: FakeEvent) -> None:
        """As torch.cuda.Stream."""
        self.put.append(f"{self.name} waits for {event.at}")


class FakeEvent:
    """A CUDA event: knows where it was recorded."""

    at = ""

    def record(self, stream: FakeStream) -> None:
        """As torch.cuda.Event."""
        self.at = f"event {len(stream.put)} of {stream.name}"
        stream.put.append(f"{stream.name} records")

    def query(self) -> bool:
        """As torch.cuda.Event."""
        return False


class FakeCuda:
    """What the wire uses of torch.cuda."""

    def __init__(self) -> None:
        self.put: list[str] = []
        self.current = FakeStream("current", self.put)

    def current_stream(self, device: object = None) -> FakeStream:
        """As torch.cuda."""
        return self.current

    def Stream(self, device: object) -> FakeStream:
        """As torch.cuda."""
        return FakeStream("side", self.put)

    def Event(self, enable_timing: bool) -> FakeEvent:
        """As torch.cuda."""
        return FakeEvent()

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """As torch.cuda."""
        before, self.current = self.current, stream
        yield
        self.current = before

    def _sleep(self, cycles: int) -> None:
        self.put.append(f"{self.current.name} spins {cycles}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A torch.cuda whose counter runs at two cycles per nanosecond."""
    fake = FakeCuda()
    monkeypatch.setattr(modelled_group, "_cuda", fake)
    monkeypatch.setattr(modelled_group, "cycles_per_ns", lambda device: 2.0)
    return fake


def spin(group: WireGroup, cuda: FakeCuda, *, blocking: bool) -> list[str]:
    """Put one collective of 500 ns on the device; what that put on streams."""
    before = len(cuda.put)
    transfer = Transfer(
        kind=Kind.ALL_GATHER,
        name="all_gather_single",
        group="0",
        seq=0,
        payload_bytes=0,
        issue_ns=0,
        start_ns=0,
        end_ns=500,
        blocking=blocking,
    )
    group._spin(transfer, DEVICE, 500, lambda: cuda.put.append("fills"))
    assert transfer.device is not None
    return cuda.put[before:]


def test_a_blocking_call_runs_on_the_current_stream(cuda: FakeCuda) -> None:
    """And the communicator's next one waits for it, whatever stream that is on."""
    world = World(wire=uniform(1e9), size=2, shard_size=2, node_size=2, log=[])
    group = WireGroup(0, [0, 1], world)

    assert spin(group, cuda, blocking=True) == [
        "current records",
        "fills",
        "current spins 1000",
        "current records",
    ]
    cuda.current = FakeStream("other", cuda.put)
    assert spin(group, cuda, blocking=True) == [
        "other waits for event 3 of current",
        "other records",
        "fills",
        "other spins 1000",
        "other records",
    ]


def test_a_call_with_a_handle_runs_beside_the_current_stream(cuda: FakeCuda) -> None:
    """On a stream of the group, after what the current stream has had so far."""
    world = World(wire=uniform(1e9), size=2, shard_size=2, node_size=2, log=[])
    group = WireGroup(0, [0, 1], world)

    assert spin(group, cuda, blocking=False) == [
        "side waits for stream current",
        "side records",
        "fills",
        "side spins 1000",
        "side records",
    ]
