"""`torch.cuda.Stream` and `Event` order work in virtual time as CUDA orders it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fsdpdoctor.quantities import MS
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice
from tests.rig.virtual_device import Log

cuda: Any = torch.cuda


@pytest.fixture
def device(log: Log) -> VirtualDevice:
    """The device of a rehearsal."""
    assert log.rig is not None
    return log.rig.device


def test_a_stream_knows_whether_it_is_done(device: VirtualDevice) -> None:
    """`query` does not wait, `synchronize` does, at the script's own line."""
    stream = cuda.Stream()
    with cuda.stream(stream):
        cuda._sleep(5 * MS)
    assert not stream.query()
    assert cuda.current_stream().query()
    before = device.clock.now_ns
    stream.synchronize()
    assert stream.query()
    assert device.clock.now_ns - before >= 5 * MS
    (place,) = device.tally.syncs
    assert place.rpartition(":")[0].endswith("test_stream_types.py")


def test_streams_are_entered_and_left(device: VirtualDevice) -> None:
    """As a context of their own and as `torch.cuda.stream`'s; they nest."""
    default = cuda.current_stream()
    one, two = cuda.Stream(), cuda.Stream()
    with one:
        assert cuda.current_stream() == one
        with two, cuda.stream(None):
            assert cuda.current_stream() == two
        assert cuda.current_stream() == one
    assert cuda.current_stream() == default == cuda.default_stream()
    cuda.set_stream(two)
    assert cuda.current_stream() == two


def test_streams_are_told_apart(device: VirtualDevice) -> None:
    """By their number, as keys and in print; none is captured."""
    one, two = cuda.Stream(), cuda.Stream(priority=-1)
    assert one != two
    assert one != "a stream"
    assert len({one, two, cuda.current_stream()}) == 3
    assert one.stream_id == one.cuda_stream == one.number
    assert two.priority == -1
    assert repr(one) == f"<virtual stream {one.number}>"
    assert not one.is_capturing()
    assert one.device == torch.device("cuda", 0)


def test_one_stream_waits_for_another(device: VirtualDevice, log: Log) -> None:
    """By all that is on it, and by an event; the host waits for neither."""
    side = cuda.Stream()
    with cuda.stream(side):
        cuda._sleep(5 * MS)
    event = side.record_event()
    with cuda.stream(side):
        cuda._sleep(5 * MS)
    first, second = (k.end_ns for k in log.device.kernels[-2:])
    before = device.clock.now_ns
    cuda.current_stream().wait_event(event)
    cuda._sleep(10)
    assert log.device.kernels[-1].start_ns == first
    cuda.current_stream().wait_stream(side)
    cuda._sleep(10)
    assert log.device.kernels[-1].start_ns == second
    assert device.clock.now_ns == before


def test_an_event_is_a_moment_of_its_stream(device: VirtualDevice) -> None:
    """The host can ask and wait for it; two of them tell what is between."""
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    assert start.query()
    with pytest.raises(RuntimeError, match="Both events must be recorded"):
        start.elapsed_time(end)
    cuda._sleep(1)
    start.record()
    cuda._sleep(5 * MS)
    given = cuda.current_stream().record_event(end)
    assert given is end
    assert not end.query()
    end.synchronize()
    assert end.query()
    assert device.clock.now_ns >= end.time_ns
    assert start.elapsed_time(end) == pytest.approx(5.0, abs=0.01)


def test_an_event_that_was_never_recorded_holds_nobody_up(
    device: VirtualDevice,
) -> None:
    """As CUDA has it."""
    before = device.times.free_ns(0)
    cuda.Event().wait()
    cuda.Event().synchronize()
    assert device.times.free_ns(0) - before == device.host.sync_ns
