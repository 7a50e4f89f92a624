"""The figures that trackers chart."""

from __future__ import annotations

from fsdpdoctor.integrations.scalars import by_step, scalars_of, summary_of
from fsdpdoctor.quantities import MS
from fsdpdoctor.report.step_rows import step_rows
from tests.integrations.drawn import STEPS, measured_run
from tests.rig.changed import replace


def test_a_step_s_figures_are_milliseconds() -> None:
    """What is not known has no name in it: no memory, no `wire_or_straggler`."""
    measures, _ = measured_run()
    assert scalars_of(step_rows(measures)[0]) == {
        "step_ms": 16.0,
        "exposed_ms": 8.0,
        "exposed_by_kind/all_gather_ms": 8.0,
        "exposed_by_kind/reduce_scatter_ms": 0.0,
        "exposed_by_kind/all_reduce_ms": 0.0,
        "exposed_by_cause/host_late_ms": 0.0,
        "exposed_by_cause/queued_ms": 0.0,
        "exposed_by_cause/straggler_ms": 0.0,
        "exposed_by_cause/wire_ms": 8.0,
        "exposed_by_cause/tail_ms": 0.0,
    }


def test_ranks_together_are_the_mean_time_and_the_most_memory() -> None:
    """What one of them lacks is left out."""
    measures, _ = measured_run()
    one = step_rows(measures)[0]
    ranks = (
        replace(one, rss_bytes=10, peak_reserved_bytes=1),
        replace(one, rank=1, duration_ns=18 * MS, rss_bytes=30),
    )
    figures = by_step(ranks)[3]

    assert (figures["step_ms"], figures["rss_bytes"]) == (17.0, 30.0)
    assert "peak_reserved_bytes" not in figures
    assert list(by_step(step_rows(measures))) == list(STEPS)


def test_the_run_s_figures_count_findings() -> None:
    """By severity, beside its times."""
    _, report = measured_run()
    assert summary_of(report) == {
        "median_step_ms": 16.0,
        "p95_step_ms": 16.0,
        "exposed_ms_per_step": 8.0,
        "overlap_share": 0.0,
        "findings_critical": 0.0,
        "findings_warning": 2.0,
        "findings_info": 1.0,
    }
