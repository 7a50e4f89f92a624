"""Overlap of a whole capture, read a window at a time, against sets of intervals."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpdoctor.analysis.overlap import OVERLAP_KINDS, Overlap, overlap_of_capture
from fsdpdoctor.intervals import intersect, total_ns, union
from fsdpdoctor.schema import COMMUNICATION_LANES, DEVICE_WORK, Kind, Lane, Spans

KINDS = (*DEVICE_WORK, Kind.MEMCPY, Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
LANES = (Lane.COMPUTE, Lane.ALL_GATHER, Lane.OTHER_COMM)

rows = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.integers(0, 9),
        st.sampled_from(KINDS),
        st.sampled_from(LANES),
    ),
    max_size=40,
)


def spans(drawn: list[tuple[int, int, Kind, Lane]]) -> Spans:
    """The spans that were drawn: start, length, kind, lane."""
    return Spans.build(
        len(drawn),
        start_ns=[start for start, _, _, _ in drawn],
        end_ns=[start + length for start, length, _, _ in drawn],
        kind=[kind for _, _, kind, _ in drawn],
        lane=[lane for _, _, _, lane in drawn],
    )


def by_sets(everything: Spans) -> dict[str, Overlap]:
    """The same from the whole capture's intervals."""

    def busy(which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> np.ndarray:
        return union(everything.start_ns[which], everything.end_ns[which])

    compute = busy(np.isin(everything.kind, DEVICE_WORK))
    found = {}
    for name in OVERLAP_KINDS:
        if name == "all":
            comm = busy(np.isin(everything.lane, COMMUNICATION_LANES))
        else:
            comm = busy(everything.kind == Kind[name.upper()])
        found[name] = Overlap(
            communication_ns=total_ns(comm),
            overlapped_ns=total_ns(intersect(comm, compute)),
        )
    return found


@given(st.lists(rows, min_size=1, max_size=5), st.sampled_from([8, 16, 1000]))
@settings(max_examples=300)
def test_windows_add_up_to_the_capture(
    drawn: list[list[tuple[int, int, Kind, Lane]]], rows_at_once: int
) -> None:
    """In whatever parts its spans come, sorted or not, and however long a window is."""
    parts = [spans(one) for one in drawn]

    with patch("fsdpdoctor.analysis.overlap.BLOCK_ROWS", rows_at_once):
        assert overlap_of_capture(parts) == by_sets(Spans.concat(parts))
