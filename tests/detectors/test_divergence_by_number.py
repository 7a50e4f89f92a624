"""FD406: numbers of a group prove it; that steps are cut elsewhere does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.spmd_divergence import spmd_divergence
from fsdpdoctor.finding import Confidence, Severity
from fsdpdoctor.run import RankData
from fsdpdoctor.testing import draw, measured, unit
from tests.detectors.answers import found, only

TWO_LAYERS = """
    all_gather  01........
    forward     ..00001111
"""


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
