"""What collectives cost: a latency and a bandwidth, fitted to a run's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.timeline import Collectives
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import distinct, median
from fsdpdoctor.simulate.engine.step import CommCost

FREE = 1e18
"""Bytes per second where size makes no difference that can be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A wire fitted to collectives of one kind on one group."""

    wire: CommCost
    count: int
    sizes: int  # different numbers of bytes among them; 1: latency cannot be told
    residual_share: float  # median of |taken - fitted| / taken
    by_unit_ns: Mapping[int, int]  # what a unit's own took, mean
    guesses: tuple[CommCost, ...] = ()  # of one size: the wire with the least latency
    # that it may have, and with the most

    def extra_ns(self, unit: int, count: int) -> int:
        """What a unit's collectives of so many bytes take beyond the fit."""
        if unit not in self.by_unit_ns:
            return 0
        return self.by_unit_ns[unit] - self.wire.ns(count)


def fit_comm_cost(rows: Collectives, durations: Int64s, latency_ns: int = 0) -> Fit:
    """The same of collectives."""
    return fit_sizes(rows.bytes, rows.unit, durations, latency_ns)


def fit_sizes(
    sizes: Int64s, units: npt.NDArray[np.int32], durations: Int64s, latency_ns: int = 0
) -> Fit:
    """Least squares on the mean of each size, weighted by how often it came.

    `latency_ns` is taken where there is one size: a line needs two.
    """
    each, which = np.unique(sizes, return_inverse=True)
    counts = np.bincount(which, minlength=len(each)).astype(np.float64)
    alike = np.split(
        durations[np.argsort(which, kind="stable")], np.cumsum(counts[:-1]).astype(int)
    )
    taken = np.array([of_size.mean() for of_size in alike[: len(each)]])
    guesses: tuple[CommCost, ...] = ()
    if len(each) == 1:
        size, took = float(each[0]), float(taken[0])
        guesses = _one_size(size, took, 0), _one_size(size, took, int(took))
        wire = _one_size(size, took, latency_ns)
    else:
        wire = _line(each.astype(np.float64), taken, counts)
    fitted = np.array([wire.ns(int(size)) for size in each])[which]
    off = np.abs(durations - fitted) / np.maximum(durations, 1)
    return Fit(
        wire=wire,
        count=len(sizes),
        sizes=len(each),
        guesses=guesses,
        residual_share=median(off) if len(off) else 0.0,
        by_unit_ns={
            int(unit): round(float(durations[units == unit].mean()))
            for unit in distinct(units)
        },
    )


def _one_size(size: float, taken: float, latency_ns: int) -> CommCost:
    latency = min(latency_ns, int(taken) // 2)
    rate = size * 1e9 / max(taken - latency, 1.0)
    return CommCost(latency_ns=latency, bytes_per_second=max(rate, 1.0))


def _line(
    sizes: npt.NDArray[np.float64],
    taken: npt.NDArray[np.float64],
    counts: npt.NDArray[np.float64],
) -> CommCost:
    mean_size = np.average(sizes, weights=counts)
    mean_taken = np.average(taken, weights=counts)
    spread = np.average((sizes - mean_size) ** 2, weights=counts)
    together = np.average((sizes - mean_size) * (taken - mean_taken), weights=counts)
    slope = together / spread  # ns per byte
    latency = mean_taken - slope * mean_size
    if slope <= 0:
        return CommCost(latency_ns=round(float(mean_taken)), bytes_per_second=FREE)
    if latency < 0:
        # A line through the origin: nothing takes less than no time.
        products = np.average(sizes * taken, weights=counts)
        slope = products / np.average(sizes**2, weights=counts)
        latency = np.float64(0)
    return CommCost(
        latency_ns=round(float(latency)), bytes_per_second=float(1e9 / slope)
    )
