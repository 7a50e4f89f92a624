"""FD902, script-time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.detectors.script_time import ADVICE, WORDS, script_time
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Activity, Evidence
from fsdpdoctor.testing import RECORDED, Drawing, Sample, draw, measured
from tests.detectors.answers import found, not_judged, only

SAMPLED = Drawing(evidence=(*RECORDED, Evidence.STACKS))

LONG = "forward 0000......"
SHORT = "forward 0000000000000000000."
SOME = "forward 00000000."


def seen(at: float, activity: Activity, site: str = "train.py:8") -> Sample:
    """What the training thread does."""
    return Sample(at=at, activity=activity, site=site)


def test_the_lines_are_named_with_what_they_do() -> None:
    """6 of 10 ms, 4 of them in a sleep: both lines have advice of their own."""
    samples = (
        seen(7, Activity.SLEEP),
        seen(9, Activity.LOGGING, "train.py:9"),
    )
    finding = only(script_time, measured(draw(LONG, SAMPLED, samples=samples)))

    assert (finding.severity, finding.cost_ns_per_step) == (Severity.WARNING, 6 * MS)
    assert finding.summary == (
        "the script's own lines outside the model take 6.00 ms per step (60.0 % of "
        "the step): 4.00 ms at train.py:8 (sleeping), 2.00 ms at train.py:9 (logging)"
    )
    assert [advice.text for advice in finding.advice] == [
        ADVICE[Activity.SLEEP].format(line="train.py:8"),
        ADVICE[Activity.LOGGING].format(line="train.py:9"),
    ]


def test_what_only_edges_name_lies_between_them() -> None:
    """No sample hit it: the lines around it are told."""
    samples = (seen(4, Activity.EDGE), seen(10, Activity.EDGE, "train.py:2"))
    finding = only(script_time, measured(draw(LONG, SAMPLED, samples=samples)))

    assert "between train.py:8 and train.py:2" in finding.summary
    assert "between train.py:8 and train.py:2" in finding.advice[0].text


@pytest.mark.parametrize(
    ("device", "severity"), [("cpu", Severity.INFO), ("cuda", Severity.WARNING)]
)
def test_a_device_stood_still_between_two_lines(
    device: str, severity: Severity
) -> None:
    """40 % by edges alone: on a host it may be what surrounds any small step."""
    samples = (seen(6, Activity.EDGE), seen(10, Activity.EDGE, "train.py:2"))
    picture = "forward 000000...."
    data = draw(picture, SAMPLED, samples=samples, device=device, scale_ns=2 * MS)

    assert only(script_time, measured(data)).severity == severity


def test_a_ninth_is_information() -> None:
    """A small step on CPU has as much around it by nature."""
    samples = (seen(8, Activity.USER),)
    finding = only(script_time, measured(draw(SOME, SAMPLED, samples=samples)))

    assert finding.severity == Severity.INFO


@pytest.mark.parametrize(
    ("scale_ns", "severity"), [(MS, Severity.INFO), (20 * MS, Severity.WARNING)]
)
def test_what_only_some_steps_have_warns_where_it_is_long(
    scale_ns: int, severity: Severity
) -> None:
    """12 of 20 ms in four of six steps, as on a busy machine, and 240 of 400 ms."""
    samples = (seen(10, Activity.USER),)
    quiet, disturbed = (
        draw(picture, SAMPLED, samples=samples, scale_ns=scale_ns)
        for picture in ("forward 0000000000000000000.", "forward 00000000............")
    )
    steps = (*quiet.steps[:2], *disturbed.steps[2:])

    finding = only(script_time, measured(replace(quiet, steps=steps)))

    assert finding.severity == severity
    assert finding.evidence["share_of_step"] == 0.4


def test_a_twentieth_is_named() -> None:
    """5 % is where a cost gets a name; 4.8 % has none."""
    samples = (seen(19, Activity.USER),)

    assert len(found(script_time, measured(draw(SHORT, SAMPLED, samples=samples)))) == 1
    longer = SHORT.replace("forward ", "forward 0")
    assert found(script_time, measured(draw(longer, SAMPLED, samples=samples))) == []


def test_one_rank_alone_is_named() -> None:
    """Rank 1 spends nothing on lines of its own."""
    samples = (seen(6, Activity.LOGGING),)
    first = draw(LONG, SAMPLED, samples=samples)
    other = draw("forward 0000000000", SAMPLED, rank=1)

    finding = only(script_time, measured(first, other))

    assert (finding.ranks, finding.cost_ns_per_step) == ((0,), 3 * MS)


def test_without_samples_it_cannot_be_told() -> None:
    """A trace has none."""
    assert not_judged(script_time, measured(draw(LONG))).needs == (Evidence.STACKS,)


@pytest.mark.parametrize("activity", Activity)
def test_every_activity_has_an_answer(activity: Activity) -> None:
    """With the line in it."""
    assert "{line}" in ADVICE[activity]
    assert (activity in WORDS) == (activity != Activity.EDGE)


def test_named_gaps_are_taken_from_the_rest() -> None:
    """A step's parts add up to it where samples name all or some of its gaps."""
    samples = (seen(7, Activity.SLEEP), seen(9, Activity.LOGGING, "train.py:9"))
    (rank,) = measured(draw(LONG, SAMPLED, samples=samples)).ranks

    parts = {part: int(ns[0]) for part, ns in rank.budget_ns.items()}
    assert parts["script"] == 6 * MS
    assert sum(parts.values()) == int(rank.steps.duration_ns[0])
