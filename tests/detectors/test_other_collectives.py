"""FD407, other-collectives, and FD901, unexplained."""

from __future__ import annotations

import pytest

from fsdpdoctor.detectors.other_collectives import other_collectives
from fsdpdoctor.detectors.unexplained import unexplained
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.report.other_collectives import (
    other_collective_rows,
    script_rows,
    unexplained_ns,
)
from fsdpdoctor.report.value import OtherCollectiveRow
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Activity, Evidence, ModelSpec, Phase, Within
from fsdpdoctor.testing import (
    GROUP,
    RECORDED,
    Call,
    Drawing,
    Sample,
    draw,
    measured,
    unit,
)
from tests.detectors.answers import codes, found, not_judged, only
from tests.rig.changed import replace

SEEN = (*RECORDED, Evidence.OTHER_COLLECTIVES, Evidence.STACKS)
AROUND = Drawing(
    evidence=SEEN, samples=(Sample(at=0, activity=Activity.EDGE, site="a"),)
)

GATHERS = """
    forward    00000000..............
    other      .........0.0.0.0.0....
    other_wait .........0.0.0.0.0....
    optimizer  ........xxxxxxxxxxxx..
"""


def gathering(within: Within, phase: Phase = Phase.OPTIMIZER) -> RankData:
    """Five gathers of 1 ms in a step of 22 ms."""
    call = Call(
        kind="all_gather",
        site="muon.py:7",
        via="full_tensor",
        within=within,
        phase=phase,
    )
    return draw(GATHERS, AROUND, calls=(call,))


def test_an_optimizers_gathers_are_named() -> None:
    """5 of 22 ms: critical, with line, function, number and where they ran."""
    (finding,) = found(other_collectives, measured(gathering(Within.OPTIMIZER)))

    assert (finding.severity, finding.cost_ns_per_step) == (Severity.CRITICAL, 5 * MS)
    assert finding.summary == (
        "5 all-gathers a step of 1.00 MiB each at muon.py:7 (full_tensor) inside the "
        "optimizer's step: compute stands still for 5.00 ms per step (22.7 % of the "
        "step)"
    )
    assert "one rank own each matrix" in finding.advice[0].text
    assert finding.evidence["per_step"] == 5


def test_the_budget_takes_them_out_of_the_optimizer() -> None:
    """12 ms of optimizer are 7 and 5, and nothing is counted twice."""
    m = measured(gathering(Within.OPTIMIZER))
    budget = m.budget_ns_per_step()

    assert budget["exposed_other_communication"] == 5 * MS
    assert budget["optimizer"] == 7 * MS
    assert sum(budget.values()) == 22 * MS


def test_another_parallelisms_are_named_not_blamed() -> None:
    """Of the same cost, inside a unit: information."""
    (finding,) = found(
        other_collectives, measured(gathering(Within.UNIT, Phase.FORWARD))
    )

    assert (finding.severity, finding.phase) == (Severity.INFO, "forward")


def test_advice_goes_by_what_they_ran_in() -> None:
    """The script gathers unit by unit, clipping calls the built-in function."""
    (script,) = found(
        other_collectives, measured(gathering(Within.SCRIPT, Phase.OTHER))
    )
    (clip,) = found(other_collectives, measured(gathering(Within.CLIP)))

    assert "unit.unshard()" in codes(script)[0]
    assert "clip_grad_norm_" in codes(clip)[0]


def test_a_checkpoint_s_own_are_not_the_script_s_to_change() -> None:
    """`dcp.save` agrees on its plan with collectives of its own."""
    call = Call(
        kind="broadcast", site="save.py:9", via="save", within=Within.CHECKPOINT
    )
    (finding,) = found(
        other_collectives, measured(draw(GATHERS, AROUND, calls=(call,)))
    )

    assert finding.advice[0].text.startswith("They are the checkpoint's own")


