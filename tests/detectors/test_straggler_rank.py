"""FD401, straggler-rank."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import measure_rank
from fsdpdoctor.detectors.exposed_all_gather import exposed_all_gather
from fsdpdoctor.detectors.late_ranks import nth_in_step, steps_beyond_chance
from fsdpdoctor.detectors.straggler_rank import straggler_rank
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Activity, Evidence, Kind
from fsdpdoctor.testing import RECORDED, Call, Drawing, Sample, draw, measured
from tests.detectors.answers import found, not_judged, only, without

AROUND = Drawing(
    evidence=(*RECORDED, Evidence.OTHER_COLLECTIVES, Evidence.STACKS),
    samples=(Sample(at=0, activity=Activity.EDGE, site="a"),),
)
PROMPT = """
    forward     0000................
    all_gather  ....1111111.........
    wait        ....1111111.........
"""
LATE = """
    forward     0000000000..........
    all_gather  ..........1.........
    wait        ..........1.........
"""


def mixed(late_steps: set[int], rank: int, steps: int = 8) -> RankData:
    """A rank that is late in some steps, counted from 3, and prompt in the others."""
    prompt = draw(PROMPT, rank=rank, steps=steps)
    late = draw(LATE, rank=rank, steps=steps)
    records = tuple(
        late.steps[at] if at + 3 in late_steps else prompt.steps[at]
        for at in range(steps)
    )
    return replace(prompt, steps=records)


def two(late_0: set[int], late_1: set[int]) -> Measures:
    """Two ranks, each late in some of the steps 3 to 10."""
    return measured(mixed(late_0, 0), mixed(late_1, 1))


EVERY = set(range(3, 11))


def test_one_rank_is_late_in_every_step() -> None:
    """Rank 0 waits 6 ms for rank 1, whose forward takes as much longer."""
    finding = only(straggler_rank, two(set(), EVERY))

    assert finding.ranks == (1,)
    assert finding.severity == Severity.CRITICAL
    assert finding.cost_ns_per_step == 3 * MS
    assert finding.evidence["caused_ns_per_step"] == {"0": 0, "1": 3 * MS}
    assert finding.evidence["last_arrivals"] == 16
    assert finding.summary == (
        "rank 1 arrives last in 100.0 % of the steps; the ranks wait 3.00 ms per step "
        "(15.0 % of the step) for it; it spends 6.00 ms more per step in its forward"
    )


def test_more_tokens_explain_a_late_rank() -> None:
    """Half as many again as the other's."""
    slow = draw(LATE, rank=1, steps=8, tokens=1500)
    quick = draw(PROMPT, steps=8, tokens=1000)

    finding = only(straggler_rank, measured(quick, slow))

    assert "it processes 1.50 times the others' tokens" in finding.summary
    assert finding.advice[0].text.startswith("Give every rank as many tokens")


def test_garbage_collection_explains_a_late_rank() -> None:
    """The late rank collects for 6 ms before its forward ends."""
    slow = draw(LATE + "    gc ..222222............\n", rank=1, steps=8)

    finding = only(straggler_rank, measured(draw(PROMPT, steps=8), slow))

    assert "collecting garbage" in finding.summary
    assert "FD403" in finding.advice[0].text


BEFORE_A_BARRIER = """
    forward     0000................
    other       ....0000000.........
    other_wait  ....0000000.........
    all_gather  ...........1........
    wait        ...........1........
"""
LATE_AT_A_BARRIER = """
    forward     0000................
    other       ..........0.........
    other_wait  ..........0.........
    all_gather  ...........1........
    wait        ...........1........
"""


def at_a_barrier(kind: str = "barrier") -> Measures:
    """Rank 1 comes 6 ms late to a call of the script's, and to nothing else."""
    call = Call(kind=kind, site="train.py:9")
    sleeps = Sample(at=7, activity=Activity.SLEEP, site="train.py:7")
    seen = replace(AROUND, calls=(call,))
    early = draw(BEFORE_A_BARRIER, seen, steps=8)
    slept = replace(seen, samples=(*AROUND.samples, sleeps))
    late = draw(LATE_AT_A_BARRIER, slept, steps=8, rank=1)
    return measured(early, late)


def test_a_rank_that_a_barrier_waits_for_is_late() -> None:
    """FSDP2's own collectives find every rank in time, since the barrier waited; the
    line on which the late rank stands is named.
    """
    finding = only(straggler_rank, at_a_barrier())

    assert (finding.severity, finding.ranks) == (Severity.CRITICAL, (1,))
    assert finding.cost_ns_per_step == 3 * MS
    assert finding.evidence["at_other_collectives_ns"] == 3 * MS
    assert finding.evidence["late_most_at"] == "barrier at train.py:9 (other)"
    assert "in the script's own lines (train.py:7 most of all)" in finding.summary
    assert "FD902 has the lines" in finding.advice[0].text


