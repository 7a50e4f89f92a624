"""CUDA's caching allocator, without memory.

Sizes, pools and splitting follow the published behaviour of PyTorch's
CUDACachingAllocator: requests are rounded to 512 bytes; up to 1 MiB they come from
segments of 2 MiB, up to 10 MiB from segments of 20 MiB, above that from segments of
their own, rounded to 2 MiB. A block is the smallest free one of its pool and stream
that is large enough; what is left of it stays free. Only whole segments go back to
the device, when it has no room. With `expandable_segments` a pool of a stream is one
segment that grows by pages.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

from fsdpdoctor.quantities import GIB, MIB

ROUND = 512
SMALL = MIB  # requests up to here share small segments
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
LARGE = 10 * MIB  # requests from here on have segments of their own
PAGE = 2 * MIB


class OutOfMemory(Exception):
    """No room, and nothing cached that could be given back."""

    def __init__(self, asked: int, allocated: int, reserved: int, capacity: int):
        super().__init__(
            f"asked for {asked / GIB:.2f} GiB with {allocated / GIB:.2f} GiB allocated "
            f"and {reserved / GIB:.2f} GiB reserved of {capacity / GIB:.2f} GiB"
        )
        self.asked = asked
        self.allocated = allocated
        self.reserved = reserved
        self.capacity = capacity


@dataclass(slots=True, eq=False)
class Segment:
    """What one cudaMalloc gave."""

    size: int
    pool: tuple[int, bool]


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment: allocated, or free with neighbours that are not."""

    size: int
    segment: Segment
    offset: int = 0
    free: bool = True
    before: Block | None = None
    after: Block | None = None
    used_by: dict[int, None] = field(default_factory=dict)  # streams beside its own
    key: tuple[int, int] = (0, 0)  # of the free list


@dataclass(slots=True)
class Pool:
    """The free blocks of a stream's small, or large, requests, smallest first."""

    keys: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[tuple[int, int], Block] = field(default_factory=dict)

    def add(self, block: Block, number: int) -> None:
        """A block is free."""
        block.key = (block.size, number)
        bisect.insort(self.keys, block.key)
        self.blocks[block.key] = block

    def remove(self, block: Block) -> None:
        """A block is free no more."""
        del self.keys[bisect.bisect_left(self.keys, block.key)]
        del self.blocks[block.key]

    def best(self, size: int) -> Block | None:
        """The smallest that is large enough."""
        at = bisect.bisect_left(self.keys, (size, -1))
        return self.blocks[self.keys[at]] if at < len(self.keys) else None


StreamDone = Callable[[int], tuple[int, int]]
"""Of a stream: now on the host, and when its work up to now has ended."""


