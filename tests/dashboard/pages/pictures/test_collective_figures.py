"""Bandwidths: the line through the sizes, its peak and the link's, or why none."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.network import parse_link
from fsdpdoctor.quantities import US
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.report.value import CollectiveRow
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import Kind
from fsdpdoctor.simulate.calibration.comm_cost import FREE, Fit
from fsdpdoctor.simulate.engine.step import CommCost
from fsdpdoctor_dashboard.pages.pictures.collective_figures import (
    ALGORITHM,
    BUS,
    KindTimes,
    bandwidth,
    fit_words,
    kinds_of,
    peak_gbps,
    rates_of,
)
from tests.dashboard.synthetic import Shape, write_run
from tests.rig.changed import replace
from tests.rig.ranks import run_python

MIB = 1 << 20


def fitted(
    bytes_per_second: float, sizes: int = 3, residual_share: float = 0.08
) -> KindTimes:
    """All-gathers with a line: 20 us and so many bytes per second."""
    fit = Fit(
        wire=CommCost(latency_ns=20 * US, bytes_per_second=bytes_per_second),
        count=8,
        sizes=sizes,
        residual_share=residual_share,
        by_unit_ns={},
    )
    return KindTimes(
        kind=Kind.ALL_GATHER,
        fit=fit,
        matched=True,
        count=8,
        median_ns=0,
        p99_ns=0,
        longest_ns=0,
    )


def row(size: int, median_ns: int, group_size: int | None = 4) -> CollectiveRow:
    """A size of all-gathers that took so long, a quarter less on the wire."""
    factor = None if group_size is None else (group_size - 1) / group_size
    rate, wire_ns = size / median_ns, median_ns * 3 // 4
    return CollectiveRow(
        group="0",
        kind="all_gather",
        bytes=size,
        count=8,
        median_ns=median_ns,
        algbw_gbps=rate,
        busbw_gbps=None if factor is None else rate * factor,
        role="shard",
        group_size=group_size,
        median_wire_ns=wire_ns,
        wire_busbw_gbps=None if factor is None else size / wire_ns * factor,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report whose collectives the tests replace."""
    folder = tmp_path_factory.mktemp("figures") / "run"
    return report_of(measure(open_run(write_run(folder, Shape(ranks=2, layers=2)))))


def test_a_peak_is_the_lines_rate_on_the_bus(report: Report) -> None:
    """Of 4 ranks, three quarters of the bytes cross the bus."""
    report = replace(report, collectives=(row(MIB, 100 * US),))

    assert peak_gbps(fitted(20e9), report) == pytest.approx(15.0)
    assert fit_words(fitted(20e9), report) == "20.0 us + size / 20 GB/s, off by 8 %"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (fitted(20e9, sizes=1), "no line: all are of one size"),
        (fitted(20e9, sizes=2), "no line: all are of two sizes"),
        (fitted(FREE), "no line: larger ones did not take longer"),
        (fitted(20e9, residual_share=0.79), "no line: it would be off by 79 %"),
        (fitted(12e9), "no line: faster ones were seen than it would allow"),
    ],
)
def test_without_a_line_there_is_no_peak(
    report: Report, kind: KindTimes, words: str
) -> None:
    """Too few sizes, times that do not grow with them or lie beside the line, and a
    line below what was reached (10.5 GB/s on the bus) show no bandwidth.
    """
    report = replace(report, collectives=(row(MIB, 100 * US),))

    assert peak_gbps(kind, report) is None
    assert fit_words(kind, report) == words


def test_the_bus_needs_the_size_of_the_group(report: Report) -> None:
    """Where it is not known, plain bytes by time are shown; without times, nothing."""
    known = replace(report, collectives=(row(MIB, 100 * US),))
    unknown = replace(report, collectives=(row(MIB, 100 * US, group_size=None),))
    untimed = replace(report, collectives=())

    assert rates_of(known) is BUS
    assert rates_of(unknown) is ALGORITHM
    assert ALGORITHM.wire(unknown.collectives[0]) == pytest.approx(MIB / (75 * US))
    assert rates_of(untimed) is None
    assert bandwidth(untimed, [fitted(20e9)], None, "light") is None


def test_peaks_that_would_press_all_points_down_are_not_drawn(report: Report) -> None:
    """The highest point is 10.5 GB/s: 15 and 20 GB/s are in sight, 46 are not."""
    report = replace(report, collectives=(row(MIB, 100 * US), row(MIB // 4, 60 * US)))
    drawn = {
        name: [note.text for note in figure.layout.annotations]
        for name in ("20GB/s", "ib400")
        if (figure := bandwidth(report, [fitted(20e9)], parse_link(name), "dark"))
    }

    peak = "fitted peak of all-gathers: 15 GB/s"
    assert drawn == {"20GB/s": [peak, "link 20GB/s: 20 GB/s"], "ib400": [peak]}


def test_the_line_is_fitted_to_the_wire(tmp_path: Path) -> None:
    """Each kind of a run has its rows, and a fit that leaves out waiting for ranks."""
    folder = write_run(tmp_path / "run", Shape(ranks=2, layers=4, steps=6))
    kinds = kinds_of(measure(open_run(folder)))

    assert [kind.name for kind in kinds] == ["all_gather", "reduce_scatter"]
    assert all(kind.matched for kind in kinds)
    for kind in kinds:
        # One whose communicator was busy until its end was never on the wire.
        assert kind.count // 2 < kind.fit.count <= kind.count
        assert max(kind.fit.by_unit_ns.values()) <= kind.longest_ns


def test_a_link_that_is_none_is_refused(tmp_path: Path) -> None:
    """One line in the option's own words, before any server starts."""
    said = run_python("-m", "fsdpdoctor", "view", str(tmp_path), "--link", "fast")

    assert said.status == 2
    assert said.stderr.startswith("Error: --link 'fast' is no link; expected one of ")
