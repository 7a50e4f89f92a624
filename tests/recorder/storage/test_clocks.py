"""Device times on the host's axis, from events that stand in for torch's."""

from __future__ import annotations

import numpy as np
import pytest

from fsdpdoctor.quantities import MS, US
from fsdpdoctor.recorder.storage.clocks import CudaClock, HostClock
from fsdpdoctor.schema import NO_TIME


class Device:
    """A host and a device, each with its own clock; work ends when it is told to."""

    def __init__(self) -> None:
        self.host_ns = 1_000 * MS
        self.behind_ns = 0  # how long after its record an event happens
        self.idle_late_ns = 0  # the same on the stream that nothing else uses
        self.done_until_ns = 1 << 62  # on the host's axis
        self.made = 0
        self.synchronized = 0
        self.capturing = False
        self.drift = 0.0  # of the device's clock, as a share of the host's time

    def clock(self, *, one_queue: bool = False) -> CudaClock:
        """A clock over this device."""
        return CudaClock(
            idle_stream=None if one_queue else "idle",
            new_event=lambda: StandInEvent(self),
            current_stream=lambda: "compute",
            synchronize=self.synchronize,
            capturing=lambda: self.capturing,
            host_ns=lambda: self.host_ns,
        )

    def synchronize(self) -> None:
        """Count the calls: there may be one."""
        self.synchronized += 1


class StandInEvent:
    """What `torch.cuda.Event` does, float32 milliseconds included."""

    def __init__(self, device: Device) -> None:
        self._device = device
        device.made += 1
        self.at_ns = 0

    def record(self, stream: object) -> None:
        """Happen a while after now; in a capture a timing event is an error."""
        device = self._device
        assert not device.capturing
        waits_ns = device.idle_late_ns if stream == "idle" else device.behind_ns
        self.at_ns = round((device.host_ns + waits_ns) * (1 + device.drift))

    def query(self) -> bool:
        """Whether it has happened; to ask ends a capture."""
        assert not self._device.capturing
        return self.at_ns <= self._device.done_until_ns

    def elapsed_time(self, end_event: StandInEvent) -> float:
        """Milliseconds, as torch gives them."""
        return float(np.float32((end_event.at_ns - self.at_ns) / MS))


def resolve(clock: CudaClock, *ticks: int) -> list[int]:
    """The times of ticks."""
    times = clock.resolve(np.array(ticks, dtype=np.int64))
    return [int(time) for time in times]


def test_the_host_clock_s_marks_are_times() -> None:
    """They pass through, ascending."""
    clock = HostClock()
    ticks = np.array([clock.tick(), clock.tick()])

    assert clock.resolve(ticks).tolist() == ticks.tolist()
    assert ticks[0] <= ticks[1]
    assert clock.ready(clock.tick())


def test_events_become_host_times() -> None:
    """An event that happens 3 ms after its record is 3 ms later."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    device.behind_ns = 3 * MS
    first = clock.tick()
    device.host_ns += 10 * MS
    second = clock.tick("other stream")

    assert resolve(clock, second, first, 7, NO_TIME) == [
        1_013 * MS,
        1_003 * MS,
        7,
        NO_TIME,
    ]
    assert device.synchronized == 1


def test_far_from_the_first_base_a_step_is_as_exact() -> None:
    """A float32 of an hour in milliseconds is coarse; each step has its own base."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    ticks = []
    for _ in range(3_600):
        device.host_ns += 1_000 * MS
        clock.rebase()
        ticks.append(clock.tick())
        device.host_ns += 123_456
        ticks.append(clock.tick())
        begun, ended = resolve(clock, *ticks[-2:])
        clock.release(ticks[-2])

    assert abs((ended - begun) - 123_456) < 50
    assert abs(ended - device.host_ns) < 100 * US


