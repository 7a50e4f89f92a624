"""When memory was highest, and what was alive then."""

from __future__ import annotations

import numpy as np

from fsdpdoctor.report.memory_peak import memory_peak
from fsdpdoctor.schema import UNKNOWN, MemorySamples
from fsdpdoctor.testing import draw, measured
from tests.rig.changed import replace

PICTURE = """
    all_gather  0.111.....
    unsharded   .0000000..
    forward     .000.11...
"""


def test_the_peak_is_the_highest_sample_of_the_step() -> None:
    """30 bytes, of which 12 are gathered; samples of other steps do not count."""
    rank = measured(draw(PICTURE)).ranks[0]
    step = int(rank.judged_steps[0])
    start = int(rank.steps.start_ns[rank.steps.step == step][0])
    memory = MemorySamples.build(
        3,
        time_ns=np.array([start + 1, start + 2_500_000, start - 5]),
        allocated_bytes=np.array([10, 30, 99]),
        unsharded_bytes=np.array([5, 12, 50]),
        unit=np.array([0, 0, 0], dtype=np.int32),
    )
    found = memory_peak(
        replace(rank, memory=memory, memory_step=np.array([step, step, step])), step
    )

    assert found is not None
    assert (found.curve, found.bytes, found.gathered_bytes) == (
        "allocated_bytes",
        30,
        12,
    )
    assert found.time_ns == start + 2_500_000
    assert [name for name, _ in found.alive] == ["layers.0"]


def test_where_nothing_is_sharded_nothing_is_gathered() -> None:
    """Samples of 0 gathered bytes are no peak of 0 bytes."""
    rank = measured(draw(PICTURE)).ranks[0]
    step = int(rank.judged_steps[0])
    start = int(rank.steps.start_ns[rank.steps.step == step][0])
    memory = MemorySamples.build(
        1,
        time_ns=np.array([start + 1]),
        allocated_bytes=np.array([UNKNOWN]),
        unsharded_bytes=np.array([0]),
        unit=np.array([0], dtype=np.int32),
    )
    rank = replace(rank, memory=memory, memory_step=np.array([step]))

    assert memory_peak(rank, step) is None


def test_without_samples_there_is_no_peak() -> None:
    """Nothing was sampled: not 0, but nothing."""
    rank = measured(draw(PICTURE)).ranks[0]
    step = int(rank.judged_steps[0])
    none = replace(
        rank, memory=MemorySamples.build(0), memory_step=np.zeros(0, dtype=np.int64)
    )

    assert memory_peak(none, step) is None
