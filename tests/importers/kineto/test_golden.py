"""Real traces give the figures that HTA and TraceLens agree on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fsdpdoctor.intervals import union
from fsdpdoctor.schema import (
    COMMUNICATION_LANES,
    DEVICE_WORK,
    Evidence,
    Kind,
    Lane,
)
from tests.importers.real_traces import (
    Figures,
    everything,
    figures,
    figures_of,
    load,
)


def test_t1_eight_ranks() -> None:
    """Overlap equals HTA's on all eight ranks, exposed time TraceLens' on rank 0."""
    found = [figures(everything(data)) for data in load("dlrm_8ranks")]

    comm = (5798, 11336, 3492, 9774, 6587, 6251, 3558, 1746)
    overlap = (4.50, 2.47, 7.88, 3.31, 0.56, 0.64, 7.56, 9.51)
    exposed = (5537, 11056, 3217, 9450, 6550, 6211, 3289, 1580)
    assert found == [
        Figures(float(c), o, float(e))
        for c, o, e in zip(comm, overlap, exposed, strict=True)
    ]


def test_t1_last_arrivers() -> None:
    """Collectives without process-group arguments pair by order of issue."""
    last: Counter[int] = Counter()
    starts: dict[int, dict[int, int]] = {}
    ends: dict[int, dict[int, int]] = {}
    for data in load("dlrm_8ranks"):
        spans = everything(data)
        comm = spans.rows(np.isin(spans.lane, COMMUNICATION_LANES))
        for seq, start, end in zip(
            comm.seq.tolist(), comm.start_ns.tolist(), comm.end_ns.tolist(), strict=True
        ):
            starts.setdefault(seq, {})[data.rank] = start
            ends.setdefault(seq, {})[data.rank] = end
    for by_rank in starts.values():
        last[max(by_rank, key=lambda rank: by_rank[rank])] += 1
    spread = [
        max(by_rank.values()) - min(by_rank.values()) for by_rank in ends.values()
    ]

    assert {len(by_rank) for by_rank in starts.values()} == {8}
    assert last == Counter({7: 5, 5: 2, 4: 1})
    assert max(spread) == 7_000  # ends agree: they are what clocks align on


@pytest.mark.parametrize(
    ("name", "rank", "expected"),
    [
        ("sampled_2of128", 0, Figures(396199.0, 14.95, 336983.0)),
        ("sampled_2of128", 1, Figures(379053.0, 19.93, 303523.0)),
        ("exposed_216k", 1, Figures(357343.0, 0.0, 357343.0)),
    ],
)
def test_t2_t4_whole_microseconds(name: str, rank: int, expected: Figures) -> None:
    """Two streams of communication, and communication that nothing hides."""
    data = next(data for data in load(name) if data.rank == rank)

    assert figures(everything(data)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pg_args_a100", Figures(46876.5, 15.61, 39559.5)),
        ("mi300x_ddp", Figures(71516.5, 22.22, 55625.2)),
    ],
)
def test_t3_t9_nanoseconds(name: str, expected: Figures) -> None:
    """Exact nanoseconds round to the published tenths; memset is no compute."""
    (data,) = load(name)
    found = figures(everything(data))

    assert (
        Figures(
            round(found.comm_us, 1), found.overlap_percent, round(found.exposed_us, 1)
        )
        == expected
    )


def test_t9_names_say_nothing_and_the_parent_does() -> None:
    """RCCL's one kernel name is an all-reduce or a broadcast by what launched it."""
    (data,) = load("mi300x_ddp")
    spans = data.steps[1].spans
    comm = spans.rows(np.isin(spans.lane, COMMUNICATION_LANES))

    assert [
        (Kind(kind).name, size)
        for kind, size in zip(comm.kind.tolist(), comm.bytes.tolist(), strict=True)
    ] == [
        ("COLLECTIVE", 19200),
        ("COLLECTIVE", 160),
        ("ALL_REDUCE", 5746640),
        ("ALL_REDUCE", 17632384),
    ]
    assert {data.name(name) for name in comm.name[:2]} == {"broadcast"}


def test_t10_nccl_by_name_and_symmetric_memory_beside_it() -> None:
    """The published 22 us count names with nccl only. The trace also holds 73
    all-reduces through symmetric memory, which are communication to us and were
    compute to HTA and TraceLens.
    """
    (data,) = load("b200_no_steps")
    spans = everything(data)
    comm = spans.rows(np.isin(spans.lane, COMMUNICATION_LANES))
    nccl = comm.rows(np.array(["nccl" in (data.name(n) or "") for n in comm.name]))
    work = spans.rows(np.isin(spans.kind, DEVICE_WORK))

    by_name = figures_of(
        union(nccl.start_ns, nccl.end_ns), union(work.start_ns, work.end_ns)
    )
    assert Figures(
        round(by_name.comm_us, 1), by_name.overlap_percent, round(by_name.exposed_us, 1)
    ) == Figures(22.0, 0.0, 22.0)
    assert Counter(
        (Kind(kind).name, Lane(lane).name)
        for kind, lane in zip(comm.kind, comm.lane, strict=True)
    ) == Counter({("COLLECTIVE", "OTHER_COMM"): 73, ("ALL_GATHER", "ALL_GATHER"): 1})
    assert data.steps == ()
    assert any("no whole step" in warning for warning in data.header.warnings)


def test_t3_process_groups_come_from_the_arguments() -> None:
    """Names, ranks, sizes and whole bytes of collectives that describe themselves."""
    (data,) = load("pg_args_a100")
    reduces = data.steps[0].spans
    reduces = reduces.rows(reduces.kind == Kind.ALL_REDUCE)
    (group,) = data.header.groups

    assert (group.name, group.ranks, group.size, group.backend, group.role) == (
        "0",
        (0, 1),
        2,
        "nccl",
        "world",
    )
    # ResNet-50's gradient buckets; the trace says 6637568 floats of the fourth.
    assert reduces.bytes.tolist() == [8196000, 31502336, 26255360, 26550272, 9724160]
    assert reduces.seq.tolist() == [2, 3, 4, 5, 6]  # two broadcasts came before
    assert Evidence.UNITS not in data.evidence
    assert [step.step for step in data.steps] == [4, 5, 6]
