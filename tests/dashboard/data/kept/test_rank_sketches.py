"""What pages show of all ranks: the measures' own figures, however many ranks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.report import report_of
from fsdpdoctor.report.collective_times import collective_times
from fsdpdoctor.report.collectives_ranks import waits_by_last
from fsdpdoctor.report.rank_lateness import lateness, rank_budgets
from fsdpdoctor.run import open_run
from fsdpdoctor.simulate.plans.forecast import slowest_rank
from fsdpdoctor_dashboard.data.kept import rank_sketches
from fsdpdoctor_dashboard.data.kept.rank_sketches import (
    NOT_JUDGED,
    RankSteps,
    Sketches,
    sketches_of,
    waits_of,
)


@pytest.fixture(scope="module")
def measures(runs: dict[str, Path]) -> Measures:
    """Of 64 ranks."""
    return measure(open_run(runs["wide"]))


def test_they_are_what_the_measures_say(measures: Measures) -> None:
    """Steps, exposed time, budgets, lateness and collectives of every rank."""
    report = report_of(measures)
    found = sketches_of(measures, report)
    steps = found.steps
    place = {rank: at for at, rank in enumerate(steps.ranks)}

    for rank in measures.ranks:
        row = steps.took_ns[place[rank.rank]]
        taken = dict(zip(steps.steps, row, strict=True))
        expected = rank.steps.duration_ns[rank.judged].tolist()
        assert [taken[int(step)] for step in rank.judged_steps] == expected
    exposed = sum(ns for row in steps.exposed_ns for ns in row if ns != NOT_JUDGED)
    judged = sum(ns != NOT_JUDGED for row in steps.took_ns for ns in row)
    assert round(exposed / judged) == report.exposed_ns_per_step.total
    assert steps.middle_ns == np.median(measures.step_ns)
    assert found.slowest == slowest_rank(measures)
    assert found.late == lateness(rank_budgets(measures), report.ranks)
    assert found.sizes == collective_times(measures)
    assert all(
        sum(budget.values()) == int(rank.steps.duration_ns[rank.judged].mean())
        for rank, budget in zip(measures.ranks, found.budgets.values(), strict=True)
    )


def test_kept_they_are_the_same(measures: Measures) -> None:
    """Through JSON, as they lie in the cache."""
    found = sketches_of(measures, report_of(measures))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Sketches) == found


def test_few_ranks_have_a_cell_for_each_two(measures: Measures) -> None:
    """Who waited for whom, to the nanosecond."""
    found = waits_of(measures)

    assert found is not None
    assert (found.together, found.last) == (1, found.ranks)
    for rank, row in zip(found.ranks, found.ns, strict=True):
        known = waits_by_last(measures, measures.of(rank))
        assert row == [known.get(other, 0) for other in found.last]


def test_of_many_ranks_lines_are_sums_and_columns_the_worst(
    measures: Measures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was waited for a rank which has a column is lost."""
    every = waits_of(measures)
    monkeypatch.setattr(rank_sketches, "MOST_WAITING", 63)
    monkeypatch.setattr(rank_sketches, "SHOWN_WAITING", 5)
    found = waits_of(measures)

    assert every is not None
    assert found is not None
    whole = np.array(every.ns)
    worst = np.sort(np.argsort(-whole.sum(axis=0), kind="stable")[:5])
    assert found.together == 13  # 64 ranks in 5 lines
    assert found.last == tuple(worst.tolist())
    assert [sum(row) for row in zip(*found.ns, strict=True)] == whole[:, worst].sum(
        axis=0
    ).tolist()
    assert found.ns[1] == whole[13:26][:, worst].sum(axis=0).tolist()
    assert len(found.ns) == 5


def test_the_most_steps_that_one_rank_judged() -> None:
    """Of ranks that judged one and two of three."""
    steps = RankSteps(
        ranks=(0, 1),
        hosts=(None, None),
        steps=(4, 5, 6),
        took_ns=[[7, NOT_JUDGED, NOT_JUDGED], [7, NOT_JUDGED, 9]],
        exposed_ns=[[0, 0, 0], [0, 0, 0]],
        middle_ns=7.0,
    )
    assert steps.most_judged == 2
