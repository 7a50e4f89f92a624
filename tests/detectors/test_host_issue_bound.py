"""FD103, host-issue-bound."""

from __future__ import annotations

from dataclasses import replace

from fsdpdoctor.detectors.exposed_all_gather import exposed_all_gather
from fsdpdoctor.detectors.host_issue_bound import host_issue_bound
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence, Spans
from fsdpdoctor.testing import TRACED, draw, measured
from tests.detectors.answers import CUDA, found, not_judged, only
from tests.gallery import simulated

LATE_HOST = """
    issue       ..........1.........
    all_gather  ..........1.........
    wait        .....111111.........
    forward     00000......111111111
"""


def test_time_before_the_issue_is_the_hosts() -> None:
    """Compute stops at 5, the host issues at 10: 5 of the 6 ms are its own."""
    finding = only(host_issue_bound, measured(draw(LATE_HOST, CUDA)))

    assert finding.cost_ns_per_step == 5 * MS
    assert finding.units == ("layers.1",)
    assert finding.severity == Severity.CRITICAL


def test_the_exposed_gather_says_who_was_late() -> None:
    """FD101 does not raise the same alarm again."""
    m = measured(
        draw(LATE_HOST.replace("..........1.........", "0.........1........."), CUDA),
        source="rehearsal",
    )

    (finding,) = found(exposed_all_gather, m)

    assert finding.severity == Severity.WARNING
    assert "because the host had not issued the all-gather yet" in finding.summary


def test_gaps_that_end_at_a_launch_are_the_hosts() -> None:
    """A trace's compute lane idles 4 of 12 ms, until its next kernel is launched."""
    data = draw("kernel 0000....1111", CUDA, evidence=TRACED)
    launched = tuple(
        replace(
            record,
            spans=Spans.build(
                len(record.spans),
                kind=record.spans.kind,
                lane=record.spans.lane,
                start_ns=record.spans.start_ns,
                end_ns=record.spans.end_ns,
                issued_ns=record.spans.start_ns,
            ),
        )
        for record in data.steps
    )

    finding = only(host_issue_bound, measured(replace(data, steps=launched)))

    assert finding.cost_ns_per_step == 4 * MS
    assert finding.evidence["kernels_issued_late_ns"] == 4 * MS


def test_a_slow_wire_is_not_the_hosts() -> None:
    """Issued in time, moving until 10: no part is host-late."""
    m = measured(
        draw(
            """
            issue       .1..................
            all_gather  .1111111111.........
            wait        .....111111.........
            forward     00000......111111111
        """,
            CUDA,
        )
    )

    assert found(host_issue_bound, m) == []


def test_a_device_that_runs_dry_waits_for_launches() -> None:
    """At the end of 5 of 7 units' backward; how much was computed is not known."""
    finding = only(host_issue_bound, measured(simulated.busy_host()))

    assert finding.cost_ns_per_step is None
    assert (finding.severity, finding.phase) == (Severity.WARNING, "backward")
    assert finding.evidence["unit_passes"] == 7
    assert finding.evidence["unit_passes_that_ran_dry"] == 5


def test_a_host_that_is_just_ahead_is_not_late() -> None:
    """It launches in nine tenths of the time."""
    assert found(host_issue_bound, measured(simulated.host_ahead())) == []


def test_reads_from_the_device_are_not_a_slow_host() -> None:
    """Each block waits for the device in its forward: FD104 says so."""
    assert found(host_issue_bound, measured(simulated.syncs())) == []


def test_on_cpu_it_cannot_tell() -> None:
    """The host computes itself."""
    answer = not_judged(host_issue_bound, measured(draw(LATE_HOST)))

    assert answer.needs == (Evidence.ISSUE_TIMES,)
