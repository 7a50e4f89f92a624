"""Nsight Systems exports, on databases drawn with its tables."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.analysis.timeline import of_kinds
from fsdpdoctor.errors import InputError
from fsdpdoctor.importers import import_run, nsys
from fsdpdoctor.importers.file_kind import FileKind, sniff
from fsdpdoctor.importers.nsys import processes_of, read_export
from fsdpdoctor.quantities import MIB, US
from fsdpdoctor.schema import Evidence, Kind, Lane, Phase
from tests.importers.real_traces import real

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


def test_blocks_of_rows_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row at a time, each column in a file: the same events as in one piece."""
    path = export(tmp_path / "rank0.sqlite", pids=(4001, 4000))
    whole = read_export(path)

    monkeypatch.setattr("fsdpdoctor.importers.nsys.ROWS_AT_A_TIME", 1)
    monkeypatch.setattr("fsdpdoctor.storage.spill.HELD_BYTES", 0)
    blocks = read_export(path)

    assert (whole.pids, whole.health.events) == ((4000, 4001), 12)
    assert (blocks.names, blocks.pids) == (whole.names, whole.pids)
    assert blocks.health == whole.health
    for name, column in blocks.events.items():
        np.testing.assert_array_equal(column, getattr(whole.events, name))


PEAK = """
import resource, sys
from pathlib import Path
from fsdpdoctor.importers.file_kind import FileKind, sniff
from fsdpdoctor.importers import nsys
from fsdpdoctor.importers.nsys import processes_of, read_export
read_export(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write_kernels(path: Path, kernels: int) -> Path:
    """An export of kernels alone: all of its rows are kept."""
    rows = ((10 * i, 10 * i + 8, i) for i in range(kernels))
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(TABLES)
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, ?, 1)", rows
        )
    return path


def test_r03_memory_does_not_grow_with_an_export(tmp_path: Path) -> None:
    """Six times the kernels: 80 MB more, were all rows Python's own at once."""
    peaks = []
    for kernels in (50_000, 300_000):
        path = write_kernels(tmp_path / f"{kernels}.sqlite", kernels)
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout) * 1024)

    assert peaks[1] - peaks[0] < 15 * MIB


def test_an_export_of_several_processes(tmp_path: Path) -> None:
    """An old report of a node, whose kernels are nobody's, is refused."""
    export(tmp_path / "rank0.sqlite", pids=(4000, 4001))

    with pytest.raises(
        InputError, match=r"2 processes \(pid 4000, 4001\) and does not say whose"
    ):
        list(import_run([tmp_path]).load())


def test_a_report_of_a_node_is_a_rank_of_each_process(tmp_path: Path) -> None:
    """By device: pid 4001 ran on device 0. Ids of the other process are not its own,
    though its launch has the same number.
    """
    path = tmp_path / "node.sqlite"
    export(path, pids=(4000, 4001))
    with closing(sqlite3.connect(path)) as db, db:
        kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
        db.execute(f"ALTER TABLE {kernels} ADD COLUMN globalPid INTEGER")
        db.execute(f"UPDATE {kernels} SET globalPid = {4000 << 24}, deviceId = 1")
        db.execute(
            f"INSERT INTO {kernels} VALUES (300000, 340000, 0, 22, 1, 1, {4001 << 24})"
        )

    run = import_run([path])
    ranks = list(run.load())

    assert (run.ranks, run.header.world_size) == ((0, 1), 2)
    assert [
        [
            (data.unit_name(unit), start / US, issued / US)
            for unit, start, issued in zip(
                spans.unit.tolist(),
                spans.start_ns.tolist(),
                spans.issued_ns.tolist(),
                strict=True,
            )
        ]
        for data in ranks
        for spans in [of_kinds(data.steps[0].spans, Kind.ALL_GATHER)]
    ] == [[("norm, output", 300.0, 25.0)], [("norm, output", 100.0, 25.0)]]


@pytest.mark.parametrize(
    ("name", "units", "exposed_ns"),
    [
        ("before", 18, (17_172_652, 8_229_100)),
        ("after", 16, (9_989_016, 23_753_085)),
    ],
)
def test_t21_fsdp2_on_two_gpus(
    name: str, units: int, exposed_ns: tuple[int, ...]
) -> None:
    """A node's capture: units, and communication that nothing hides, by process."""
    m = measure(import_run([real(f"nsys_fsdp2_h100/mfu_2gpu_{name}.sqlite")]))

    assert [len(rank.units) for rank in m.ranks] == [units, units]
    assert tuple(rank.overlap["all"].exposed_ns for rank in m.ranks) == exposed_ns
    assert m.overlap("all").overlapped_ns == 0


@pytest.mark.parametrize(
    ("start", "end"), [(-(2**63), 26_000), (25_000, 2**63 - 1), (2**62, 2**62 + 1)]
)
def test_times_that_are_none(tmp_path: Path, start: int, end: int) -> None:
    """A row whose times are beyond centuries is dropped, counted, and no other is."""
    path = export(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            'UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = ?, "end" = ? '
            "WHERE correlationId = 1",
            (start, end),
        )
    trace = read_export(path)

    assert (trace.health.events, trace.health.dropped) == (7, 1)
    assert len(trace.events) == 6


ENDLESS = {
    "view": """
ALTER TABLE NVTX_EVENTS RENAME TO Rows;
CREATE VIEW NVTX_EVENTS AS
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
SELECT Rows.* FROM Rows, n;
""",
    "names": """
INSERT INTO StringIds
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000)
SELECT 0, 'x' FROM n;
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT 0, 1, 0, 0, 0 FROM StringIds;
""",
}


@pytest.mark.parametrize("endless", ENDLESS.values(), ids=ENDLESS)
def test_rows_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endless: str
) -> None:
    """A view that is made of itself, and names that each stand for every row."""
    monkeypatch.setattr(nsys, "LEAST_STEPS", nsys.TICK)
    path = export(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(endless)

    with pytest.raises(InputError, match="as an Nsight Systems export: interrupted"):
        read_export(path)


def test_more_processes_than_a_node_has(tmp_path: Path) -> None:
    """Each would be a rank, and be read by itself."""
    path = export(tmp_path / "node.sqlite")
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"ALTER TABLE {kernels} ADD COLUMN globalPid INTEGER")
        db.executemany(
            f"INSERT INTO {kernels} VALUES (0, 1, 0, 7, 1, 2, ?)",
            [(thread(pid),) for pid in range(1, 1026)],
        )

    with pytest.raises(InputError, match="has kernels of 1025 processes; expected"):
        processes_of(path)


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


def test_bytes_that_are_no_text_cost_no_more_than_themselves(tmp_path: Path) -> None:
    """A table's name of a damaged export is not UTF-8."""
    path = tmp_path / "export.sqlite"
    path.touch()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE abcdef (x)")
        db.commit()
    path.write_bytes(path.read_bytes().replace(b"abcdef", b"ab\xe4def"))

    assert sniff(path) is FileKind.SQLITE


def test_bytes_that_sqlite_quotes_in_an_error_are_no_text_either(
    tmp_path: Path,
) -> None:
    """The schema no longer fits the name of a table: one line says so."""
    path = tmp_path / "export.sqlite"
    export(path)
    whole = path.read_bytes()
    name = b"tableCUPTI_ACTIVITY_KIND_KERNEL"
    assert name in whole
    path.write_bytes(whole.replace(name, name.replace(b"_", b"\xf7", 1)))

    assert sniff(path) is FileKind.SQLITE
    with pytest.raises(InputError, match="cannot be read as an Nsight Systems export"):
        read_export(path)
