"""FD406, where steps differ: by the numbers that collectives have in their group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.spmd_divergence import spmd_divergence
from fsdpdoctor.finding import Confidence, Severity
from fsdpdoctor.run import RankData
from fsdpdoctor.testing import draw, measured, unit
from tests.detectors.answers import codes, found, only
from tests.detectors.test_spmd_divergence import TWO_LAYERS


def numbered(data: RankData, *steps: str) -> RankData:
    """The same run whose steps have these all-gathers in turn, by the digits of their
    units, numbered through.
    """
    whole = replace(data, steps=data.steps[: len(steps)])
    records, seq = [], 0
    for step, digits in zip(whole.steps, steps, strict=True):
        lane = "".join(f"{d}." for d in digits)
        drawn = draw(f"all_gather {lane or '.'}", steps=1, first_step=step.step)
        (one,) = drawn.steps
        numbers = np.arange(seq, seq + len(digits), dtype=np.int64)
        records.append(replace(step, spans=replace(one.spans, seq=numbers)))
        seq += len(digits)
    return replace(whole, steps=tuple(records))


def two_ranks(one: list[str], other: list[str]) -> Measures:
    """Two ranks of one group with these gathers, step by step."""
    return measured(
        *(
            numbered(draw(TWO_LAYERS, rank=rank), *steps)
            for rank, steps in enumerate((one, other))
        )
    )


def test_steps_cut_at_other_places_are_no_divergence() -> None:
    """Rank 1 counts the last gather to the next step, once: the order is the same, and
    step 5 begins with one number on both.
    """
    m = two_ranks(["0101", "0101", "0101"], ["010", "10101", "0101"])

    assert found(spmd_divergence, m) == []


def test_a_step_cut_elsewhere_to_the_end_is_not_proved() -> None:
    """No number is something else, and no later step begins alike."""
    m = two_ranks(["0101", "0101", "0101"], ["010", "1010", "1010"])

    finding = only(spmd_divergence, m)

    assert (finding.severity, finding.confidence) == (
        Severity.WARNING,
        Confidence.MEDIUM,
    )
    assert finding.summary.endswith(
        "rank 0 has all_gather of layers.1 (1.00 MiB), rank 1 has no more; no number "
        "of the group is something else on another rank, as far as was recorded, so "
        "perhaps these ranks only cut their steps at other places: a record of the "
        "steps after it would tell"
    )


def test_another_unit_of_one_size_is_proved_by_its_number() -> None:
    """Rank 1 leaves layers.1 out in one step: kind and bytes agree to the end."""
    m = two_ranks(["0101", "0101", "0101"], ["010", "0101", "0101"])

    finding = only(spmd_divergence, m)

    assert (finding.severity, finding.confidence) == (
        Severity.CRITICAL,
        Confidence.HIGH,
    )
    assert finding.evidence["step"] == 3


def test_experts_of_one_shape_at_one_place_are_another_unit() -> None:
    """Kind, bytes and counts agree; the gradients of two experts are added up."""
    m = two_ranks(["0101", "0101", "0101"], ["0101", "0001", "0001"])

    finding = only(spmd_divergence, m)

    assert finding.severity == Severity.CRITICAL
    assert finding.summary == (
        "ranks 0 and 1 differ in step 4, collective 1 of group shard: rank 0 has "
        "all_gather of layers.1 (1.00 MiB), rank 1 has all_gather of layers.0 (1.00 "
        "MiB)"
    )


def test_ranks_that_name_their_units_apart_run_the_same() -> None:
    """A module may be named for its rank: no rank has the other's."""
    ranks = [
        numbered(
            draw(TWO_LAYERS, rank=rank, units=(unit(f"a{rank}"), unit(f"b{rank}"))),
            *["0101"] * 3,
        )
        for rank in (0, 1)
    ]

    assert found(spmd_divergence, measured(*ranks)) == []


def with_batches(data: RankData, *batches: int) -> RankData:
    """The same run, whose steps ran so many micro-batches in turn."""
    steps = zip(data.steps, batches, strict=True)
    return replace(
        data, steps=tuple(replace(step, micro_batches=n) for step, n in steps)
    )


def left_out() -> Measures:
    """Rank 1 runs the micro-batches of two steps in its step 5, and the same gathers as
    rank 0 in the end.
    """
    one = numbered(draw(TWO_LAYERS), "01", "01", "01", "01", "01")
    two = numbered(draw(TWO_LAYERS, rank=1), "01", "01", "0101", "01")
    return measured(with_batches(one, 1, 1, 1, 1, 1), with_batches(two, 1, 1, 2, 1))


def test_a_rank_whose_optimizer_left_a_step_out() -> None:
    """It is told from a micro-batch more by what both issued in the end."""
    finding = only(spmd_divergence, left_out())

    assert (finding.severity, finding.ranks) == (Severity.CRITICAL, (1,))
    assert finding.summary == (
        "ranks differ in when their optimizers step: in step 5 rank 1 ran 2 "
        "micro-batches and rank 0 1, so its optimizer left out 1 step: its shards keep "
        "old weights where the others are updated, and from there its steps are "
        "counted one off"
    )
    assert finding.advice[0].text.startswith("Step the optimizer on every rank or on")
    assert codes(finding)[0].splitlines()[4] == (
        'skip = torch.tensor(float(skip), device="cpu")'
    )


def test_a_rank_that_ran_a_micro_batch_more() -> None:
    """It has gathers that rank 0 has not: no optimizer left anything out."""
    one = numbered(draw(TWO_LAYERS), "01", "01", "01", "01")
    two = numbered(draw(TWO_LAYERS, rank=1), "01", "01", "0101", "01")
    m = measured(with_batches(one, 1, 1, 1, 1), with_batches(two, 1, 1, 2, 1))

    finding = only(spmd_divergence, m)

    assert finding.ranks == (0, 1)
    assert finding.summary.endswith(
        "of its micro-batches rank 0 ran 1 and rank 1 ran 2, so from there they are "
        "paired one off"
    )


def test_a_rank_that_dropped_a_micro_batch() -> None:
    """Everybody runs two in a step, and rank 1 ran one in step 5."""
    one = numbered(draw(TWO_LAYERS), "0101", "0101", "0101", "0101")
    two = numbered(draw(TWO_LAYERS, rank=1), "0101", "0101", "01", "0101")
    m = measured(with_batches(one, 2, 2, 2, 2), with_batches(two, 2, 2, 1, 2))

    assert "paired one off" in only(spmd_divergence, m).summary
