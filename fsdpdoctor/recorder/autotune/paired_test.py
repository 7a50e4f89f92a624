"""Whether a setting is faster: a sequential test on differences of pairs.

Steps run A B B A: a machine that slowly gets busier slows both alike. Of each block
counts its median, so that one step that something else has disturbed counts for little,
and of the four blocks one number: by what share of A's time B's was shorter. Those
numbers are looked at after every round, at most LOOKS times; each look has its part of
what may be wrong (Bonferroni), and asks Student's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, stdev

CONFIDENCE = 0.999
"""That what is kept is a gain at all, over all looks at one candidate. Some ten
candidates may be tried: at 0.99 one run in ten would keep noise."""

MIN_GAIN = 0.005
"""Of the step: less is kept of no candidate, however sure it is."""

LOOKS = 4
QUADS = 4
"""A B B A, in one round. Four numbers are the fewest whose spread says anything."""

BLOCK_STEPS = 3
"""Measured steps of a block: the fewest of which one may be disturbed."""

SETTLING_STEPS = 1
"""Before them, after a change: allocators look for other blocks then."""

DOUBT = 0.95
"""At which a candidate is given up that cannot gain MIN_GAIN: less is lost by that."""


class Judgement(StrEnum):
    """What a look comes to."""

    KEEP = "keep"
    DROP = "drop"
    MORE = "more"  # steps are needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """By what share of the step it is shorter, and between which bounds that lies."""

    share: float
    low: float
    high: float


def quad_gains(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """Of one quad: the step lengths of A's two blocks and of B's two."""
    before, after = fmean(map(median, a)), fmean(map(median, b))
    return (before - after) / before


def judge(gains: Sequence[float], looks: int) -> tuple[Judgement, Gain]:
    """What the gains of all quads so far come to, at the nth look."""
    mean = fmean(gains)
    error = stdev(gains) / math.sqrt(len(gains))
    freedom = len(gains) - 1
    sure = error * quantile(1 - (1 - CONFIDENCE) / LOOKS, freedom)
    found = Gain(share=mean, low=mean - sure, high=mean + sure)
    if found.low > 0 and mean >= MIN_GAIN:
        return Judgement.KEEP, found
    if looks >= LOOKS or mean + error * quantile(DOUBT, freedom) < MIN_GAIN:
        return Judgement.DROP, found
    return Judgement.MORE, found


def quantile(share: float, freedom: int) -> float:
    """Student's t that so large a share of the values is below, a half at least."""
    low, high = 0.0, 1.0
    while distribution(high, freedom) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if distribution(middle, freedom) < share else (low, middle)
        )
    return high


def distribution(t: float, freedom: int) -> float:
    """Student's distribution for t of 0 or more, exactly: of a whole number of degrees
    of freedom it is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    angle = math.atan2(t, math.sqrt(freedom))
    cos2 = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = 1.0, 0.0
    for k in range((freedom - odd) // 2):
        if k:
            term *= cos2 * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
        total += term
    if odd:
        total = 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    else:
        total *= math.sin(angle)
    return (1 + total) / 2
