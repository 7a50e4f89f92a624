"""Kinds of collectives without their rows: the same figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.analysis.stall_causes import begins_ns
from fsdpdoctor.analysis.timeline import Collectives
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import COLLECTIVE_KINDS, NO_TIME, UNKNOWN, Flag, Kind
from fsdpdoctor.simulate.calibration.comm_cost import FREE, fit_comm_cost
from fsdpdoctor_dashboard.data.kept.collective_kinds import (
    FEWEST_SIZES,
    MOST_OFF,
    kinds_of,
)
from tests.rig.changed import replace


def rows_of(measures: Measures, kind: Kind) -> tuple[Collectives, np.ndarray]:
    """All ranks' judged collectives of a kind, and the time of each on the wire."""
    parts, wires = [], []
    for rank in measures.ranks:
        rows = replace(rank.collectives, start_ns=begins_ns(rank))
        mine = rank.in_judged(rows.step) & (rows.kind == kind)
        mine &= (rows.flags & Flag.END_ESTIMATED == 0) & (rows.bytes != UNKNOWN)
        arrival = measures.alignment.last_arrival_ns[rank.rank][mine]
        rows = rows.rows(mine)
        wire_ns = rows.end_ns - np.maximum(arrival, rows.start_ns)
        parts.append(rows)
        wires.append(np.where(arrival == NO_TIME, 0, np.maximum(wire_ns, 0)))
    return Collectives.concat(parts), np.concatenate(wires)


def test_a_kind_is_what_its_rows_say(runs: dict[str, Path]) -> None:
    """How many there are, what they took, and the line through their sizes."""
    measures = measure(open_run(runs["before"]))
    found = kinds_of(measures)
    every = {kind: rows_of(measures, kind) for kind in COLLECTIVE_KINDS}
    every = {kind: seen for kind, seen in every.items() if len(seen[0])}

    assert [kind.name for kind in found] == [kind.key for kind in every]
    assert len(every) == 2
    for kind, (rows, wire_ns) in zip(found, every.values(), strict=True):
        told = wire_ns > 0
        taken, fit = rows.duration_ns, fit_comm_cost(rows.rows(told), wire_ns[told])
        assert (kind.fit, kind.matched) == (fit, True)
        on_a_line = fit.sizes >= FEWEST_SIZES and fit.residual_share <= MOST_OFF
        assert kind.has_line == (on_a_line and fit.wire.bytes_per_second < FREE)
        assert (kind.count, kind.longest_ns) == (len(taken), taken.max())
        expected = np.percentile(taken, (50, 99)).tolist()
        assert [kind.median_ns, kind.p99_ns] == expected
