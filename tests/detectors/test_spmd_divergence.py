"""FD406, spmd-divergence."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import reduce
from fsdpdoctor.analysis.rank_measures import measure_rank
from fsdpdoctor.detectors.run_ended import run_ended
from fsdpdoctor.detectors.spmd_divergence import spmd_divergence
from fsdpdoctor.finding import Confidence, Severity
from fsdpdoctor.hang.standing import COLLECTIVE_FILES
from fsdpdoctor.quantities import MS
from fsdpdoctor.rank_end import (
    Call,
    EndKind,
    Fatal,
    Frame,
    GroupCount,
    Position,
    RankEnd,
    Stall,
    ThreadPosition,
)
from fsdpdoctor.rank_end_files import Beat
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Evidence, GroupSpec, Kind, Phase, RunHeader
from fsdpdoctor.testing import RECORDED, TRACED, draw, measured, unit
from tests.detectors.answers import found, not_judged, only, without
from tests.rig.changed import replace

TWO_LAYERS = """
    all_gather  01........
    forward     ..00001111
"""


def beats(*events: tuple[int, int]) -> tuple[Beat, ...]:
    """All-gathers numbered from 40 on, each of a step and a unit."""
    return tuple(
        Beat(
            count=at + 1,
            step=step,
            micro_batch=0,
            unit=unit_index,
            kind=Kind.ALL_GATHER,
            phase=Phase.FORWARD,
            seq=40 + at,
            group=0,
            time_ns=at * MS,
        )
        for at, (step, unit_index) in enumerate(events)
    )


def standing(
    rank: int, *events: tuple[int, int], call: str, operands: str, line: int
) -> RankData:
    """A rank that stands still in a collective, after these last events."""
    position = Position(
        step=9,
        stack=(Frame(file="train.py", line=line, function="log", user=True),),
        call=Call(name=call, operands=operands, group="0"),
        groups=(GroupCount(name="0", ranks=(0, 1, 2), seq=50),),
    )
    stall = Stall(rank=rank, pid=1, written_unix_ns=1, after_s=5.0, position=position)
    data = draw(TWO_LAYERS, rank=rank)
    header = replace(data.header, ended="running")
    return replace(data, header=header, beats=beats(*events), stall=stall)


def test_one_rank_left_a_unit_out() -> None:
    """The last events of rank 1 have layers.1 where the others have layers.0."""
    usual = ((9, 0), (9, 1))
    m = measured(
        standing(0, *usual, call="all_gather", operands="float32[4]", line=4),
        standing(1, (9, 1), call="all_gather", operands="float32[4]", line=4),
        standing(2, *usual, call="all_gather", operands="float32[4]", line=4),
    )

    finding = only(spmd_divergence, m)

    assert finding.ranks == (1,)
    assert finding.summary == (
        "ranks took different ways in step 9: as collective 40 of group shard, rank 1 "
        "has all-gather of layers.1 (forward) of step 9, micro-batch 0, ranks 0, 2 "
        "have all-gather of layers.0 (forward) of step 9, micro-batch 0: rank 1 left "
        "out all-gather of layers.0"
    )
    assert found(run_ended, m) == []


def test_other_collectives_under_one_number() -> None:
    """Rank 1 is in a broadcast, the others in an all_reduce."""
    m = measured(
        standing(0, (9, 0), call="all_reduce", operands="float32[4]", line=4),
        standing(1, (9, 0), call="broadcast", operands="float32[4]", line=8),
        standing(2, (9, 0), call="all_reduce", operands="float32[4]", line=4),
    )

    finding = only(spmd_divergence, m)

    assert finding.ranks == (1,)
    assert finding.evidence["cause"] == "other call"
    assert "rank 1 in broadcast (float32[4]), #50 of group 0, at train.py:8 in log" in (
        finding.summary
    )


def test_other_shapes_in_one_collective() -> None:
    """Rank 2 reduces a thousand numbers, the others ten."""
    m = measured(
        standing(0, (9, 0), call="all_reduce", operands="float32[10]", line=4),
        standing(1, (9, 0), call="all_reduce", operands="float32[10]", line=4),
        standing(2, (9, 0), call="all_reduce", operands="float32[1000]", line=4),
    )

    finding = only(spmd_divergence, m)

    assert finding.ranks == (2,)
    assert finding.summary == (
        "ranks give different shapes to all_reduce at train.py:4 in log: rank 2 "
        "float32[1000], ranks 0 and 1 float32[10] in step 9, micro-batch 0"
    )


CRASH = (
    Frame(file="/job/train.py", line=4, function="log", user=True),
    Frame(file=f"/x/{COLLECTIVE_FILES[0]}", line=9, function="all_reduce", user=False),
)


def issuing(data: RankData, size: int) -> RankData:
    """The same, whose last event is the issue of so many bytes."""
    beat = Beat(9, 9, 0, -1, Kind.COLLECTIVE, Phase.OTHER, 50, 0, 9 * MS, size)
    return replace(data, beats=(beat,))


def crashing(rank: int, size: int = 0) -> RankData:
    """A rank that a fatal signal ended in the same collective."""
    fatal = Fatal(reason="Aborted", stack=CRASH, time_unix_ns=50 * MS)
    data = draw(TWO_LAYERS, rank=rank)
    header = replace(data.header, ended="running")
    return issuing(replace(data, header=header, fatal=fatal), size)


def test_who_crashed_was_sent_too_much() -> None:
    """What it gave is not known; it is not on the side that sent more."""
    finding = only(
        spmd_divergence,
        measured(
            standing(0, (9, 0), call="all_reduce", operands="float32[10]", line=4),
            crashing(1),
            standing(2, (9, 0), call="all_reduce", operands="float32[1000]", line=4),
        ),
    )

    assert finding.ranks == (2,)
    assert "rank 2 float32[1000], rank 0 float32[10], rank 1 one that is not known" in (
        finding.summary
    )


def ended_by_the_launcher(rank: int, size: int) -> RankData:
    """A rank that lost its peer in the collective, and got SIGTERM as it ended."""
    end = RankEnd(
        kind=EndKind.SIGNAL,
        time_unix_ns=60 * MS,
        signal="SIGTERM",
        position=Position(
            step=9, stack=(Frame(file="x.py", line=1, function="end", user=False),)
        ),
    )
    data = draw(TWO_LAYERS, rank=rank)
    header = replace(data.header, ended="signal: SIGTERM", end=end)
    return issuing(replace(data, header=header), size)


def test_who_came_out_of_it_and_was_ended_gave_what_it_noted() -> None:
    """Rank 2 gave a thousand numbers; only its last event says so."""
    finding = only(
        spmd_divergence,
        measured(
            issuing(
                standing(0, (9, 0), call="all_reduce", operands="float32[10]", line=4),
                40,
            ),
            crashing(1),
            ended_by_the_launcher(2, 4000),
        ),
    )

    assert finding.ranks == (2,)
    assert finding.summary == (
        "ranks give different shapes to all_reduce at train.py:4 in log: rank 2 3.91 "
        "KiB (signalled in it), rank 0 float32[10], rank 1 one that is not known "
        "(crashed in it) in step 9, micro-batch 0"
    )


def test_of_two_ranks_neither_is_more_to_blame() -> None:
    """One crashed, and the other was ended: what the one gave is told, of the other
    it is not known.
    """
    finding = only(
        spmd_divergence, measured(crashing(0), ended_by_the_launcher(1, 4000))
    )

    assert finding.ranks == (0, 1)
    assert "rank 1 3.91 KiB (signalled in it)" in finding.summary


def test_what_a_crashed_rank_gave_is_in_its_last_event() -> None:
    """Then nothing need be concluded, though one rank alone can still be asked."""
    first = standing(0, (9, 0), call="all_reduce", operands="float32[10]", line=4)
    finding = only(
        spmd_divergence,
        measured(issuing(first, 40), crashing(1, 40), crashing(2, 4000)),
    )

    assert finding.ranks == (2,)
    assert finding.summary == (
        "ranks give different shapes to all_reduce at /job/train.py:4 in log: rank 2 "
        "3.91 KiB (crashed in it), rank 0 float32[10], rank 1 40 B (crashed in it) in "
        "step 9, micro-batch 0"
    )


def test_other_counts_at_the_same_place() -> None:
    """Rank 2 has issued one more, for example on a thread that has gone since."""
    ranks = [
        standing(rank, (9, 0), call="all_reduce", operands="float32[4]", line=4)
        for rank in range(3)
    ]
    stall = ranks[2].stall
    assert stall is not None
    more = (GroupCount(name="0", ranks=(0, 1, 2), seq=51),)
    position = replace(stall.position, groups=more)
    ranks[2] = replace(ranks[2], stall=replace(stall, position=position))

    finding = only(spmd_divergence, measured(*ranks))

    assert finding.ranks == (2,)
    assert finding.summary.startswith(
        "ranks are at the same place with other counts: rank 2 issued 1 collective "
        "more before than ranks 0 and 1 (51 and 50); now all are in all_reduce"
    )


def test_the_thread_that_issued_one_more_is_named() -> None:
    """Its collective has timed out, and with it the training thread went on."""
    ranks = [
        standing(rank, (9, 0), call="all_reduce", operands="float32[4]", line=4)
        for rank in range(2)
    ]
    stall = ranks[1].stall
    assert stall is not None
    thread = ThreadPosition(
        thread="metrics",
        call=Call(name="broadcast", operands="float32[1]", group="0"),
        stack=(Frame(file="log.py", line=7, function="report", user=True),),
    )
    more = (GroupCount(name="0", ranks=(0, 1, 2), seq=51),)
    position = replace(stall.position, groups=more, threads=(thread,))
    ranks[1] = replace(ranks[1], stall=replace(stall, position=position))

    finding = only(spmd_divergence, measured(*ranks))

    assert finding.summary.startswith(
        "ranks are at the same place with other counts: rank 0 issued 1 collective "
        "fewer before than rank 1 (50 and 51); rank 1 was in broadcast on its thread "
        "metrics at log.py:7 in report; now all are in all_reduce"
    )


def test_a_collective_on_another_thread() -> None:
    """The training thread of rank 1 waits for its own thread, in the same number."""
    ranks = [
        standing(rank, (9, 0), call="all_gather", operands="float32[4]", line=4)
        for rank in range(3)
    ]
    stall = ranks[1].stall
    assert stall is not None
    thread = ThreadPosition(
        thread="metrics",
        call=Call(name="all_reduce", operands="float32[1]", group="0"),
        stack=(Frame(file="log.py", line=7, function="report", user=True),),
    )
    position = replace(stall.position, call=None, threads=(thread,))
    ranks[1] = replace(ranks[1], stall=replace(stall, position=position))

    finding = only(spmd_divergence, measured(*ranks))

    assert finding.ranks == (1,)
    assert (
        "rank 1 in all_reduce (float32[1]), #50 of group 0, on its thread metrics at "
        "log.py:7 in report"
    ) in finding.summary


def test_a_rank_that_left_the_loop_early() -> None:
    """Rank 1 ended well, rank 0 waits for it: no error of rank 0's is the cause."""
    waiting = standing(0, (9, 0), call="all_gather", operands="float32[4]", line=4)
    done = replace(draw(TWO_LAYERS, rank=1), beats=beats((9, 0)))
    m = measured(waiting, replace(done, header=replace(done.header, ended="done")))

    finding = only(spmd_divergence, m)

    assert finding.ranks == (1,)
    assert finding.summary.startswith(
        "rank 1 ended well after 10 steps, while rank 0 was still in all_gather"
    )
    assert found(run_ended, m) == []