def test_a_state_dict_need_not_be_whole() -> None:
    """One that is gathered is not read unit by unit instead."""
    call = Call(
        kind="all_gather",
        site="save.py:9",
        via="get_model_state_dict",
        within=Within.CHECKPOINT,
    )
    finding = only(other_collectives, measured(draw(GATHERS, AROUND, calls=(call,))))

    assert finding.advice[0].text.startswith("Keep shards")
    assert codes(finding) == []


def test_an_optimizers_reductions_are_put_together() -> None:
    """No rank needs to own a number."""
    call = Call(kind="all_reduce", site="lamb.py:4", within=Within.OPTIMIZER)
    (finding,) = found(
        other_collectives, measured(draw(GATHERS, AROUND, calls=(call,)))
    )

    assert "one tensor" in finding.advice[0].text
    assert "own" not in finding.advice[0].text


def test_what_is_seldom_is_not_averaged_away() -> None:
    """Five gathers in one of six steps are not one a step."""
    busy = draw(GATHERS, AROUND, calls=(EXPORT,))
    (first, *_), (_, *rest) = busy.steps, draw(IDLE, AROUND).steps
    data = replace(busy, steps=(first, *rest))
    (finding,) = found(other_collectives, measured(data))

    assert finding.summary.startswith(
        "5 all-gathers of 1.00 MiB each in 1 of 6 judged steps at save.py:9"
    )
    assert finding.evidence["per_step"] == 0.8333


IDLE = """
    forward    00000000..............
    optimizer  ........xxxxxxxxxxxx..
"""
EXPORT = Call(kind="all_gather", site="save.py:9", via="full_tensor")

ONE = """
    forward    00000000..
    other      ........00
    other_wait ........00
"""


def one(kind: str, within: Within = Within.SCRIPT, rank: int = 0) -> RankData:
    """One collective of 2 in 10 ms, at the end of the step."""
    call = Call(kind=kind, site="train.py:3", within=within)
    return draw(ONE, AROUND, calls=(call,), rank=rank)


def test_what_one_waits_for_is_the_last_rank() -> None:
    """A gradient norm whose 2 ms are 1.9 of waiting for a rank that comes late."""
    late = draw(
        """
        forward    0000000000000000000.
        other      ...................0
        other_wait ...................0
        """,
        AROUND,
        calls=(Call(kind="all_reduce", site="train.py:3"),),
        rank=1,
        scale_ns=MS // 10,
    )
    early = one("all_reduce")

    assert found(other_collectives, measured(early, late)) == []


LONG = "0" * 90
EARLY = f"""
    forward    {LONG}..........
    other      {"." * 90}.000..000.
    other_wait {"." * 90}.000..000.
"""
LATE = f"""
    forward    {LONG}..........
    other      {"." * 90}...0....0.
    other_wait {"." * 90}...0....0.
"""