class CachingAllocator:
    """Sizes in bytes. `allocate` and `free` are in the order of the host's calls."""

    def __init__(
        self,
        capacity: int,
        *,
        expandable: bool = False,
        stream_done: StreamDone,
        device_call: Callable[[int, bool], None] | None = None,
        wait_until: Callable[[int], None] | None = None,
    ) -> None:
        self.capacity = capacity
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self.retries = self.ooms = 0
        self.device_allocations = self.device_frees = 0
        self._expandable = expandable
        self._stream_done = stream_done
        # Of a segment that was asked of the device, or given back to it (True).
        self._device_call = device_call or (lambda size, freed: None)
        # The host waits for a moment.
        self._wait_until = wait_until or (lambda until_ns: None)
        # Told of a failure, and memory grows beyond the device's, so that what the
        # job needs is known at its end; without it, a failure is raised.
        self.on_failure: Callable[[OutOfMemory], None] | None = None
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._tails: dict[tuple[int, bool], Block] = {}  # of expandable segments
        self._numbers = 0
        self._pending: list[tuple[int, Block]] = []  # freed, in use by other streams

    def allocate(self, size: int, stream: int) -> Block | None:
        """A block for so many bytes; None for none. Raises OutOfMemory."""
        if size <= 0:
            return None
        self._return_pending(stream)
        rounded = -(-size // ROUND) * ROUND
        key = (stream, rounded <= SMALL)
        pool = self._pools.setdefault(key, Pool())
        block = pool.best(rounded)
        if block is None:
            block = self._grow(key, rounded)
        pool.remove(block)
        block.free = False
        self._split(block, rounded, key)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Nobody holds it any more. Its own stream may reuse it at once."""
        self.allocated -= block.size
        if block.used_by:
            until = max(self._stream_done(s)[1] for s in block.used_by)
            block.used_by.clear()
            self._pending.append((until, block))
            return
        self._to_pool(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """It is used on another stream, too: freeing it waits for that one."""
        if stream != block.segment.pool[0]:
            block.used_by[stream] = None

    def empty_cache(self) -> None:
        """Give free segments back to the device. The host waits, as CUDA's does, until
        blocks that were freed while other streams used them are free.
        """
        pending, self._pending = self._pending, []
        for until, block in pending:
            self._wait_until(until)
            self._to_pool(block)
        for pool in self._pools.values():
            for block in [b for b in pool.blocks.values() if _is_whole(b)]:
                pool.remove(block)
                self.reserved -= block.size
                self.device_frees += 1
                self._device_call(block.size, True)
                if self._expandable:
                    self._tails.pop(block.segment.pool, None)

    def reset_peaks(self) -> None:
        """Peaks from here on."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def _return_pending(self, stream: int) -> None:
        if not self._pending:
            return
        now = self._stream_done(stream)[0]
        due = [block for until, block in self._pending if until <= now]
        self._pending = [(u, b) for u, b in self._pending if u > now]
        for block in due:
            self._to_pool(block)

    def _grow(self, key: tuple[int, bool], size: int) -> Block:
        tail = self._tails.get(key) if self._expandable else None
        joins = tail is not None and tail.free
        missing = size - (tail.size if tail is not None and joins else 0)
        wanted = _segment_size(size) if not self._expandable else _pages(missing)
        if self.reserved + wanted > self.capacity:
            self.retries += 1
            self.empty_cache()
            tail = self._tails.get(key) if self._expandable else None
            joins = tail is not None and tail.free
        if self.reserved + wanted > self.capacity:
            self.ooms += 1
            failed = OutOfMemory(size, self.allocated, self.reserved, self.capacity)
            if self.on_failure is None:
                raise failed
            self.on_failure(failed)
            self.capacity = self.reserved + wanted
        self.reserved += wanted
        self.device_allocations += 1
        self._device_call(wanted, False)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return self._append(key, wanted, tail)

    def _append(self, key: tuple[int, bool], size: int, tail: Block | None) -> Block:
        """A new segment, or a growing one's next pages."""
        pool = self._pools[key]
        if tail is None:
            block = Block(size, Segment(size, key))
        else:
            tail.segment.size += size
            if tail.free:
                pool.remove(tail)
                tail.size += size
                pool.add(tail, self._next())
                return tail
            block = Block(size, tail.segment, tail.offset + tail.size, before=tail)
            tail.after = block
        if self._expandable:
            self._tails[key] = block
        pool.add(block, self._next())
        return block

    def _split(self, block: Block, size: int, key: tuple[int, bool]) -> None:
        left = block.size - size
        if left < (ROUND if key[1] or self._expandable else SMALL + 1):
            return
        rest = Block(
            left, block.segment, block.offset + size, before=block, after=block.after
        )
        if block.after is not None:
            block.after.before = rest
        elif self._tails.get(key) is block:
            self._tails[key] = rest
        block.after, block.size = rest, size
        self._pools[key].add(rest, self._next())

    def _to_pool(self, block: Block) -> None:
        pool = self._pools[block.segment.pool]
        block.free = True
        for other in (block.before, block.after):
            if other is not None and other.free:
                pool.remove(other)
                block = self._joined(*sorted((block, other), key=lambda b: b.offset))
        pool.add(block, self._next())

    def _joined(self, first: Block, second: Block) -> Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        elif self._tails.get(first.segment.pool) is second:
            self._tails[first.segment.pool] = first
        return first

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers


def _is_whole(block: Block) -> bool:
    return block.before is None and block.after is None


def _segment_size(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < LARGE:
        return LARGE_SEGMENT
    return -(-size // PAGE) * PAGE


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