def test_three_ranks_name_the_one_that_differs() -> None:
    """Two agree on step 3; the third moves other bytes."""
    groups = (GroupSpec(name="shard", ranks=(0, 1, 2), size=3),)
    m = measured(
        draw(TWO_LAYERS, groups=groups),
        draw(TWO_LAYERS, groups=groups, rank=1, bytes=3 << 20),
        draw(TWO_LAYERS, groups=groups, rank=2),
    )

    finding = only(spmd_divergence, m)

    assert finding.ranks == (1,)
    assert finding.summary.startswith("ranks 0 and 1 differ in step 3")


def test_a_different_unit_at_the_same_place() -> None:
    """The second gather of step 3 moves other bytes on rank 1."""
    here = draw(TWO_LAYERS)
    there = draw(TWO_LAYERS, rank=1, bytes=3 << 20)

    finding = only(spmd_divergence, measured(here, there))

    assert finding.ranks == (0, 1)
    assert finding.units == ("layers.0",)
    assert finding.summary == (
        "ranks 0 and 1 differ in step 3, collective 0 of group shard: rank 0 has "
        "all_gather of layers.0 (1.00 MiB), rank 1 has all_gather of layers.0 "
        "(3.00 MiB)"
    )


def test_a_collective_that_one_rank_leaves_out() -> None:
    """Rank 1 never gathers layers.1."""
    skipping = draw(
        TWO_LAYERS.replace("01........", "0........."),
        rank=1,
        units=(unit("layers.0"), unit("layers.1")),
    )

    finding = only(spmd_divergence, measured(draw(TWO_LAYERS), skipping))

    assert finding.units == ("layers.1",)
    assert finding.evidence["1"] == "rank 1 has no more"
    assert finding.evidence["position"] == 1


