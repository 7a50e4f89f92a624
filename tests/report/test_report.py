"""Report: figures of drawn runs, their nulls, their health, and the JSON contract."""

from __future__ import annotations

import json

import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.errors import InputError, NewerFormatError
from fsdpdoctor.quantities import MS
from fsdpdoctor.report import decode, encode, report_of
from fsdpdoctor.report.diagnosis import diagnose, report_from
from fsdpdoctor.report.value import (
    PhaseCounts,
    PhaseTimes,
    ScriptRow,
)
from fsdpdoctor.run import in_memory
from fsdpdoctor.schema import GroupSpec, ModelSpec, RunHeader
from fsdpdoctor.testing import draw, measured, unit
from tests.report.drawn_reports import two_ranks


def test_json_gives_back_the_report() -> None:
    """Findings, evidence and nulls come back as they were."""
    report = two_ranks()

    assert decode(encode(report)) == report


def test_a_damaged_or_newer_report_is_refused() -> None:
    """Each gets its own sentence."""
    newer = encode(two_ranks()).replace('"schema_version": 1', '"schema_version": 7', 1)

    with pytest.raises(NewerFormatError, match="format 7"):
        decode(newer)
    with pytest.raises(InputError, match="not a report"):
        decode(b'{"schema_version": 1, "run": []}')


def test_the_json_contract() -> None:
    """Every name that tools rely on is where the contract has it."""
    content = json.loads(encode(two_ranks()))

    assert content["schema_version"] == 1
    assert content["run"]["steps"] == [3, 8]
    assert {"source", "world_size", "device", "torch"} <= content["run"].keys()
    assert {"median", "p95"} <= content["step_time_ns"].keys()
    exposed = content["exposed_ns_per_step"]
    assert {"all_gather", "reduce_scatter", "all_reduce", "by_cause"} <= exposed.keys()
    assert list(exposed["by_cause"]) == [
        "host_late",
        "queued",
        "straggler",
        "wire",
        "tail",
        "wire_or_straggler",
    ]
    assert {"all_gather", "reduce_scatter", "all"} <= content["overlap_share"].keys()
    assert {
        "unit",
        "all_gathers",
        "expected_all_gathers",
        "reduce_scatters",
        "all_gather_bytes",
        "reduce_scatter_bytes",
        "exposed_ns",
        "forward_ns",
        "backward_ns",
        "peak_bytes",
        "unsharded_ns",
    } <= content["units"][0].keys()
    assert list(content["units"][0]["all_gathers"]) == ["forward", "backward"]
    assert {
        "group",
        "kind",
        "bytes",
        "count",
        "median_ns",
        "algbw_gbps",
        "busbw_gbps",
    } <= content["collectives"][0].keys()
    assert {
        "rank",
        "overlap_share",
        "exposed_ns_per_step",
        "wait_ns_per_step",
        "last_arrivals",
        "clock_offset_ns",
        "clock_residual_ns",
    } <= content["ranks"][0].keys()


def test_the_json_contract_of_findings() -> None:
    """A finding, the verdict, and what was not judged, whole."""
    content = json.loads(encode(two_ranks()))

    assert content["findings"][0] == {
        "code": "FD107",
        "name": "duplicate-all-gather",
        "severity": "critical",
        "confidence": "medium",
        "units": ["layers.1"],
        "phase": "backward",
        "ranks": [0, 1],
        "cost_ns_per_step": 3 * MS,
        "cost_bytes": 1 << 20,
        "summary": "layers.1 is gathered twice",
        "evidence": {"counted": [2, 1.5, {"seen": None}], "exact": True},
        "advice": [
            {
                "text": "do not",
                "code": "x = 1",
                "memory_cost_bytes": 0,
                "predicted_gain_ns": None,
                "predicted_error_ns": None,
                "change": None,
            }
        ],
        "places": [
            {"rank": 0, "step": 3, "start_ns": 1, "end_ns": 2, "unit": "layers.1"}
        ],
        "part_of": None,
    }
    assert content["verdict"] == {
        "kind": "exposed",
        "text": "Compute waits 35.3 % of every step (6.00 ms of 17.0 ms on average), "
        "mostly for bytes on the wire",
        "cost_ns_per_step": 6000000,
        "code": "FD107",
        "most_to_gain": {"code": "FD107", "text": "do not", "up_to_ns": 3000000},
        "best_change": None,
        "floor_ns": 11000000,
    }
    assert content["not_judged"] == [
        {
            "code": "FD302",
            "name": "allocator-pressure",
            "needs": ["allocator"],
            "reason": "no allocator statistics",
        }
    ]
    assert {"events", "repaired", "dropped", "warnings"} <= content["health"].keys()
    assert {"overhead_share", "steps_recorded"} <= content["recorder"].keys()


def test_exposed_time_adds_up_to_the_nanosecond() -> None:
    """Kinds, causes and their table are sums of the same whole numbers."""
    exposed = two_ranks().exposed_ns_per_step

    assert exposed.total == 6 * MS  # rank 0: 5 + 1 + 1, rank 1: 3 + 1 + 1
    cells = [
        getattr(row, cause)
        for row in exposed.by_kind_and_cause.values()
        for cause in ("host_late", "queued", "straggler", "wire", "tail")
    ]
    assert sum(cells) == exposed.total
    assert exposed.by_cause.straggler == 1 * MS  # 2 on rank 0, none on rank 1


