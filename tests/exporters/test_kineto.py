"""What is written as a trace is read back as it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.analysis.timeline import timeline_of
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.importers import import_run
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Kind, Spans
from fsdpdoctor.simulate.engine.step import HostCosts
from fsdpdoctor.simulate.engine.synthetic_record import record
from tests.importers.generated import generated_rank
from tests.importers.real_traces import load
from tests.simulate.steps import step

COMPARED = (
    *("kind", "lane", "phase", "flags", "unit", "by_unit", "start_ns", "end_ns"),
    *("issued_ns", "bytes", "group", "seq"),
)
"""Op numbers and names are a file's own."""


def written(data: RankData, path: Path, **options: int | bool) -> RankData:
    """The record after a way through a file."""
    write_trace(data, path, TraceOptions(made_from="a test", **options))  # type: ignore[arg-type]
    (found,) = import_run([path]).load()
    return found


def rows(spans: Spans, kinds: tuple[Kind, ...]) -> list[tuple[int, ...]]:
    """The compared columns of some kinds, in an order of their own."""
    mine = spans.rows(np.isin(spans.kind, kinds))
    columns = [getattr(mine, name).tolist() for name in COMPARED]
    return sorted(zip(*columns, strict=True))


DEVICE = (
    *(Kind.KERNEL, Kind.COPY_IN, Kind.COPY_OUT, Kind.REDUCE_COPY_IN),
    *(Kind.ALL_GATHER, Kind.REDUCE_SCATTER),
)
HOST = (Kind.UNSHARD, Kind.REDUCE, Kind.RESHARD, Kind.MICRO_BATCH)


@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_a_device_record(tmp_path: Path, name: str) -> None:
    """Kernels, collectives, copies and calls: every column of every span."""
    data = generated_rank(layers=3, steps=2)
    found = written(data, tmp_path / name)

    assert [unit.fqn for unit in found.header.units] == [
        unit.fqn for unit in data.header.units
    ]
    assert found.header.groups == data.header.groups
    for before, after in zip(data.steps, found.steps, strict=True):
        assert (before.step, before.host_start_ns, before.host_end_ns) == (
            after.step,
            after.host_start_ns,
            after.host_end_ns,
        )
        marked = rows(after.spans, (Kind.ALL_GATHER,))
        assert sum(row[3] & 128 for row in marked) == 128  # FIRST, once
        flags = after.spans.flags & ~128
        spans = Spans(
            **{n: getattr(after.spans, n) for n in Spans.columns() if n != "flags"},
            flags=flags,
        )
        assert rows(spans, DEVICE) == rows(before.spans, DEVICE)
        assert rows(spans, HOST) == rows(before.spans, HOST)


def test_flows_and_operators_change_nothing(tmp_path: Path) -> None:
    """What makes a trace look like torch's is let go again."""
    data = generated_rank(layers=2, steps=1)
    plain = written(data, tmp_path / "rank0.json")
    full = written(data, tmp_path / "rank1.json", flows=True, operators=3)

    for name in set(Spans.columns()) - {"name"}:  # ids count other names, too
        assert np.array_equal(
            getattr(plain.steps[0].spans, name), getattr(full.steps[0].spans, name)
        )
    assert full.header.health["events"] > 2 * plain.header.health["events"]


def test_stalls_are_the_same(tmp_path: Path) -> None:
    """Exposed time survives the way through a file to the nanosecond."""
    data = generated_rank(layers=3, steps=1)
    found = written(data, tmp_path / "rank0.json")
    before = timeline_of(data, data.steps[0]).stalls
    after = timeline_of(found, found.steps[0]).stalls

    assert before.start_ns.tolist() == after.start_ns.tolist()
    assert before.end_ns.tolist() == after.end_ns.tolist()
    assert len(before) > 4


def test_a_real_trace_of_the_host(tmp_path: Path) -> None:
    """T20 read, written and read: the same collectives, waits and copies."""
    (data, _) = load("fsdp2_gloo_2ranks/prefetch")
    found = written(data, tmp_path / "trace.json")
    kinds = (
        *(Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.COPY_IN, Kind.COPY_OUT),
        *(Kind.ALL_GATHER_WAIT, Kind.REDUCE_SCATTER_WAIT, Kind.FORWARD, Kind.BACKWARD),
        *(Kind.UNSHARD, Kind.REDUCE, Kind.OPTIMIZER, Kind.MICRO_BATCH),
    )

    for before, after in zip(data.steps, found.steps, strict=True):
        assert rows(after.spans, kinds) == rows(before.spans, kinds)


def test_a_written_trace_says_that_it_is_synthetic(tmp_path: Path) -> None:
    """In its head, and in the run that is made of it."""
    path = tmp_path / "rank0.json"
    write_trace(generated_rank(steps=1), path, TraceOptions(made_from="a simulation"))

    assert json.loads(path.read_text())["fsdpdoctor_synthetic"] == "a simulation"
    assert import_run([path]).header.notes == ("synthetic trace: a simulation",)


def test_a_simulated_run(tmp_path: Path) -> None:
    """A record of passes without kernels: counts, phases, compute and exposed time of
    every step are the same, and the host that ran ahead of the device is, too.
    """
    costs = HostCosts(
        root_pre_forward_ns=5_000,
        pre_forward_ns=20_000,
        unshard_ns=30_000,
        wait_ns=10_000,
        post_forward_ns=8_000,
        pre_backward_ns=9_000,
        post_backward_ns=12_000,
        reduce_ns=40_000,
        final_callback_ns=20_000,
    )
    data = record(step(host=costs, after_ns=2 * MS))
    found = written(data, tmp_path / "rank0.json.gz")

    assert found.header.warnings == ()
    for before, after in zip(data.steps, found.steps, strict=True):
        a, b = timeline_of(data, before), timeline_of(found, after)
        shared = ("kind", "phase", "unit", "by_unit", "bytes", "start_ns", "end_ns")
        for name in shared:
            assert np.array_equal(
                getattr(a.collectives, name), getattr(b.collectives, name)
            )
        assert np.array_equal(a.compute, b.compute)
        assert (a.start_ns, a.end_ns) == (b.start_ns, b.end_ns)
        # Where one gap had two waits in it, a trace gives it to the all-gather.
        assert a.stalls.duration_ns.sum() == b.stalls.duration_ns.sum()
