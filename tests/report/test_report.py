"""Report: figures of drawn runs, their nulls, their health, and the JSON contract."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fsdpdoctor.errors import InputError, NewerFormatError
from fsdpdoctor.finding import (
    Advice,
    Confidence,
    Finding,
    Location,
    NotJudged,
    Severity,
)
from fsdpdoctor.quantities import MS
from fsdpdoctor.renderers.report_view import exposed_line
from fsdpdoctor.report import Report, decode, diagnose, encode, report_of
from fsdpdoctor.report.diagnosis import report_from
from fsdpdoctor.report.facts_health import NO_COMMUNICATION
from fsdpdoctor.report.value import (
    ByCause,
    CaptureOverlap,
    PhaseCounts,
    PhaseTimes,
    StoppedRank,
    Truncated,
)
from fsdpdoctor.run import Beat, RankData, in_memory
from fsdpdoctor.schema import (
    Evidence,
    Flag,
    GroupSpec,
    Kind,
    Phase,
    RunHeader,
    Spans,
    StepTimes,
)
from fsdpdoctor.testing import TRACED, draw, measured, unit

EARLY = """
    micro_batch         00000000000000000
    all_gather          .000001..........
    wait                .00000...........
    forward             ......001........
    unsharded           ......00000000...
    backward_all_gather .........1.......
    backward_wait       .........1.......
    backward            ..........1000...
    reduce_scatter      .............00..
    rs_wait             ...............0.
"""
LATE = EARLY.replace(
    "all_gather          .00000", "all_gather          ...000"
).replace("wait                .00000", "wait                ...000")

FINDING = Finding(
    code="FD107",
    name="duplicate-all-gather",
    severity=Severity.CRITICAL,
    confidence=Confidence.MEDIUM,
    summary="layers.1 is gathered twice",
    units=("layers.1",),
    phase="backward",
    ranks=(0, 1),
    cost_ns_per_step=3 * MS,
    cost_bytes=1 << 20,
    evidence={"counted": [2, 1.5, {"seen": None}], "exact": True},
    advice=(Advice(text="do not", code="x = 1", memory_cost_bytes=0),),
    places=(Location(rank=0, step=3, start_ns=1, end_ns=2, unit="layers.1"),),
)
NOT_JUDGED = NotJudged(
    code="FD302",
    name="allocator-pressure",
    needs=(Evidence.ALLOCATOR,),
    reason="no allocator statistics",
)


def two_ranks(**changes: Any) -> Report:
    """Rank 1 arrives 2 ms late to layers.0's first all-gather; nothing is judged."""
    ranks = (draw(EARLY, **changes), draw(LATE, rank=1, **changes))
    return report_from(measured(*ranks), [FINDING], [NOT_JUDGED])


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
        "text": "Compute waits 35.3 % of every step (6.00 ms of 17.0 ms), mostly for "
        "bytes on the wire",
        "cost_ns_per_step": 6000000,
        "code": "FD107",
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


def test_what_cannot_be_known_is_null() -> None:
    """A lone trace: no policy, windows, memory, micro-batches or other ranks."""
    picture = """
        kernel      0000..0000
        all_gather  .00000....
        copy_out    ......0...
    """
    data = draw(picture, evidence=TRACED, micro_batches=-1, model=None)
    report = report_of(measured(data, source="kineto", torch=None))

    (row,) = report.units
    assert row.all_gathers == PhaseCounts(forward=None, backward=None)
    assert row.expected_all_gathers == PhaseCounts(forward=None, backward=None)
    assert (row.unsharded_ns, row.peak_bytes) == (None, None)
    assert row.exposed_ns == PhaseTimes(forward=2 * MS, backward=0)
    assert report.exposed_ns_per_step.by_cause.straggler is None
    assert report.exposed_ns_per_step.by_cause.wire == 2 * MS
    (rank,) = report.ranks
    assert (rank.wait_ns_per_step, rank.last_arrivals) == (None, None)
    assert (rank.clock_offset_ns, rank.clock_residual_ns) == (None, None)
    assert report.recorder.overhead_share is None
    assert (report.run.torch, report.run.wrapper, report.run.numel) == (None,) * 3
    assert report.health.events is None


def test_without_stalls_or_kernels_exposure_is_null() -> None:
    """Collectives alone do not say what waited for them."""
    data = draw("all_gather .00.", evidence=(Evidence.STEPS, Evidence.COLLECTIVES))
    exposed = report_of(measured(data)).exposed_ns_per_step

    assert (exposed.total, exposed.all_gather) == (None, None)
    assert exposed.by_cause == ByCause(
        host_late=None, queued=None, straggler=None, wire=None, tail=None
    )


def test_a_run_without_whole_steps_has_no_figures() -> None:
    """Nulls, not zeros, where no step could be judged."""
    report = report_of(measured(draw(EARLY, steps=0)))

    assert report.run.steps is None
    assert (report.step_time_ns.median, report.step_time_ns.p95) == (None, None)
    assert report.exposed_ns_per_step.total is None
    assert report.units[0].exposed_ns == PhaseTimes(forward=None, backward=None)
    assert decode(encode(report)) == report


