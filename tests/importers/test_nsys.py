"""Nsight Systems exports, on databases drawn with its tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers import import_run
from fsdpdoctor.quantities import US
from fsdpdoctor.schema import Evidence, Kind, Lane, Phase

TABLES = """
CREATE TABLE StringIds (id INTEGER, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, "end" INTEGER,
    deviceId INTEGER, streamId INTEGER, correlationId INTEGER, demangledName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, "end" INTEGER,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, "end" INTEGER, text TEXT, textId INTEGER,
    globalTid INTEGER);
"""
NAMES = (
    "cudaLaunchKernel_v7000",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "gemm",
    "FSDP::all_gather (norm, output), op_id = 7",
)


def thread(pid: int) -> int:
    """A globalTid of a process's first thread."""
    return (1 << 48) | (pid << 24) | pid


def export(path: Path, pids: tuple[int, ...] = (4000,)) -> Path:
    """A step with one unit's all-gather and a kernel, times in nanoseconds."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(TABLES)
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES))
        for pid in pids:
            tid = thread(pid)
            db.executemany(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)",
                [
                    (0, 900_000, "ProfilerStep#3", None, tid),
                    (10_000, 60_000, "FSDP::pre_forward (norm, output)", None, tid),
                    (20_000, 40_000, None, 3, tid),
                    (50_000, None, "a mark", None, tid),
                ],
            )
            db.executemany(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 0)",
                [(25_000, 26_000, tid, 1), (70_000, 71_000, tid, 2)],
            )
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, ?, ?, ?)",
            [(100_000, 180_000, 22, 1, 1), (180_000, 200_000, 7, 2, 2)],
        )
    return path


def test_units_from_nvtx_ranges(tmp_path: Path) -> None:
    """With emit_nvtx's ranges, a kernel gets its unit as from torch.profiler's."""
    export(tmp_path / "rank2.sqlite")
    run = import_run([tmp_path])
    (data,) = run.load()
    (step,) = data.steps
    device = step.spans.rows(step.spans.stream >= 0)

    assert (run.header.source, run.ranks, run.header.world_size) == ("nsys", (2,), 3)
    assert [
        (
            Kind(kind).name,
            Lane(lane).name,
            data.unit_name(unit),
            Phase(phase).name,
            start / US,
            issued / US,
        )
        for kind, lane, unit, phase, start, issued in zip(
            device.kind.tolist(),
            device.lane.tolist(),
            device.unit.tolist(),
            device.phase.tolist(),
            device.start_ns.tolist(),
            device.issued_ns.tolist(),
            strict=True,
        )
    ] == [
        ("ALL_GATHER", "ALL_GATHER", "norm, output", "FORWARD", 100.0, 25.0),
        ("KERNEL", "COMPUTE", "norm, output", "FORWARD", 180.0, 70.0),
    ]
    assert step.step == 3
    assert {Evidence.UNITS, Evidence.KERNELS, Evidence.ISSUE_TIMES} <= data.evidence


def test_an_export_of_several_processes(tmp_path: Path) -> None:
    """A report of a whole node is refused with the command that splits it."""
    export(tmp_path / "rank0.sqlite", pids=(4000, 4001))

    with pytest.raises(
        InputError, match=r"2 processes \(pid 4000, 4001\); profile each"
    ):
        list(import_run([tmp_path]).load())


def test_an_export_that_is_none(tmp_path: Path) -> None:
    """A database without nsys' tables, or with other columns, is told so."""
    path = tmp_path / "rank0.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE NVTX_EVENTS (a)")
    with pytest.raises(InputError, match="no StringIds table"):
        list(import_run([path]).load())
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE StringIds (id, value)")
    with pytest.raises(InputError, match="cannot be read as an Nsight Systems export"):
        list(import_run([path]).load())
