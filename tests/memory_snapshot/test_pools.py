"""Segments by pool, and what is free in them."""

from __future__ import annotations

from fsdpdoctor.memory_snapshot.pools import allocated_bytes, pools_of
from fsdpdoctor.memory_snapshot.snapshot import (
    NOT_RECORDED,
    Block,
    BlockState,
    Segment,
)
from fsdpdoctor.memory_snapshot.snapshot_report import PoolRow
from tests.rig.changed import replace

USED, FREE = BlockState.ALLOCATED, BlockState.INACTIVE


def segment(address: int, *blocks: tuple[int, BlockState]) -> Segment:
    """Blocks side by side: bytes and state; each asked for 100 bytes less."""
    made = []
    at = address
    for size, state in blocks:
        made.append(
            Block(
                address=at,
                size_bytes=size,
                requested_bytes=0 if state is FREE else size - 100,
                state=state,
                stack=NOT_RECORDED,
            )
        )
        at += size
    return Segment(
        device=0,
        address=address,
        total_bytes=at - address,
        stream=0,
        is_large=True,
        is_expandable=False,
        pool=(0, 0),
        blocks=tuple(made),
    )


def test_free_memory_is_told_by_its_largest_piece() -> None:
    """Pieces side by side are one, those of two segments are not."""
    rows = pools_of(
        [
            segment(0, (1000, USED), (2000, FREE), (3000, FREE), (512, USED)),
            segment(1 << 20, (4096, FREE)),
        ]
    )

    assert rows == (
        PoolRow(
            pool=(0, 0),
            kind="large",
            expandable=False,
            stream=0,
            segments=2,
            reserved_bytes=10608,
            allocated_bytes=1512,
            requested_bytes=1312,
            free_bytes=9096,
            largest_free_bytes=5000,
            releasable_bytes=4096,
        ),
    )


def test_pools_streams_and_sizes_are_apart() -> None:
    """Largest first."""
    one = segment(0, (1000, USED))
    rows = pools_of(
        [
            one,
            replace(one, is_large=False),
            replace(one, stream=7),
            replace(one, pool=(0, 1), is_expandable=True),
            replace(segment(0, (5000, FREE)), stream=7),
        ]
    )

    assert [
        (row.pool, row.kind, row.stream, row.expandable, row.reserved_bytes)
        for row in rows
    ] == [
        ((0, 0), "large", 7, False, 6000),
        ((0, 0), "large", 0, False, 1000),
        ((0, 0), "small", 0, False, 1000),
        ((0, 1), "large", 0, True, 1000),
    ]


def test_what_waits_for_a_stream_is_in_use_and_not_allocated() -> None:
    """As torch counts allocated bytes."""
    one = segment(0, (1000, USED), (700, BlockState.AWAITING_FREE), (300, FREE))

    assert allocated_bytes([one]) == 1000
    assert pools_of([one])[0].free_bytes == 300


def test_a_segment_whose_blocks_an_old_torch_left_out_is_free() -> None:
    """Of nothing in it there is nothing to say, and it can be given back."""
    (row,) = pools_of([replace(segment(0), total_bytes=2048)])

    assert (row.free_bytes, row.largest_free_bytes, row.releasable_bytes) == (
        2048,
        2048,
        2048,
    )
