"""Stalls, causes, budget, counts and overlap of drawn steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.overlap import Overlap
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.quantities import MS
from fsdpdoctor.rank_end_files import Beat
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    NO_TIME,
    Evidence,
    Kind,
    MemoryMoment,
    MemoryStep,
    Phase,
    Spans,
    StepRecord,
)
from fsdpdoctor.testing import TRACED, draw, measured, unit


def causes_ms(m: Measures, rank: int = 0) -> dict[str, int]:
    """Milliseconds per step and cause of one rank's stalls."""
    steps = len(m.ranks[rank].steps)
    return {c: int(m.causes[rank][c].sum()) // MS // steps for c in CAUSES}


def budget_ms(m: Measures) -> dict[str, int]:
    """The parts of the mean step that are not nothing, in milliseconds."""
    return {k: v // MS for k, v in m.budget_ns_per_step().items() if v}


def test_a_stall_is_split_by_what_delayed_it() -> None:
    """A wait from 1 to 10: late until 2, queued to 4, wire to 8, then the tail."""
    m = measured(
        draw("""
            issue       ..0.........
            all_gather  ....0000....
            wait        .000000000..
            forward     ..........00
        """)
    )

    assert causes_ms(m) == {
        "host_late": 1,
        "queued": 2,
        "straggler": 0,
        "wire": 4,
        "tail": 2,
    }
    assert m.exposed_ns_per_step() == 9 * MS


def test_the_last_rank_makes_the_others_wait() -> None:
    """Rank 1 arrives 3 ms late: rank 0 waits 3 for it, then 2 for the wire."""
    early = draw("""
        all_gather  .00000..
        wait        .00000..
        forward     ......00
    """)
    late = draw(
        """
        all_gather  ....00..
        wait        ....00..
        forward     ......00
    """,
        rank=1,
    )

    m = measured(early, late)

    assert causes_ms(m, 0)["straggler"] == 3
    assert causes_ms(m, 0)["wire"] == 2
    assert causes_ms(m, 1) == dict.fromkeys(CAUSES, 0) | {"wire": 2}
    assert set(m.alignment.last_rank[0].tolist()) == {1}


@pytest.mark.parametrize(("steps", "told"), [(9, True), (6, True), (4, False)])
def test_who_was_late_is_told_where_others_have_the_steps(
    steps: int, *, told: bool
) -> None:
    """Rank 0 judges steps 3 to 8. Of a rank whose record breaks off, most of them have
    to be there: else what is a late rank's would be called the wire's.
    """
    whole = draw(GATHERED, first_step=0, steps=9)
    m = measured(whole, draw(GATHERED, rank=1, first_step=0, steps=steps))

    assert m.ranks[0].judged_steps.tolist() == [3, 4, 5, 6, 7, 8]
    assert m.late_ranks_told == told
    assert (Evidence.RANKS in m.evidence) == told


def test_a_trace_has_steps_of_its_own() -> None:
    """Each rank's may be numbered from where its capture begins."""
    first = draw(GATHERED, evidence=TRACED)
    other = draw(GATHERED, rank=1, evidence=TRACED)
    later = tuple(replace(one, step=one.step + 7) for one in other.steps)

    assert Evidence.RANKS in measured(first, replace(other, steps=later)).evidence


GATHERED = """
    all_gather  .00000..
    wait        .00000..
    forward     ......00
"""


def test_a_hidden_all_gather_costs_nothing() -> None:
    """A gather under compute is overlapped whole, and no stall."""
    m = measured(
        draw("""
            all_gather  ..111.......
            forward     000000111111
        """)
    )

    assert m.exposed_ns_per_step() == 0
    assert m.overlap("all_gather").share == 1.0


def test_the_budget_adds_up_to_the_step() -> None:
    """Every millisecond of a step belongs to one part."""
    m = measured(
        draw("""
            input       x...............
            all_gather  .00.............
            wait        .00.............
            copy_out    ...0............
            forward     ....0000........
            backward    ........0000....
            rs_wait     ............0...
            reduce_scatter ..........000...
            optimizer   .............xx.
        """)
    )

    assert budget_ms(m) == {
        "input": 1,
        "exposed_all_gather": 2,
        "copy": 1,
        "forward": 4,
        "backward": 4,
        "exposed_reduce_scatter": 1,
        "optimizer": 2,
        "other": 1,
    }
    assert sum(m.budget_ns_per_step().values()) == m.median_step_ns


def test_a_gc_pause_is_not_forward_on_the_hosts_clock() -> None:
    """The thread that collects garbage is the thread that runs the forward."""
    m = measured(
        draw("""
            forward  000000
            gc       ..xx..
        """)
    )

    assert budget_ms(m) == {"gc": 2, "forward": 4}


def test_a_parents_own_time_leaves_its_children_out() -> None:
    """Unit 0's forward spans 10 ms, of which 1's takes 4 and 1's stall 2."""
    m = measured(
        draw("""
            forward  0000000000
            forward  ....1111..
            all_gather ..11......
            wait     ..11......
        """)
    )

    times = m.ranks[0].unit_times
    first = times.step == times.step[0]

    assert times.unit[first].tolist() == [0, 1]
    assert (times.compute_ns[first] // MS).tolist() == [4, 4]


def test_a_traces_stall_is_the_gap_before_the_copy_out() -> None:
    """Kernels end at 4, the gather at 8, its copy-out starts at 9: 4 + 1 ms."""
    m = measured(
        draw(
            """
            kernel      0000......1111
            issue       .1............
            all_gather  ..111111......
            copy_out    .........1....
        """,
            evidence=TRACED,
        )
    )

    assert m.exposed_ns_per_step(Kind.ALL_GATHER) == 5 * MS
    assert causes_ms(m) == dict.fromkeys(CAUSES, 0) | {"wire": 4, "tail": 1}
    assert m.overlap("all_gather").exposed_ns == 6 * 4 * MS


def test_a_copy_in_does_not_end_a_stall() -> None:
    """It runs on its own stream while compute waits from 2 to 9 for the gather."""
    m = measured(
        draw(
            """
            kernel      00.......1
            issue       .1........
            copy_in     ...11.....
            all_gather  .....111..
            copy_out    .........1
        """,
            evidence=TRACED,
        )
    )

    assert m.exposed_ns_per_step(Kind.ALL_GATHER) == 7 * MS


def test_two_collectives_share_no_stall() -> None:
    """A gap in which two collectives ran is exposed once."""
    m = measured(
        draw(
            """
            kernel          00......00
            all_reduce      ..0000....
            reduce_scatter  ....0000..
        """,
            evidence=TRACED,
        )
    )

    assert m.exposed_ns_per_step() == 6 * MS
    assert m.exposed_ns_per_step(Kind.ALL_REDUCE) == 4 * MS
    assert m.exposed_ns_per_step(Kind.REDUCE_SCATTER) == 2 * MS


def test_expected_gathers_follow_the_policy() -> None:
    """Resharded units gather again in backward; the others do not."""
    picture = """
        micro_batch 000000000000
        all_gather  01..........
        backward_all_gather ......1.....
        forward     .01.........
        backward    .......10...
        unsharded   .00000000...
        unsharded   ..1....1....
    """
    m = measured(
        draw(
            picture,
            units=(
                unit("<root>", is_root=True, reshard_after_forward=False),
                unit("layers.0"),
            ),
        )
    )

    times = m.ranks[0].unit_times.rows(
        m.ranks[0].unit_times.step == m.ranks[0].steps.step[0]
    )
    rows = list(
        zip(
            times.unit.tolist(),
            times.phase.tolist(),
            times.all_gathers.tolist(),
            times.expected_all_gathers.tolist(),
            strict=True,
        )
    )
    assert rows == [
        (0, Phase.FORWARD, 1, 1),
        (0, Phase.BACKWARD, 0, 0),
        (1, Phase.FORWARD, 1, 1),
        (1, Phase.BACKWARD, 1, 1),
    ]


def test_warm_up_and_outliers_are_not_judged() -> None:
    """The first three steps are left out, and one six times as long is set aside."""
    data = draw("forward 00", first_step=0, steps=8)
    long = replace(data.steps[6], end_ns=data.steps[6].start_ns + 12 * MS)
    steps = (*data.steps[:6], long, *data.steps[7:])

    rank = measured(replace(data, steps=steps)).ranks[0]

    assert rank.judged_steps.tolist() == [3, 4, 5, 7]
    assert rank.outliers == (6,)


def disturbed(rank: int, *long: int, cut: int | None = None) -> RankData:
    """A rank of which some steps take six times as long, and one was cut off."""
    data = draw("all_gather 00..\nforward .000", rank=rank, first_step=0, steps=12)
    steps = [
        replace(
            step,
            end_ns=step.start_ns + (24 if step.step in long else 4) * MS,
            complete=step.step != cut,
        )
        for step in data.steps
    ]
    return replace(data, steps=tuple(steps))


@pytest.mark.parametrize(
    ("left", "judged"), [(2, []), (4, [3]), (5, [3, 4]), (9, [3, 4, 5, 6, 7, 8])]
)
def test_a_rank_that_was_cut_off_early_judges_no_cold_step(
    left: int, judged: list[int]
) -> None:
    """It has too few to set its own warm-up aside, and takes the other's."""
    whole = draw("forward 00", first_step=0, steps=10)
    cut = draw("forward 00", first_step=0, steps=left, rank=1)
    m = measured(whole, cut)

    assert m.ranks[0].judged_steps.tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert m.ranks[1].judged_steps.tolist() == judged


def test_ranks_of_few_steps_keep_those_they_have() -> None:
    """No rank can set three of four aside, or any of two."""
    four, two = (
        [draw("forward 00", first_step=0, steps=n, rank=r) for r in range(2)]
        for n in (4, 2)
    )

    for ranks, judged in ((four, [1, 2, 3]), (two, [0, 1])):
        assert [r.judged_steps.tolist() for r in measured(*ranks).ranks] == [judged] * 2


def test_what_one_rank_sets_aside_all_do() -> None:
    """Rank 0 is long in step 5, rank 1 cut off in step 11; overlap follows."""
    m = measured(disturbed(0, 5), disturbed(1, cut=11))

    for rank in m.ranks:
        assert rank.judged_steps.tolist() == [3, 4, 6, 7, 8, 9, 10]
        assert rank.outliers == (5,)
        assert rank.overlap["all"] == Overlap(
            communication_ns=7 * 2 * MS, overlapped_ns=7 * MS
        )
    assert len(m.step_ns) == 14


def test_of_many_disturbed_ranks_half_decide() -> None:
    """Each of eight has a long step of its own, and five of them the last one."""
    ranks = [disturbed(at, 3 + at, *([11] if at < 5 else [])) for at in range(8)]

    judged = {tuple(r.judged_steps.tolist()) for r in measured(*ranks).ranks}

    assert judged == {(3, 4, 5, 6, 7, 8, 9, 10)}


def test_a_stranger_clock_is_aligned_on_ends() -> None:
    """A rank whose clock is 1 s ahead arrives when it arrived, not when it says."""
    picture = """
        all_gather  .0000.
        wait        .0000.
        forward     .....0
    """
    here = draw(picture, clock="cuda")
    there = draw(picture.replace(".0000.", "...00."), rank=1, clock="cuda")
    ahead = tuple(shifted(record, 1_000 * MS) for record in there.steps)

    m = measured(here, replace(there, steps=ahead))

    assert m.alignment.clocks[1].offset_ns == 1_000 * MS
    assert m.alignment.clocks[1].residual_ns == 0
    assert causes_ms(m, 0)["straggler"] == 2


def shifted(record: StepRecord, by_ns: int) -> StepRecord:
    """The same step on a clock that is ahead."""
    columns = {name: getattr(record.spans, name) for name in Spans.columns()}
    for name in ("start_ns", "end_ns", "issued_ns"):
        columns[name] = columns[name] + by_ns * (columns[name] != NO_TIME)
    return replace(
        record,
        start_ns=record.start_ns + by_ns,
        end_ns=record.end_ns + by_ns,
        spans=Spans(**columns),
    )


def test_of_a_rank_is_kept_what_is_asked_of_it() -> None:
    """Its events since its last whole step, the last one in any case; no moments."""
    data = draw("forward 0000")
    last = int(data.steps[-1].step)
    beats = tuple(
        Beat(count, step, 0, 0, 1, 1, 0, 0, count)
        for count, step in enumerate((last - 1, last, last + 1, last + 1), start=1)
    )
    moment = MemoryMoment(time_ns=1, event="forward", bytes=(1,))
    memory = MemoryStep(step=0, moments=(moment,), peak_bytes=7)
    header = replace(data.header, memory=memory)

    cut_off, whole = (
        measured(replace(data, header=header, beats=those)).ranks[0]
        for those in (beats, beats[:2])
    )
    assert cut_off.beats == beats[2:]
    assert whole.beats == beats[1:2]
    assert cut_off.header.memory == replace(memory, moments=())


def test_stalls_are_found_by_rank() -> None:
    """In the order of ranks, of whatever kind they are."""
    waits = """
        all_gather  0000
        wait        0000
        forward     ....
    """
    ranks = [draw(waits, rank=rank) for rank in range(3)]
    rows = exposed(measured(*ranks)).of(Kind.ALL_GATHER)
    each = [rows.rows.rank[rows.rows_of(rank)].tolist() for rank in range(4)]

    assert each == [[0] * len(each[0]), [1] * len(each[0]), [2] * len(each[0]), []]
    assert len(each[0]) > 0


def test_a_rank_without_a_step_takes_no_evidence_from_the_others() -> None:
    """As one that hands out data does; where no rank has steps, each counts."""
    trained = draw("forward  00", rank=0)
    idle = draw("forward  00", rank=1, steps=0, evidence=(Evidence.CONFIG,))

    assert Evidence.STALLS in measured(trained, idle).evidence
    assert measured(idle).evidence == {Evidence.CONFIG}