def test_a_rank_that_was_killed_is_named_with_its_last_deed() -> None:
    """The heartbeat outlives the process: unit, phase and collective are known."""
    beat = Beat(
        count=9,
        step=7,
        micro_batch=0,
        unit=1,
        kind=Kind.ALL_GATHER,
        phase=Phase.BACKWARD,
        seq=41,
        group=0,
        time_ns=0,
    )
    data = draw(EARLY)
    killed = replace(
        draw(LATE, rank=1),
        header=replace(draw(LATE, rank=1).header, ended="running"),
        beats=(beat,),
        truncated="rank00001.arrows breaks off",
    )

    health = report_of(measured(data, killed)).health

    assert health.stopped == (
        StoppedRank(
            rank=1,
            ended="running",
            step=7,
            micro_batch=0,
            unit="layers.1",
            phase="backward",
            doing="all-gather",
            group="shard",
            seq=41,
        ),
    )
    assert health.truncated == (
        Truncated(rank=1, reason="rank00001.arrows breaks off"),
    )


def test_an_import_that_never_says_it_ended_has_not_stopped() -> None:
    """Only a rank with a heartbeat can be said to have stopped."""
    data = draw(EARLY)
    silent = replace(data, header=replace(data.header, ended="running"))

    assert report_of(measured(silent)).health.stopped == ()


def test_ranks_that_left_nothing_are_named() -> None:
    """A run of four ranks of which two have records."""
    ranks = [draw(EARLY, world_size=4), draw(LATE, rank=2, world_size=4)]
    header = RunHeader(run_id="r", source="recorded", world_size=4)

    report = diagnose(in_memory(header, ranks))

    assert report.health.missing_ranks == (1, 3)
    assert (report.run.world_size, report.run.ranks) == (4, 2)


def test_steps_that_are_not_judged_are_named() -> None:
    """Warm-up, an outlier and a step cut off: each in its own list."""
    data = draw("forward 00", first_step=0, steps=9)
    steps = list(data.steps)
    steps[6] = replace(steps[6], end_ns=steps[6].start_ns + 12 * MS)
    steps[8] = replace(steps[8], complete=False)

    health = report_of(measured(replace(data, steps=tuple(steps)))).health

    assert health.judged_steps == (3, 4, 5, 7)
    assert health.warm_up_steps == (0, 1, 2)
    assert health.outlier_steps == (6,)
    assert health.incomplete_steps == (8,)


def test_communication_that_was_not_captured_is_said() -> None:
    """Two ranks without one collective do not overlap perfectly: nobody looked."""
    report = report_of(measured(draw("forward 00"), draw("forward 00", rank=1)))

    assert report.health.warnings == (NO_COMMUNICATION,)
    assert report.overlap_share.all is None


def test_a_warning_of_every_rank_is_said_once() -> None:
    """And one of a single rank with its number."""
    first = draw(EARLY, header={"warnings": ("no memory statistics",)})
    second = draw(LATE, rank=1, header={"warnings": ("no memory statistics", "late")})

    health = report_of(measured(first, second)).health

    assert health.warnings == ("every rank: no memory statistics", "rank 1: late")


def test_recording_is_priced_over_the_steps_it_left_out() -> None:
    """1 ms in each of 6 recorded steps of 2 ms, and 6 unrecorded ones: 6 of 24."""
    data = draw("forward 00")
    between = StepTimes.build(step=[20], start_ns=[0], end_ns=[2 * MS])
    warm = StepTimes.build(step=[1], start_ns=[0], end_ns=[500 * MS])
    steps = tuple(
        replace(s, recorder_ns=MS, unrecorded=StepTimes.concat([between, warm]))
        for s in data.steps
    )

    recorder = report_of(measured(replace(data, steps=steps))).recorder

    assert recorder.overhead_share == 0.25
    assert (recorder.steps_recorded, recorder.ns_per_recorded_step) == (6, MS)


def test_units_that_only_one_rank_has_are_shown() -> None:
    """Ranks whose lists differ still have every unit in the report, by name."""
    first = draw("forward 00", units=(unit("layers.0"),))
    second = draw("forward .0", rank=1, units=(unit("layers.9"),))

    rows = report_of(measured(first, second)).units

    assert [(row.unit, row.forward_ns) for row in rows] == [
        ("layers.0", 1 * MS),
        ("layers.9", MS // 2),
    ]


def test_ends_that_were_not_seen_give_no_bandwidth() -> None:
    """A collective whose end is a bound is counted, and not timed."""
    data = draw("""
        all_gather .00...
        forward    0...00
    """)
    report = report_of(measured(*[_estimated(data)]))

    (row,) = report.collectives
    assert (row.count, row.median_ns, row.algbw_gbps) == (6, None, None)


def _estimated(data: RankData) -> RankData:
    """The same rank, its collectives' ends not seen."""
    steps = []
    for record in data.steps:
        columns = {name: getattr(record.spans, name) for name in Spans.columns()}
        gathers = columns["kind"] == Kind.ALL_GATHER
        columns["flags"] = columns["flags"] | gathers * int(Flag.END_ESTIMATED)
        steps.append(replace(record, spans=Spans(**columns)))
    return replace(data, steps=tuple(steps))


def test_a_capture_without_steps_still_has_its_communication() -> None:
    """Kernels outside every step: what was exposed is said of the whole capture."""
    traced = draw(
        """
        kernel      00....00
        all_reduce  .0000...
    """,
        evidence=TRACED,
        steps=1,
    )
    loose = replace(traced, steps=(), outside=traced.steps[0].spans)

    report = report_of(measured(loose, source="kineto"))

    assert report.step_time_ns.mean is None
    assert report.capture == CaptureOverlap(
        communication_ns=4 * MS, overlapped_ns=1 * MS, exposed_ns=3 * MS
    )
    assert exposed_line(report).startswith(
        "exposed 3.00 ms in the whole capture (75.0 % of its communication"
    )
    assert decode(encode(report)) == report