def test_ranks_in_collectives_of_their_own_groups_may_go_on() -> None:
    """While they run: a stage that is slow is no divergence. A warning."""
    m = measured(
        in_group(standing(0, (9, 0), call="send", operands="float32[4]", line=4), "a"),
        in_group(
            standing(1, (9, 0), call="all_reduce", operands="float32[4]", line=8), "b"
        ),
    )

    assert only(spmd_divergence, m).severity == Severity.WARNING


def in_group(data: RankData, name: str) -> RankData:
    """A rank that stands still in another group."""
    assert data.stall is not None
    assert data.stall.position.call is not None
    position = replace(
        data.stall.position,
        call=replace(data.stall.position.call, group=name),
        groups=(GroupCount(name=name, ranks=(0, 1), seq=50),),
    )
    return replace(data, stall=replace(data.stall, position=position))


def test_groups_of_unknown_ranks_are_not_compared() -> None:
    """Groups of one name on two ranks may be two groups; one rank may list both."""
    groups = (GroupSpec(name="0", ranks=(), size=2),) * 2
    here = draw(TWO_LAYERS, groups=groups)
    there = draw(TWO_LAYERS, rank=1, groups=groups, bytes=3 << 20)

    assert found(spmd_divergence, measured(here, there)) == []


def test_a_capture_proves_less_than_a_record() -> None:
    """It drops events, and begins elsewhere."""
    here = draw(TWO_LAYERS, evidence=TRACED)
    there = draw(TWO_LAYERS, evidence=TRACED, rank=1, bytes=3 << 20)

    finding = only(spmd_divergence, measured(here, there))

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LOW)


def test_ranks_without_a_record_are_named() -> None:
    """One of two left nothing, and the other was recorded live."""
    data = replace(draw(TWO_LAYERS), beats=beats((9, 0)))
    header = RunHeader(run_id="drawn", source="recorded", world_size=2)

    finding = only(
        spmd_divergence, reduce(header, [measure_rank(data)], missing_ranks=(1,))
    )

    assert finding.severity == Severity.WARNING
    assert finding.ranks == (1,)


def test_one_trace_of_a_job_cannot_tell() -> None:
    """A single rank, and no word of how it ended."""
    assert not_judged(spmd_divergence, measured(draw(TWO_LAYERS))).needs == (
        Evidence.RANKS,
    )
    bare = draw(TWO_LAYERS, evidence=without(RECORDED, Evidence.STEPS))
    assert not_judged(spmd_divergence, measured(bare)).needs == (Evidence.STEPS,)