def test_causes_of_a_units_exposed_time_add_up_to_it() -> None:
    """By cause, by phase and by kind it is one and the same time."""
    units = two_ranks().units

    by_cause = [unit.exposed_ns_by_cause for unit in units]
    assert sum(cause.straggler or 0 for cause in by_cause if cause) == 1 * MS
    for row, cause in zip(units, by_cause, strict=True):
        assert cause is not None
        parts = (cause.host_late, cause.queued, cause.straggler, cause.wire, cause.tail)
        phases = (row.exposed_ns.forward, row.exposed_ns.backward)
        assert sum(map(int, filter(None, parts))) == sum(map(int, filter(None, phases)))


def test_units_are_counted_against_their_policy() -> None:
    """layers.0 misses the backward gather that its policy asks for."""
    first, second = two_ranks().units

    assert first.all_gathers == PhaseCounts(forward=1.0, backward=0.0)
    assert first.expected_all_gathers == PhaseCounts(forward=1.0, backward=1.0)
    assert second.all_gathers == PhaseCounts(forward=1.0, backward=1.0)
    assert second.expected_all_gathers == PhaseCounts(forward=1.0, backward=1.0)
    assert (first.reduce_scatters, second.reduce_scatters) == (1.0, 0.0)
    assert first.exposed_ns == PhaseTimes(forward=4 * MS, backward=1 * MS)
    assert (first.forward_ns, first.backward_ns) == (2 * MS, 3 * MS)
    assert (first.all_gather_bytes, second.reduce_scatter_bytes) == (1 << 20, None)
    assert (first.unsharded_ns, second.unsharded_ns) == (8 * MS, 0)
    assert first.peak_bytes is None


def test_counts_are_per_micro_batch() -> None:
    """A reduce-scatter in one of two micro-batches is half of one."""
    first, _ = two_ranks(micro_batches=2).units

    assert first.reduce_scatters == 0.5
    assert first.all_gathers == PhaseCounts(forward=0.5, backward=0.0)


def test_bandwidth_has_the_algorithms_factor() -> None:
    """2 MB gathered over 4 ranks in 2 ms: 1 GB/s, of which a bus moves 3/4."""
    group = GroupSpec(name="g", ranks=(0, 1, 2, 3), size=4)
    report = report_from(
        measured(
            draw(
                """
                all_gather     .00......
                reduce_scatter ....00...
                all_reduce     ......00.
                forward        0000..000
                """,
                groups=(group,),
                bytes=2_000_000,
            )
        ),
        [],
        [],
    )

    assert [
        (row.kind, row.count, row.median_ns, row.algbw_gbps, row.busbw_gbps)
        for row in report.collectives
    ] == [
        ("all_gather", 6, 2 * MS, 1.0, 0.75),
        ("reduce_scatter", 6, 2 * MS, 1.0, 0.75),
        ("all_reduce", 6, 2 * MS, 1.0, 1.5),
    ]
    assert {row.median_wire_ns for row in report.collectives} == {None}


def test_ranks_say_who_waits_for_whom() -> None:
    """Rank 1 is last to layers.0's gathers, and costs rank 0 2 ms a step."""
    first, second = two_ranks().ranks

    assert (first.wait_ns_per_step, second.wait_ns_per_step) == (2 * MS, 0)
    assert (first.wait_caused_ns_per_step, second.wait_caused_ns_per_step) == (
        0,
        2 * MS,
    )
    assert (first.last_arrivals, second.last_arrivals) == (0, 6)
    assert (first.exposed_ns_per_step, second.exposed_ns_per_step) == (7 * MS, 5 * MS)


def test_models_without_a_unit_leave_the_others_theirs() -> None:
    """A sharded loss has no parameters, but a number: the others come after it."""
    units = (unit("0 [tree=1]", tree=1, model=1), unit("0 [tree=2]", tree=2, model=2))
    spec = ModelSpec(wrapper="fsdp2", models=("Loss", "Actor", "Critic"))
    report = report_of(measured(draw("forward  01", units=units, model=spec)))

    assert [row.name for row in report.models] == ["Actor", "Critic"]
    assert [row.model for row in report.units] == [0, 1]


def test_units_that_only_one_rank_has_are_shown() -> None:
    """Ranks whose lists differ still have every unit in the report, by name."""
    first = draw("forward 00", units=(unit("layers.0"),))
    second = draw("forward .0", rank=1, units=(unit("layers.9"),))

    rows = report_of(measured(first, second)).units

    assert [(row.unit, row.forward_ns) for row in rows] == [
        ("layers.0", 1 * MS),
        ("layers.9", MS // 2),
    ]


@pytest.mark.parametrize(
    ("until", "shown"),
    [("train.py:78", "78"), ("loop.py:3", "loop.py:3"), (None, None)],
)
def test_a_stretch_within_one_file_names_it_once(
    until: str | None, shown: str | None
) -> None:
    """From train.py:80 to 78, but from train.py:80 to loop.py:3."""
    row = ScriptRow(where="train.py:80", until=until, activity="edge", ns_per_step=1)
    assert row.until_line == shown


def test_a_run_is_measured_judged_and_said_in_one_call() -> None:
    """The report is that of its measures; each rank is told as it is done."""
    data = draw("forward 0000")
    run = in_memory(RunHeader(run_id="a", source="recorded", world_size=2), [data])
    seen: list[int] = []

    assert diagnose(run, None, seen.append) == report_of(measure(run), run)
    assert seen == [0]
