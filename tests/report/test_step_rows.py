"""Steps as rows: what the report's means are the means of."""

from __future__ import annotations

from fsdpdoctor.quantities import MS
from fsdpdoctor.report.step_rows import BudgetRow, StepRow, budget_rows, step_rows
from fsdpdoctor.report.value import ByCause, KindTimes
from fsdpdoctor.schema import NOT_CAPTURED
from fsdpdoctor.testing import draw, measured
from tests.cli.test_cli import PICTURE
from tests.integrations.drawn import STEPS, measured_run
from tests.rig.changed import replace


def test_a_step_has_its_time_and_what_was_exposed() -> None:
    """All fields of the first rank's first step; absent is None, measured nothing 0."""
    measures, _ = measured_run()
    rows = step_rows(measures)

    assert [(row.rank, row.step) for row in rows] == [
        (rank, step) for rank in (0, 1) for step in STEPS
    ]
    assert rows[0] == StepRow(
        rank=0,
        step=3,
        judged=True,
        duration_ns=16 * MS,
        micro_batches=1,
        tokens=None,
        samples=None,
        exposed_ns=8 * MS,
        exposed_ns_by_kind=KindTimes(all_gather=8 * MS, reduce_scatter=0, all_reduce=0),
        exposed_ns_by_cause=ByCause(
            host_late=0, queued=0, straggler=0, wire=8 * MS, tail=0
        ),
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        rss_bytes=None,
    )


def test_parts_add_up_to_the_step() -> None:
    """Of each step of each rank; the first step's, part by part."""
    measures, _ = measured_run()
    rows = budget_rows(measures)
    totals: dict[tuple[int, int], int] = {}
    for row in rows:
        key = (row.rank, row.step)
        totals[key] = totals.get(key, 0) + row.ns

    assert totals == {(rank, step): 16 * MS for rank in (0, 1) for step in STEPS}
    assert rows[:5] == tuple(
        BudgetRow(rank=0, step=3, judged=True, part=part, ns=ns * MS)
        for part, ns in (
            ("exposed_all_gather", 8),
            ("optimizer", 1),
            ("forward", 3),
            ("backward", 3),
            ("compute", 1),
        )
    )


def test_rows_add_up_to_the_report_s_means() -> None:
    """The same figures, seen step by step."""
    measures, report = measured_run()
    judged = [row for row in step_rows(measures) if row.judged]
    exposed = [row.exposed_ns for row in judged if row.exposed_ns is not None]

    assert sum(exposed) // len(judged) == report.exposed_ns_per_step.total
    assert (
        sum(row.duration_ns for row in judged) // len(judged)
        == report.step_time_ns.mean
    )


def test_stalls_that_were_not_measured_are_no_zero() -> None:
    """A trace that captured no device: no figure of exposed time."""
    data = draw(PICTURE, steps=4, first_step=3)
    data = replace(data, header=replace(data.header, health={NOT_CAPTURED: 1}))
    (row, *_) = step_rows(measured(data))

    assert row.exposed_ns is None
    assert row.exposed_ns_by_cause is None
    assert row.exposed_ns_by_kind == KindTimes(
        all_gather=None, reduce_scatter=None, all_reduce=None
    )
