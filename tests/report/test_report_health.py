"""What a report says of its own gaps: ranks that stopped, steps left out, nulls."""

from __future__ import annotations

import pytest

from fsdpdoctor.quantities import MS
from fsdpdoctor.rank_end import GONE, Fatal
from fsdpdoctor.rank_end_files import Beat
from fsdpdoctor.renderers.report_view import exposed_line
from fsdpdoctor.report import decode, diagnose, encode, report_of
from fsdpdoctor.report.facts_health import NO_COMMUNICATION
from fsdpdoctor.report.value import (
    ByCause,
    CaptureOverlap,
    PhaseCounts,
    PhaseTimes,
    StoppedRank,
    Truncated,
)
from fsdpdoctor.run import RankData, in_memory
from fsdpdoctor.schema import (
    Evidence,
    Flag,
    Kind,
    Phase,
    RunHeader,
    Spans,
    StepTimes,
)
from fsdpdoctor.testing import TRACED, draw, measured
from tests.report.drawn_reports import EARLY, LATE
from tests.rig.changed import replace


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
    assert report.exposed_ns_per_step.by_cause.wire is None
    assert report.exposed_ns_per_step.by_cause.wire_or_straggler == 2 * MS
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

    crashed = replace(killed, fatal=Fatal(reason="Aborted"))
    stopped = report_of(measured(data, crashed)).health.stopped
    assert stopped == (replace(health.stopped[0], ended="signal: Aborted"),)


@pytest.mark.parametrize(
    ("process", "says"),
    [
        (
            GONE,
            ("rank 0: step 6 ran and had not been written when it ended: lost",),
        ),
        (
            None,
            ("rank 0: step 6 ran, not written yet: lost, if it has ended",),
        ),
        ("S", ()),
    ],
)
def test_steps_that_were_not_written_are_counted(
    process: str | None, says: tuple[str, ...]
) -> None:
    """As lost, where the rank has ended; it is not said of one that goes on."""
    data = draw(EARLY, steps=3)
    beat = Beat(9, 7, 0, -1, Kind.OPTIMIZER, Phase.OPTIMIZER, -1, -1, 1)
    header = replace(data.header, ended="running")
    rank = replace(data, header=header, beats=(beat,), process=process)

    warnings = report_of(measured(rank)).health.warnings

    assert tuple(words for words in warnings if "written" in words) == says


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


def test_a_step_is_judged_or_set_aside_never_both() -> None:
    """Two ranks with three steps each, of which each has another long one."""
    ranks = []
    for rank in (0, 1):
        data = draw("forward 00", first_step=3, steps=4, rank=rank)
        steps = list(data.steps)
        steps[rank] = replace(steps[rank], end_ns=steps[rank].start_ns + 12 * MS)
        ranks.append(replace(data, steps=tuple(steps)))

    health = report_of(measured(*ranks)).health

    assert health.judged_steps == (3, 4, 5, 6)
    assert health.outlier_steps == ()


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
    assert recorder.steps_ran == 6 + 6 * 2


def test_what_a_rank_says_twice_is_said_of_it_once() -> None:
    """Two warnings in the same words, of each of two ranks."""
    ranks = (draw("forward 00", rank=rank) for rank in range(2))
    data = [replace(r, header=replace(r.header, warnings=("w", "w"))) for r in ranks]

    assert report_of(measured(*data)).health.warnings[-1] == "every rank: w"


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