def test_a_norm_needs_one_reduction_of_each_mesh() -> None:
    """Two units on two meshes, two small ones that wait for a late rank: normal."""
    units = (unit("a", mesh="(fsdp=2)"), unit("b", mesh="(ep=2)"))
    call = Call(kind="all_reduce", site="train.py:3", within=Within.CLIP)
    early, late = (
        draw(picture, AROUND, calls=(call,), units=units, rank=rank, scale_ns=MS // 10)
        for rank, picture in enumerate((EARLY, LATE))
    )

    assert found(other_collectives, measured(early, late)) == []


def test_a_pipelines_messages_are_its_own() -> None:
    """Of a schedule's step, at any cost: information. The script's own are not."""
    site = Call(kind="recv", site="train.py:41", via="step")
    of_schedule, of_script = (
        only(other_collectives, measured(draw(GATHERS, AROUND, calls=(call,))))
        for call in (site, replace(site, via="recv"))
    )

    assert (of_schedule.severity, of_script.severity) == (
        Severity.INFO,
        Severity.CRITICAL,
    )
    assert "the pipeline's bubble" in of_schedule.advice[0].text


def test_groups_of_other_ranks_are_not_added_up() -> None:
    """Each of four ranks reduces once, in one of two groups: one a step, not two."""
    pairs = [
        replace(
            AROUND,
            world_size=4,
            calls=(AVERAGE,),
            groups=(replace(GROUP, ranks=ranks),),
            bytes=4 << 20,
        )
        for ranks in ((0, 1), (2, 3))
    ]
    jobs = [draw(ONE, pairs[rank // 2], rank=rank) for rank in range(4)]
    (finding,) = found(other_collectives, measured(*jobs))

    assert finding.summary.startswith("1 all-reduce a step of 4.00 MiB each at hsdp.py")
    assert (finding.evidence["per_step"], finding.ranks) == (1, (0, 1, 2, 3))
    assert "let FSDP2 reduce them" in finding.advice[0].text


AVERAGE = Call(kind="all_reduce", site="hsdp.py:9")


def test_what_is_mostly_waited_for_says_so() -> None:
    """Rank 0's 2 ms of a barrier are 1.9 until rank 1 has come."""
    around = replace(AROUND, calls=(BARRIER,), scale_ns=MS // 10)
    jobs = [
        draw(picture, around, rank=rank)
        for rank, picture in enumerate((PROMPT_ONE, LATE_ONE))
    ]
    (finding,) = found(other_collectives, measured(*jobs))

    assert finding.summary.endswith(", 0.950 ms of them until the last rank has come")


BARRIER = Call(kind="barrier", site="train.py:3")
PROMPT_ONE = f"""
    forward    {"0" * 80}....................
    all_gather 0{"." * 99}
    other      {"." * 80}00000000000000000000
    other_wait {"." * 80}00000000000000000000
"""
LATE_ONE = f"""
    forward    {"0" * 99}.
    all_gather 0{"." * 99}
    other      {"." * 99}0
    other_wait {"." * 99}0
"""


def test_a_norm_that_is_slow_is_information() -> None:
    """2 of 10 ms for one reduction: what clipping needs."""
    call = Call(kind="all_reduce", site="train.py:3", within=Within.CLIP)
    (finding,) = found(other_collectives, measured(draw(ONE, AROUND, calls=(call,))))

    assert finding.severity == Severity.INFO
    assert finding.advice[0].text.startswith("Nothing to change")


@pytest.mark.parametrize(
    ("device", "severity"), [("cpu", Severity.INFO), ("cuda", Severity.CRITICAL)]
)
def test_one_small_one_on_busy_cores_is_no_alarm(
    device: str, severity: Severity
) -> None:
    """2 of 10 ms for one reduction: over gloo it takes turns with all else."""
    call = Call(kind="all_reduce", site="train.py:3")
    data = draw(ONE, AROUND, calls=(call,), device=device)

    assert [f.severity for f in found(other_collectives, measured(data))] == [severity]


@pytest.mark.parametrize(("micro_batches", "named"), [(2, 1), (1, 0)])
def test_what_is_reduced_in_each_micro_batch_is_named(
    micro_batches: int, named: int
) -> None:
    """A loss of 1 of 50 ms in each of two: once a step is enough. What is below 3 %
    and once per step is not worth a word.
    """
    part = f"0{'.' * 49}"
    picture = f"""
        forward    {f".{'0' * 49}" * micro_batches}
        other      {part * micro_batches}
        other_wait {part * micro_batches}
        """
    call = Call(kind="all_reduce", site="train.py:3")
    data = draw(picture, AROUND, calls=(call,), micro_batches=micro_batches)

    answers = found(other_collectives, measured(data))

    assert [f.severity for f in answers] == [Severity.INFO] * named
    assert ["only in the steps" in f.advice[0].text for f in answers] == [True] * named


def test_a_barrier_in_every_step_is_a_finding() -> None:
    """2 of 10 ms for nothing."""
    (finding,) = found(other_collectives, measured(one("barrier")))

    assert finding.severity == Severity.CRITICAL
    assert "1 barrier a step" in finding.summary


def test_hidden_ones_cost_nothing() -> None:
    """Nobody waited."""
    picture = "forward 00000000\nother .0.0.0.."
    call = Call(kind="all_reduce", site="train.py:3")

    assert (
        found(other_collectives, measured(draw(picture, AROUND, calls=(call,)))) == []
    )


def test_ddps_gradients_are_another_findings() -> None:
    """FD506 speaks of the wrapper."""
    data = draw(
        GATHERS,
        AROUND,
        calls=(Call(kind="all_reduce", site="t.py:1", phase=Phase.BACKWARD),),
        model=ModelSpec(wrapper="ddp"),
    )

    assert found(other_collectives, measured(data)) == []


IDLE = """
    forward    0000......
"""


def test_a_gap_goes_to_the_nearest_sample() -> None:
    """6 ms between samples at 5 and 9: 3 ms each, and nothing is unexplained."""
    samples = (
        Sample(at=5, activity=Activity.SLEEP, site="train.py:8"),
        Sample(at=9, activity=Activity.LOGGING, site="train.py:9"),
    )
    m = measured(draw(IDLE, AROUND, samples=samples))
    (rank,) = m.ranks

    assert m.budget_ns_per_step()["script"] == 6 * MS
    assert m.budget_ns_per_step()["other"] == 0
    assert rank.gaps.ns[:2].tolist() == [3 * MS, 3 * MS]
    assert [rank.name(int(site)) for site in rank.gaps.site[:2]] == [
        "train.py:8",
        "train.py:9",
    ]
    assert found(unexplained, m) == []


def test_a_gap_without_a_sample_lies_between_two_lines() -> None:
    """Of the pass that ended before it and of the next that began."""
    samples = (
        Sample(at=4, activity=Activity.EDGE, site="train.py:8"),
        Sample(at=10, activity=Activity.EDGE, site="train.py:2"),
    )
    (rank,) = measured(draw(IDLE, AROUND, samples=samples)).ranks

    assert rank.gaps.ns[0] == 6 * MS
    assert rank.name(int(rank.gaps.site[0])) == "train.py:8"
    assert rank.name(int(rank.gaps.until[0])) == "train.py:2"


def test_what_nothing_names_is_said() -> None:
    """6 of 10 ms; a run without samples is not judged."""
    (finding,) = found(unexplained, measured(draw(IDLE, AROUND, samples=())))

    assert (finding.severity, finding.cost_ns_per_step) == (Severity.WARNING, 6 * MS)
    assert not_judged(unexplained, measured(draw(IDLE))).needs == (Evidence.STACKS,)


def test_the_reports_row_of_a_call_site() -> None:
    """Five gathers of a millisecond each, all of it exposed, on one rank."""
    (row,) = other_collective_rows(measured(gathering(Within.OPTIMIZER)))

    assert row == OtherCollectiveRow(
        where="muon.py:7",
        kind="all_gather",
        group="shard",
        count_per_step=5.0,
        bytes=1 << 20,
        phase="optimizer",
        in_="optimizer",
        ns_per_step=5 * MS,
        exposed_ns_per_step=5 * MS,
        called="full_tensor",
        ranks=(0,),
    )


def test_the_reports_rows_of_the_scripts_lines() -> None:
    """A gap by the line that was seen in it; the rest nobody says anything of."""
    m = measured(
        draw(
            "forward 0000......",
            AROUND,
            samples=(
                Sample(at=4, activity=Activity.EDGE, site="train.py:5"),
                Sample(at=6, activity=Activity.LOGGING, site="train.py:9"),
            ),
        )
    )

    assert unexplained_ns(m) == m.budget_ns_per_step()["other"]
    rows = [(row.where, row.activity) for row in script_rows(m)]
    assert rows == [("train.py:9", "logging")]
