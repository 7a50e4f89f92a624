"""HTA's figures beside ours: each of its rules moves what it is said to move."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fsdpdoctor as fd
from fsdpdoctor.cli import main
from fsdpdoctor.errors import FsdpDoctorError, UsageError
from fsdpdoctor.integrations.hta import (
    PYTHON,
    Busy,
    HtaTables,
    Share,
    compared,
    hta_tables,
)
from fsdpdoctor.integrations.hta_json import HtaSection
from fsdpdoctor.integrations.hta_words import lines_in_words, tables_in_words
from tests.importers.real_traces import real
from tests.integrations.drawn import save
from tests.test_docs_formats import JSON, Field, declared, documented

LAUNCH, NAMES, ROUNDING = (
    "HTA leaves out kernels whose launch is not in the trace",
    "HTA knows communication by names that begin with nccl",
    "HTA rounds starts up and ends down to microseconds",
)

REAL = (
    *("dlrm_8ranks", "sampled_2of128", "pg_args_a100", "exposed_216k", "mi300x_ddp"),
    *("b200_no_steps", "megatron_tp8", "kineto_torch_1_8"),
)


def complete(cat: str, name: str, ts: float, dur: float, **args: object) -> Any:
    """An event of a trace."""
    place = {"pid": 0, "tid": args.get("stream", 1)}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args} | (
        place
    )


def kernel(name: str, ts: float, dur: float, *, stream: int, launched: bool) -> Any:
    """A kernel, with its launch where it has one."""
    number = int(ts * 10)
    args = {"stream": stream, "device": 0, "correlation": number}
    yield complete("kernel", name, ts, dur, **args)
    if launched:
        yield complete("cuda_runtime", "cudaLaunchKernel", 1.0, 1.0, correlation=number)


def trace(path: Path, *kernels: Iterator[Any], steps: int) -> Path:
    """A file of one rank."""
    events = [event for one in kernels for event in one]
    for step in range(steps):
        name = f"ProfilerStep#{step}"
        events.append(complete("user_annotation", name, 1000.0 * step, 1000.0))
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def answered(share: float | None, idle_us: int) -> HtaTables:
    """What HTA says of one rank."""
    return HtaTables(
        version="hta 1",
        overlap=(Share(rank=0, share=share),),
        busy=(Busy(rank=0, idle_ns=idle_us * 1000, capture_ns=1_000_000),),
    )


WORK = (
    ("gemm", 100.0, 100.0, 7),
    ("ncclDevKernel_AllReduce_Sum_f32", 150.0, 100.0, 20),
)
"""Half of the communication runs under compute; 150 us of 400 are busy."""


def work(launched: bool = True) -> list[Iterator[Any]]:
    """Its kernels, and one at 500 us that ends the capture."""
    shown = [
        kernel(name, ts, dur, stream=stream, launched=launched)
        for name, ts, dur, stream in WORK
    ]
    return [*shown, kernel("gemm", 499.0, 1.0, stream=7, launched=True)]


def test_figures_that_are_alike_need_no_reason(tmp_path: Path) -> None:
    """Overlap and idle time, to what HTA prints of them."""
    run = fd.open(trace(tmp_path / "a.json", *work(), steps=2))
    (one,) = compared(run, answered(0.5, 249))

    assert (one.ours.share, one.ours.idle_ns) == (0.5, 249_000)
    assert (one.because, one.explained) == ((), True)


def test_a_difference_that_no_rule_makes_is_said(tmp_path: Path) -> None:
    """It is not explained away."""
    run = fd.open(trace(tmp_path / "a.json", *work(), steps=2))

    assert [c.explained for c in compared(run, answered(0.4, 249))] == [False]
    assert [c.explained for c in compared(run, answered(0.5, 200))] == [False]
    assert [c.explained for c in compared(run, answered(None, 249))] == [False]


def test_a_rank_that_it_could_not_read_is_not_compared(tmp_path: Path) -> None:
    """Neither alike nor unexplained: ours stand alone, and its error is said."""
    run = fd.open(trace(tmp_path / "a.json", *work(), steps=2))
    tables = HtaTables(version="hta 1", errors={"load": "TypeError: int16"})
    ranks = compared(run, tables)
    (table,) = tables_in_words(tables, ranks)

    assert [(c.ours.share, c.because, c.explained) for c in ranks] == [(0.5, (), None)]
    assert [cell.text for cell in table.rows[0]][-1] == "HTA made none"
    assert list(lines_in_words(tables, ranks)) == [
        "HTA made no table load: TypeError: int16"
    ]


@pytest.mark.parametrize(("steps", "because"), [(2, (LAUNCH,)), (1, ())])
def test_kernels_without_a_launch(
    steps: int, because: tuple[str, ...], tmp_path: Path
) -> None:
    """HTA leaves them out where the profiler had two steps or more."""
    late = kernel("gemm", 250.0, 50.0, stream=7, launched=False)
    run = fd.open(trace(tmp_path / "a.json", *work(), late, steps=steps))
    (one,) = compared(run, answered(0.5, 249 if steps == 2 else 199))

    assert one.ours.idle_ns == 199_000
    assert (one.because, one.explained) == (because, True)


def test_communication_that_is_not_named_nccl(tmp_path: Path) -> None:
    """A symmetric-memory kernel is communication to us, and compute to HTA."""
    name = "multimem_all_reduce_kernel"
    more = kernel(name, 300.0, 100.0, stream=20, launched=True)
    run = fd.open(trace(tmp_path / "a.json", *work(), more, steps=2))
    (one,) = compared(run, answered(0.5, 149))

    assert (one.ours.communication_ns, one.ours.share) == (200_000, 0.25)
    assert (one.because, one.explained) == ((NAMES,), True)


def test_rounding_makes_short_kernels_shorter(tmp_path: Path) -> None:
    """A hundred kernels of 1.8 us between two microseconds are nothing to HTA."""
    short = [
        kernel("gemm", 600.1 + 3 * n, 1.8, stream=7, launched=True) for n in range(100)
    ]
    run = fd.open(trace(tmp_path / "a.json", *work(), *short, steps=2))
    (one,) = compared(run, answered(0.5, 647))

    assert one.ours.idle_ns == 467_900
    assert (one.because, one.explained) == ((ROUNDING,), True)


def stand_in(path: Path, answer: str, status: int = 0) -> str:
    """A program in the place of the python that has HTA."""
    path.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_the_report_has_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ours, in words, or in the JSON; what HTA could not make is said."""
    file = trace(tmp_path / "a.json", *work(), steps=2)
    answer = {
        "version": "hta 1",
        "overlap": [{"rank": 0, "share": 0.5}],
        "kernel_types": [{"kind": "COMMUNICATION", "ns": 100000}],
        "busy": [{"rank": 0, "idle_ns": 249000, "capture_ns": 400000}],
        "idle": [{"rank": 0, "stream": 7, "category": "host_wait", "ns": 3000000}],
        "errors": {"queue": "KeyError: stream"},
    }
    python = stand_in(tmp_path / "python", json.dumps(answer))
    monkeypatch.setenv(PYTHON, python)
    said = CliRunner().invoke(main, ["analyze", "--with-hta", str(file)])
    lines = [" ".join(line.split()) for line in said.stdout.splitlines()]

    assert said.exit_code == 0, said.output
    assert "0 7 3.00 ms - -" in lines
    assert "communication 0.100 ms 100.0 %" in lines
    assert "0 50.00 % 50.00 % 0.249 ms 0.249 ms yes" in lines
    assert "HTA made no table queue: KeyError: stream" in lines

    said = CliRunner().invoke(main, ["analyze", "--with-hta", "--json", str(file)])
    document = json.loads(said.stdout)
    section = document.pop("hta")
    assert section == {
        "version": "hta 1",
        "ranks": [
            {
                "rank": 0,
                "overlap_share": 0.5,
                "hta_overlap_share": 0.5,
                "idle_ns": 249_000,
                "hta_idle_ns": 249_000,
                "communication_ns": 100_000,
                "capture_ns": 400_000,
                "explained": True,
                "because": [],
            }
        ],
        "kernel_types": answer["kernel_types"],
        "idle": answer["idle"],
        "queue": [],
        "errors": answer["errors"],
    }
    without = CliRunner().invoke(main, ["analyze", "--json", str(file)])
    assert document == json.loads(without.stdout)


