"""Kinds of collectives without their rows: the same figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.kept.collective_kinds import Taken, kind_lines, kinds_of


def test_a_line_is_what_the_rows_say(runs: dict[str, Path]) -> None:
    """How many there are, what they took, and the line through their sizes."""
    measures = measure(open_run(runs["before"]))
    every = kinds_of(measures)

    assert [line.name for line in kind_lines(measures)] == [k.name for k in every]
    assert len(every) == 2
    for line, kind in zip(kind_lines(measures), every, strict=True):
        taken = kind.rows.duration_ns
        assert (line.fit, line.matched) == (kind.fit, kind.matched)
        assert line.has_line == kind.has_line
        assert (line.count, line.longest_ns) == (len(taken), taken.max())
        expected = np.percentile(taken, (50, 99)).tolist()
        assert [line.median_ns, line.p99_ns] == expected


def test_what_they_took_is_counted() -> None:
    """Without their rows there is still how many they were."""
    assert len(Taken(np.array([3, 5, 8], dtype=np.int64))) == 3
