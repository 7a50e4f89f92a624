"""Gains are told from noise, at the confidence that is stated."""

from __future__ import annotations

import random

import pytest

from fsdpdoctor.recorder.autotune.paired_test import (
    CONFIDENCE,
    LOOKS,
    QUADS,
    Gain,
    Judgement,
    distribution,
    judge,
    quad_gains,
    quantile,
)


@pytest.mark.parametrize(
    ("share", "freedom", "expected"),
    [
        (0.975, 1, 12.706),
        (0.95, 2, 2.920),
        (0.975, 3, 3.182),
        (0.95, 4, 2.132),
        (0.99, 7, 2.998),
        (0.995, 10, 3.169),
        (0.9995, 15, 4.073),
    ],
)
def test_students_distribution(share: float, freedom: int, expected: float) -> None:
    """As tables of it have it, to their last digit."""
    assert round(quantile(share, freedom), 3) == expected
    assert distribution(0.0, freedom) == 0.5


def test_a_block_counts_with_its_median() -> None:
    """A step that took ten times as long changes nothing."""
    a = ([10.0, 10.0, 100.0], [10.0, 10.0, 10.0])
    b = ([8.0, 8.0, 8.0], [80.0, 8.0, 8.0])

    assert quad_gains(a, b) == pytest.approx(0.2)


def test_a_steady_gain_is_kept_at_the_first_look() -> None:
    """With the bounds that the spread of four numbers allows."""
    judgement, gain = judge([0.10, 0.11, 0.10, 0.11], looks=1)

    # Deviation 0.00577, error 0.00289, times t(0.99975, 3) = 16.326.
    assert judgement is Judgement.KEEP
    assert gain.share == pytest.approx(0.105)
    assert gain.low == pytest.approx(0.105 - 16.3263 * 0.0028868, abs=1e-6)
    assert gain.high == pytest.approx(0.105 + 16.3263 * 0.0028868, abs=1e-6)


def test_exact_steps_are_judged_exactly() -> None:
    """A virtual clock has no noise: the bounds are the gain itself."""
    kept = Gain(share=0.25, low=0.25, high=0.25)
    assert judge([0.25] * 4, looks=1) == (Judgement.KEEP, kept)


@pytest.mark.parametrize(
    ("gains", "looks", "expected"),
    [
        ([0.004] * 4, 1, Judgement.DROP),  # sure, and too little
        ([-0.05, -0.04, -0.05, -0.04], 1, Judgement.DROP),
        ([0.00, 0.10, 0.02, 0.09], 1, Judgement.MORE),
        ([0.00, 0.10, 0.02, 0.09], LOOKS, Judgement.DROP),  # not sure to the last
    ],
)
def test_what_is_not_kept(gains: list[float], looks: int, expected: Judgement) -> None:
    """Too little, or not sure enough."""
    assert judge(gains, looks)[0] is expected


def test_noise_is_kept_as_seldom_as_stated() -> None:
    """Of 3,000 candidates that change nothing, over all looks: one in a thousand at
    most, of heavy tails as well.
    """
    chance = random.Random(0)
    kept = 0
    for _ in range(3_000):
        gains: list[float] = []
        for look in range(1, LOOKS + 1):
            gains += [
                chance.gauss(0, 0.03) * (5 if chance.random() < 0.05 else 1)
                for _ in range(QUADS)
            ]
            judgement, _ = judge(gains, look)
            if judgement is not Judgement.MORE:
                kept += judgement is Judgement.KEEP
                break
    assert kept <= 3_000 * (1 - CONFIDENCE)