def test_what_cannot_be_read_by_hta_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded run, other formats, a program that fails: one line each."""
    file = trace(tmp_path / "a.json", *work(), steps=2)
    recorded = fd.open(save(tmp_path / "run"))
    html = ["--format", "html"]
    no_page = CliRunner().invoke(main, ["analyze", "--with-hta", *html, str(file)])

    with pytest.raises(UsageError, match="fsdpdoctor export RUN --to hta"):
        hta_tables(recorded)
    assert no_page.output == (
        "Error: --with-hta adds to text and json: leave out html\n"
    )
    monkeypatch.setenv(PYTHON, stand_in(tmp_path / "python", "", status=3))
    with pytest.raises(FsdpDoctorError, match=r"HTA did not run: .*exit status 3"):
        hta_tables(fd.open(file))


def test_every_field_of_it_is_documented() -> None:
    """Those that the JSON has, and no others."""
    assert documented(JSON["HolisticTraceAnalysis"].rows) == {
        "hta": Field("object", nullable=False),
        **{f"hta.{path}": field for path, field in declared(HtaSection)},
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_traces_are_alike_or_explained(name: str) -> None:
    """By HTA itself: every rank of every public trace that has kernels."""
    if PYTHON not in os.environ:
        pytest.importorskip("hta", reason=f"needs HTA, here or where {PYTHON} says")
    run = fd.open(real(name))
    tables = hta_tables(run)

    assert tables.errors == {}
    assert [one.rank for one in compared(run, tables) if not one.explained] == []
