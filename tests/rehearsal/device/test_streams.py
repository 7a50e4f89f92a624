"""Streams are numbers; what waits takes the larger one."""

from __future__ import annotations

from fsdpdoctor.rehearsal.device.host_clock import HostClock
from fsdpdoctor.rehearsal.device.streams import StreamTimes, elapsed_ms


def times(launch_ns: int = 0) -> StreamTimes:
    """Two streams, at time 0."""
    found = StreamTimes(HostClock(0), launch_ns)
    found.new_stream()
    found.new_stream()
    return found


def test_work_starts_when_stream_and_host_are_there() -> None:
    """On an idle stream, a launch after the host's call; on a busy one, at its end."""
    streams = times(launch_ns=3)
    assert streams.run(0, 100) == (3, 103)
    assert streams.run(0, 100) == (103, 203)
    streams.clock.advance(500)
    assert streams.run(0, 100) == (503, 603)


def test_waiting_takes_the_later_moment() -> None:
    """The other stream's end, or nothing where that has passed."""
    streams = times()
    streams.run(0, 100)
    streams.wait(1, streams.free_ns(0))
    assert streams.run(1, 10) == (100, 110)
    streams.wait(0, 50)
    assert streams.free_ns(0) == 100


def test_collectives_slow_what_computes_meanwhile() -> None:
    """A tenth of the SMs: 90 of 100 ns of work are done while one of 100 ns runs."""
    streams = times()
    streams.slow_down(0.1)
    assert streams.run_collective(1, 100, "all_gather") == (0, 100)
    assert streams.run(0, 45) == (0, 50)
    assert streams.run(0, 50) == (50, 105)
    assert streams.run(0, 50) == (105, 155)


def test_elapsed_time_loses_no_nanosecond() -> None:
    """Not even against a moment of days ago."""
    day = 86_400_000_000_000
    assert round(elapsed_ms(0, 30 * day + 1) * 1e6) == 30 * day + 1


def test_a_sleep_passes_at_once() -> None:
    """In the clock's own thread."""
    clock = HostClock(0)
    clock.functions()["sleep"](2.5)
    assert clock.now_ns == 2_500_000_000
    assert clock.functions()["monotonic"]() == 2.5