def test_a_receiver_is_not_waited_for() -> None:
    """Who waits least for a message has not kept the other one waiting."""
    m = at_a_barrier("recv")

    assert not_judged(straggler_rank, m).needs == (Evidence.RANKS,)


@pytest.mark.parametrize("late", [{5}, {3, 6}])
def test_one_or_two_noisy_steps_are_no_straggler(late: set[int]) -> None:
    """Of eight steps, six or seven are even."""
    assert found(straggler_rank, two(set(), late)) == []


def test_ranks_that_take_turns_are_information() -> None:
    """Each is late in half of the steps: no rank is named."""
    finding = only(straggler_rank, two({3, 5, 7, 9}, {4, 6, 8, 10}))

    assert finding.severity == Severity.INFO
    assert finding.ranks == (0, 1)
    assert finding.cost_ns_per_step == 3 * MS


def test_a_rank_that_comes_last_and_waits_as_long_is_not_to_blame() -> None:
    """Collectives end later for it: it is last at the next one, whatever it does."""
    first = """
        forward     00................
        all_gather  ..11111111........
        wait        ..11111111........
    """
    last = """
        forward     00................
        all_gather  ........11111111..
        wait        ........11111111..
    """
    m = measured(draw(first, rank=0, steps=8), draw(last, rank=1, steps=8))
    finding = only(straggler_rank, m)

    assert finding.severity == Severity.INFO
    assert finding.summary == (
        "rank 1 comes last, and waits as long as the others itself: 3.00 ms per step "
        "(16.7 % of the step) of waiting for them"
    )
    assert finding.cost_ns_per_step == 3 * MS
    assert "Nothing that it does makes it late" in finding.advice[0].text


def test_a_late_rank_is_not_the_all_gathers_fault() -> None:
    """Look-alike: the same waits do not warn under FD101."""
    severities = {f.severity for f in found(exposed_all_gather, two(set(), EVERY))}

    assert severities == {Severity.INFO}


def test_one_rank_alone_cannot_tell() -> None:
    """Nothing to match; or too few steps in common; or no waits known."""
    assert not_judged(straggler_rank, measured(mixed(EVERY, 0))).needs == (
        Evidence.RANKS,
    )
    more = "    reduce_scatter  ...................0\n"
    few = measured(draw(PROMPT + more, steps=2), draw(LATE + more, steps=2, rank=1))
    assert not_judged(straggler_rank, few).needs == (Evidence.STEPS,)
    bare = without(RECORDED, Evidence.COLLECTIVES)
    m = measured(draw(PROMPT, evidence=bare), draw(LATE, evidence=bare, rank=1))
    assert not_judged(straggler_rank, m).needs == (Evidence.COLLECTIVES,)


@pytest.mark.parametrize("steps", [3, 8, 40, 1100, 2500])
@pytest.mark.parametrize(("one", "of"), [(1, 2), (1, 64)])
def test_what_chance_makes_is_the_binomial_tail(steps: int, one: int, of: int) -> None:
    """With whole numbers: as many steps or more are likelier than 1 % only below it."""
    needed = steps_beyond_chance(steps, one / of, 0.01)
    ways: list[int] = [
        comb(steps, k) * one**k * (of - one) ** (steps - k) for k in range(steps + 1)
    ]

    def rare(least: int) -> bool:
        return bool(sum(ways[least:]) * 100 <= of**steps)

    assert not rare(needed - 1)
    assert rare(needed) or needed == steps


def test_the_places_of_a_step_are_counted_apart() -> None:
    """Two gathers of one unit in one phase are its first and its second, by step."""
    rank = measure_rank(draw(TWICE, rank=0, steps=2))
    gathers = rank.collectives.kind == Kind.ALL_GATHER

    assert nth_in_step(rank)[gathers].tolist() == [0, 0, 1, 0, 0, 1]


TWICE = """
    forward     ..0000..1111..0000..
    all_gather  00......11..00......
"""


def test_a_long_run_is_judged() -> None:
    """More steps than a float holds ways to be late in half of them."""
    steps = 1200
    late = draw(LATE, rank=1, steps=steps)
    finding = only(straggler_rank, measured(draw(PROMPT, rank=0, steps=steps), late))

    assert finding.ranks == (1,)
    assert finding.cost_ns_per_step == 3 * MS
