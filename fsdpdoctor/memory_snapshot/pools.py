"""Segments by pool: what is reserved, in use, and free in which pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fsdpdoctor.memory_snapshot.snapshot import BlockState, Segment
from fsdpdoctor.memory_snapshot.snapshot_report import PoolRow

Kind = tuple[tuple[int, int], bool, bool, int]


def pools_of(segments: Sequence[Segment]) -> tuple[PoolRow, ...]:
    """One row for each pool, size class and stream, largest first."""
    kinds: defaultdict[Kind, list[Segment]] = defaultdict(list)
    for one in segments:
        kinds[one.pool, one.is_large, one.is_expandable, one.stream].append(one)
    rows = [_row(kind, mine) for kind, mine in kinds.items()]
    return tuple(sorted(rows, key=lambda row: -row.reserved_bytes))


def allocated_bytes(segments: Sequence[Segment]) -> int:
    """Blocks in use, as the allocator rounded them up."""
    return sum(
        block.size_bytes
        for segment in segments
        for block in segment.blocks
        if block.state is BlockState.ALLOCATED
    )


def _row(kind: Kind, segments: Sequence[Segment]) -> PoolRow:
    pool, is_large, is_expandable, stream = kind
    blocks = [block for segment in segments for block in segment.blocks]
    used = [block for block in blocks if block.state is not BlockState.INACTIVE]
    reserved = sum(segment.total_bytes for segment in segments)
    in_use = sum(block.size_bytes for block in used)
    return PoolRow(
        pool=pool,
        kind="large" if is_large else "small",
        expandable=is_expandable,
        stream=stream,
        segments=len(segments),
        reserved_bytes=reserved,
        allocated_bytes=in_use,
        requested_bytes=sum(block.requested_bytes for block in used),
        free_bytes=reserved - in_use,
        largest_free_bytes=max((max(_free_runs(one)) for one in segments), default=0),
        releasable_bytes=sum(
            segment.total_bytes
            for segment in segments
            if all(block.state is BlockState.INACTIVE for block in segment.blocks)
        ),
    )


def _free_runs(segment: Segment) -> Iterator[int]:
    """Bytes of each stretch that nothing is in: blocks that are free lie side by side
    where they are not joined, and of an old torch not all of a segment is in blocks.
    """
    at = segment.address
    yield 0
    for block in sorted(segment.blocks, key=lambda one: one.address):
        if block.state is BlockState.INACTIVE:
            continue
        yield block.address - at
        at = max(at, block.address + block.size_bytes)
    yield segment.address + segment.total_bytes - at
