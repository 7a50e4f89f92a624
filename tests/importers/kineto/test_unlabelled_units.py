"""Units of communication that no label names."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.schema import (
    Evidence,
    Flag,
    Lane,
)
from tests.importers.drawn_trace import (
    GATHER,
    DrawnTrace,
    collective,
)
from tests.importers.kineto.drawn_step import (
    NCCL,
    NCCL_RS,
    fsdp2_step,
    imported,
    on_lane,
    told,
)


def unlabelled_step(trace: DrawnTrace, at: float, *, in_graph: bool) -> None:
    """A step of a root and two layers, only its kernels: 100 us from `at` on."""
    trace.host(f"ProfilerStep#{int(at / 100)}", at, at + 100)
    calls = [(NCCL, 9), (NCCL, 4), (NCCL, 6), (NCCL, 6), (NCCL_RS, 6)]
    calls += [(NCCL, 4), (NCCL_RS, 4), (NCCL_RS, 9)]
    for i, (kernel, size) in enumerate(calls):
        begins = at + 12 + 10 * i
        gathers = kernel == NCCL
        trace.device(
            kernel,
            begins,
            begins + 8,
            launched=at + 1 if in_graph else at + 1 + i,
            call="cudaGraphLaunch" if in_graph else "cudaLaunchKernel",
            stream=GATHER,
            args=collective(
                "_allgather_base" if gathers else "_reduce_scatter_base",
                size if gathers else 4 * size,
                4 * size if gathers else size,
            ),
        )


@pytest.mark.parametrize("in_graph", [False, True])
def test_r38_units_by_size_and_order(tmp_path: Path, in_graph: bool) -> None:
    """Without labels, or in CUDA graphs, units are numbered by their forward order,
    flagged, and said to be of low confidence.
    """
    trace = DrawnTrace()
    for step in range(2):
        unlabelled_step(trace, 100 * step, in_graph=in_graph)
    data = imported(trace, tmp_path)
    spans = on_lane(data, Lane.ALL_GATHER, Lane.REDUCE_SCATTER)
    names = [f"unit {i} by order" for i in (1, 2, 3)]

    assert [unit.fqn for unit in data.header.units] == names
    assert [row[:3] for row in told(data, spans)] == [
        ("ALL_GATHER", names[0], "FORWARD"),
        ("ALL_GATHER", names[1], "FORWARD"),
        ("ALL_GATHER", names[2], "FORWARD"),
        ("ALL_GATHER", names[2], "BACKWARD"),
        ("REDUCE_SCATTER", names[2], "BACKWARD"),
        ("ALL_GATHER", names[1], "BACKWARD"),
        ("REDUCE_SCATTER", names[1], "BACKWARD"),
        ("REDUCE_SCATTER", names[0], "BACKWARD"),
    ]
    assert (spans.flags & Flag.BY_ORDER != 0).all()
    assert Evidence.UNITS not in data.evidence
    assert Evidence.UNITS_BY_ORDER in data.evidence
    assert any(
        text == "units of 16 collectives are told from sizes and order alone, with low "
        "confidence: no FSDP:: label names them, so they are numbered by forward order"
        for text in data.header.warnings
    )
    assert in_graph == any("CUDA graphs" in text for text in data.header.warnings)


def test_r38_graphs_take_the_names_of_labelled_steps(tmp_path: Path) -> None:
    """A step that a graph replays has the units that labels named in another."""
    trace = fsdp2_step()
    trace.host("ProfilerStep#8", 1100, 1200)
    for i, kernel in enumerate((NCCL, NCCL, NCCL, NCCL_RS, NCCL_RS)):
        trace.device(
            kernel,
            1110 + 10 * i,
            1118 + 10 * i,
            launched=1101,
            call="cudaGraphLaunch",
            stream=GATHER,
            args=collective(
                "_allgather_base" if kernel == NCCL else "_reduce_scatter_base",
                500 if kernel == NCCL else 2000,
                2000 if kernel == NCCL else 500,
            ),
        )
    data = imported(trace, tmp_path)
    spans = data.steps[1].spans
    spans = spans.rows(spans.lane != Lane.HOST)

    # Both are of one size: which of them is gathered again, sizes do not say.
    assert [row[:3] for row in told(data, spans)] == [
        ("ALL_GATHER", "<root>", "FORWARD"),
        ("ALL_GATHER", "layers.0", "FORWARD"),
        ("ALL_GATHER", None, "BACKWARD"),
        ("REDUCE_SCATTER", "layers.0", "BACKWARD"),
        ("REDUCE_SCATTER", "<root>", "BACKWARD"),
    ]
    assert {Evidence.UNITS, Evidence.UNITS_BY_ORDER} <= data.evidence
    assert any("labels gave in other steps" in text for text in data.header.warnings)


def test_r38_tensor_parallel_is_no_fsdp(tmp_path: Path) -> None:
    """Gathers and reductions in turn, as in sequence parallelism, are no units."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 200)
    for i in range(6):
        gathers = i % 2 == 0
        trace.device(
            NCCL if gathers else NCCL_RS,
            20 + 10 * i,
            28 + 10 * i,
            launched=1 + i,
            args=collective(
                "_allgather_base" if gathers else "_reduce_scatter_base",
                4 if gathers else 16,
                16 if gathers else 4,
            ),
        )
    data = imported(trace, tmp_path)

    assert data.header.units == ()
    assert any("no FSDP:: labels" in text for text in data.header.warnings)
