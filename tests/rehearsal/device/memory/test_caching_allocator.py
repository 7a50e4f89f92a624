"""The modelled allocator gives what CUDA's caching one would."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpdoctor.quantities import GIB, KIB, MIB
from fsdpdoctor.rehearsal.device.memory.caching_allocator import (
    CachingAllocator,
    OutOfMemory,
)


def allocator(capacity: int = GIB, **more: Any) -> CachingAllocator:
    """One whose streams have ended all their work at time 5."""
    return CachingAllocator(capacity, stream_done=lambda stream: (0, 5), **more)


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB + 1, 12 * MIB, 12 * MIB),  # too little is left to be split off
        (0, 0, 0),
    ],
)
def test_sizes_are_rounded(asked: int, allocated: int, reserved: int) -> None:
    """To 512 bytes, from segments of 2 MiB, 20 MiB, or the request's own."""
    it = allocator()
    it.allocate(asked, 0)
    assert (it.allocated, it.reserved) == (allocated, reserved)


def test_small_and_large_requests_do_not_share_segments() -> None:
    """Nor do two streams."""
    it = allocator()
    it.allocate(KIB, 0)
    it.allocate(2 * MIB, 0)
    it.allocate(KIB, 1)
    assert it.reserved == 2 * MIB + 20 * MIB + 2 * MIB


def test_the_smallest_free_block_is_taken_and_split() -> None:
    """What is left of it stays free, and neighbours that are free become one."""
    it = allocator()
    blocks = [it.allocate(5 * MIB, 0) for _ in range(4)]
    assert it.reserved == 20 * MIB
    for block in (blocks[0], blocks[2], blocks[1]):
        assert block is not None
        it.free(block)
    assert it.allocate(9 * MIB, 0) is not None  # of the 15 that are free together
    assert it.allocate(6 * MIB, 0) is not None
    assert (it.allocated, it.reserved) == (20 * MIB, 20 * MIB)


def test_full_memory_gives_free_segments_back_and_tries_again() -> None:
    """That is a retry; what is still too much is an error that says how much."""
    it = allocator(100 * MIB)
    first = it.allocate(60 * MIB, 0)
    assert first is not None
    it.free(first)
    it.allocate(70 * MIB, 0)
    assert (it.retries, it.reserved, it.peak_reserved) == (1, 70 * MIB, 70 * MIB)
    with pytest.raises(OutOfMemory) as failed:
        it.allocate(40 * MIB, 0)
    assert (failed.value.asked, failed.value.allocated) == (40 * MIB, 70 * MIB)
    assert (it.retries, it.ooms) == (2, 1)


def test_a_block_used_on_another_stream_waits_for_it() -> None:
    """It is free once the host gets to where that stream was."""
    now = 0
    it = CachingAllocator(GIB, stream_done=lambda stream: (now, 5))
    block = it.allocate(20 * MIB, 0)
    assert block is not None
    it.record_stream(block, 1)
    it.free(block)
    it.allocate(20 * MIB, 0)
    assert it.reserved == 40 * MIB
    now = 5
    it.allocate(20 * MIB, 0)
    assert it.reserved == 40 * MIB


def test_full_memory_waits_for_blocks_that_other_streams_use() -> None:
    """It is no failure: the host waits for those streams, and their blocks go back."""
    waits: list[int] = []
    it = CachingAllocator(
        100 * MIB, stream_done=lambda stream: (0, 5), wait_until=waits.append
    )
    block = it.allocate(60 * MIB, 0)
    assert block is not None
    it.record_stream(block, 1)
    it.free(block)
    it.allocate(70 * MIB, 0)
    assert (it.retries, it.ooms, it.reserved, waits) == (1, 0, 70 * MIB, [5])


def test_expandable_segments_grow_by_pages() -> None:
    """Blocks of any size come from one growing segment, whose end is reused."""
    it = allocator(expandable=True)
    first = it.allocate(30 * MIB, 0)
    it.allocate(5 * MIB, 0)
    assert it.reserved == 36 * MIB
    assert first is not None
    it.free(first)
    it.allocate(33 * MIB, 0)  # one MiB is left at the end
    assert it.reserved == 36 * MIB + 32 * MIB
    it.allocate(30 * MIB, 0)
    assert it.reserved == 68 * MIB
    assert it.allocated == 68 * MIB
