"""FD302, allocator-pressure."""

from __future__ import annotations

import pytest

from fsdpdoctor.detectors.allocator_pressure import allocator_pressure
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import GIB
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COUNTER_ALLOC_RETRIES,
    Counters,
    Evidence,
    MemorySamples,
)
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import CUDA, found, not_judged, only
from tests.rig.changed import replace

DEVICE = replace(CUDA, evidence=(*RECORDED, Evidence.ALLOCATOR))


def with_memory(data: RankData, growth: int = 0, **known: int) -> RankData:
    """One sample of memory per step, its allocated bytes growing."""
    steps = tuple(
        replace(
            record,
            memory=MemorySamples.build(
                1, allocated_bytes=GIB + growth * record.step, **known
            ),
        )
        for record in data.steps
    )
    return replace(data, steps=steps)


def retrying(per_step: int) -> RankData:
    """A rank whose allocator's retries rise by so many per step."""
    data = draw("forward 00", DEVICE, counters={COUNTER_ALLOC_RETRIES: 0})
    steps = tuple(
        replace(
            record,
            counters=Counters.build(1, name=0, time_ns=0, value=per_step * at),
        )
        for at, record in enumerate(data.steps)
    )
    return replace(data, steps=steps)


def test_a_retry_in_a_steady_step_is_critical() -> None:
    """Ten retries over six steps."""
    finding = only(allocator_pressure, measured(retrying(2)))

    assert finding.severity == Severity.CRITICAL
    assert finding.ranks == (0,)
    assert finding.evidence["retries"] == {"0": 10}


def test_memory_that_is_reserved_and_not_used() -> None:
    """16 GiB held for a peak of 10."""
    data = with_memory(
        draw("forward 00", DEVICE), peak_bytes=10 * GIB, reserved_bytes=16 * GIB
    )

    finding = only(allocator_pressure, measured(data))

    assert finding.severity == Severity.WARNING
    assert finding.cost_bytes == 6 * GIB


@pytest.mark.parametrize(("device_gib", "pressing"), [(24, True), (80, False)])
def test_what_is_held_presses_where_it_is_half_the_device(
    device_gib: int, pressing: bool
) -> None:
    """The same 16 GiB for a peak of 10: of 24, and of 80."""
    data = with_memory(
        draw("forward 00", DEVICE), peak_bytes=10 * GIB, reserved_bytes=16 * GIB
    )
    data = replace(data, header=replace(data.header, device_bytes=device_gib * GIB))

    assert bool(found(allocator_pressure, measured(data))) == pressing


def test_memory_that_grows_is_a_leak() -> None:
    """32 MiB more in each of 24 steps, on a peak of 2 GiB."""
    data = with_memory(
        draw("forward 00", DEVICE, steps=24), growth=32 << 20, peak_bytes=2 * GIB
    )

    finding = only(allocator_pressure, measured(data))

    assert finding.cost_bytes == 32 << 20
    assert finding.severity == Severity.WARNING


def test_a_quiet_allocator_is_no_finding() -> None:
    """Retries of the warm-up stay where they were; little is spare; no growth."""
    data = with_memory(retrying(0), peak_bytes=10 * GIB, reserved_bytes=12 * GIB)

    assert found(allocator_pressure, measured(data)) == []


def test_without_an_allocator_it_cannot_tell() -> None:
    """A CPU run has none; and a run needs a whole step."""
    assert not_judged(allocator_pressure, measured(draw("forward 00"))).needs == (
        Evidence.ALLOCATOR,
    )
    empty = measured(draw("forward 00", DEVICE, steps=0))
    assert not_judged(allocator_pressure, empty).needs == (Evidence.STEPS,)