def test_waits_for_no_event() -> None:
    """What has not happened is not ready, and asking does not change it."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    device.behind_ns = 5 * MS
    tick = clock.tick()
    device.done_until_ns = device.host_ns

    assert not clock.ready(tick)
    device.done_until_ns = device.host_ns + 5 * MS
    assert clock.ready(tick)
    assert device.synchronized == 1


def test_events_are_used_again() -> None:
    """A hundred steps of ten ticks need the events of three, bases included."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    before = 0
    for _ in range(100):
        clock.rebase()
        ticks = [clock.tick() for _ in range(10)]
        resolve(clock, *ticks)
        if before:
            clock.release(before)
        before = ticks[0]
        device.host_ns += MS

    assert device.made == 3 * (10 + 1) + 1


def test_a_released_mark_has_no_time() -> None:
    """It is said to be unknown, never computed from another event."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    old, kept = clock.tick(), clock.tick()
    resolve(clock, kept)
    clock.release(kept)

    assert resolve(clock, old, kept) == [NO_TIME, 1_000 * MS]


def test_no_event_happens_before_its_record() -> None:
    """Where the clocks have drifted apart, the step moves until that holds."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    device.host_ns += 4 * MS
    device.behind_ns = -2 * US  # the device's clock has fallen behind
    first = clock.tick()
    device.host_ns += MS
    device.behind_ns = 3 * US
    second = clock.tick()

    assert resolve(clock, first, second) == [1_004 * MS, 1_005 * MS + 5 * US]


@pytest.mark.parametrize("ppm", [-40, -5, 0, 5, 40])
def test_drift_does_not_pass_for_a_queue(ppm: int) -> None:
    """An hour of steps, each enqueued 300 ms before the device gets to it."""
    device = Device()
    clock = device.clock()
    device.host_ns = 0
    device.drift = ppm * 1e-6
    clock.rebase()
    device.behind_ns = 300 * MS
    for _ in range(3_600):
        device.host_ns += 1_000 * MS
        clock.rebase()
        tick = clock.tick()
        (time_ns,) = resolve(clock, tick)
        clock.release(tick)

    late_ns = time_ns - device.host_ns - 300 * MS

    # What 40 ppm make of the four seconds of the last bases, and of the 300 ms.
    assert abs(late_ns) <= 40e-6 * 4_300 * MS


def test_one_late_base_is_not_drift() -> None:
    """The device was busy with another process when it came: 80 us, once."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    times = []
    for step in range(8):
        device.host_ns += 1_000 * MS
        device.idle_late_ns = 80 * US if step == 5 else 0
        clock.rebase()
        device.behind_ns = 2 * MS
        times.append(resolve(clock, clock.tick())[0] - device.host_ns)

    assert all(abs(time - 2 * MS) < 100 for time in times)  # float32 milliseconds


def test_drift_stays_where_no_stream_is_idle() -> None:
    """With one hardware queue a base waits like all else: nothing is taken back."""
    device = Device()
    clock = device.clock(one_queue=True)
    clock.rebase()
    device.behind_ns = 5 * MS
    for _ in range(8):
        device.host_ns += 1_000 * MS
        clock.rebase()

    assert resolve(clock, clock.tick()) == [device.host_ns + 5 * MS]


def test_a_step_is_not_ready_before_its_base() -> None:
    """A base is on another stream than the ticks, and is asked for too."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    clock.rebase()
    device.behind_ns = -MS
    tick = clock.tick()
    device.done_until_ns = device.host_ns - 1

    assert not clock.ready(tick)


def test_records_and_asks_no_event_while_a_graph_is_captured() -> None:
    """Marks have no time then, and it is said once; what came before is ready after."""
    device = Device()
    clock = device.clock()
    clock.rebase()
    before = clock.tick()
    quiet = clock.warnings
    device.capturing = True

    clock.rebase()
    within = clock.tick()

    assert not clock.ready(before)
    device.capturing = False
    assert clock.ready(before)
    assert resolve(clock, before, within) == [1_000 * MS, NO_TIME]
    assert quiet == ()
    assert "".join(clock.warnings).startswith("a CUDA graph was captured: ")


def test_times_from_before_the_device_was_known_stay() -> None:
    """A recording begins on the host's clock; its ticks are times on either."""
    device = Device()
    clock = device.clock()
    early = HostClock().tick()
    clock.rebase()

    assert resolve(clock, early, clock.tick()) == [early, 1_000 * MS]
