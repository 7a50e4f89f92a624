"""In which dtype units are gathered, by what collectives say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importers.drawn_trace import DrawnTrace, collective
from tests.importers.kineto.drawn_step import imported
from tests.importers.real_traces import load


@pytest.mark.parametrize(
    ("args", "dtype"),
    [
        (collective("_allgather_base", 5, 20), "bfloat16"),
        (
            {"Input Dims": [[20], [5]], "Input type": ["c10::Half", "c10::Half"]},
            "float16",
        ),
        ({"Input Dims": [[20], [5]], "Input type": ["float", "float", ""]}, "float32"),
        ({"Input Dims": [[20], [5]], "Input type": ["float", "c10::Half"]}, None),
        ({}, None),
    ],
)
def test_an_all_gathers_arguments(
    tmp_path: Path, args: dict[str, object], dtype: str | None
) -> None:
    """By their dtype, or by the types of an operator's inputs, if they are one."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 100)
    trace.host("FSDP::pre_forward (layers.0)", 5, 30)
    trace.host("FSDP::all_gather (layers.0)", 6, 20)
    trace.host("c10d::_allgather_base_", 8, 15, cat="cpu_op", args=args)
    trace.device("ncclDevKernel_AllGather_RING_LL(x)", 20, 30, launched=10)
    (unit,) = imported(trace, tmp_path).header.units

    assert unit.gather_dtype == dtype


def test_t20_gathers_in_float32() -> None:
    """Every unit of a real trace."""
    data = load("fsdp2_gloo_2ranks/default")[0]

    assert {unit.gather_dtype for unit in data.header.units} == {"float32"}
