"""What a run was found to be, kept: opened again it is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.report import report_of
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.kept.kept_analysis import keep_analysis, open_analysis
from fsdpdoctor_dashboard.data.kept.kept_measures import keep_measures
from fsdpdoctor_dashboard.data.kept.rank_sketches import sketches_of


def test_what_was_kept_is_opened(runs: dict[str, Path], tmp_path: Path) -> None:
    """Report and sketches are those that were kept; half of it is nothing."""
    measures = measure(open_run(runs["before"]))
    report = report_of(measures)
    sketches = sketches_of(measures, report)
    assert open_analysis(tmp_path) is None
    keep_analysis(report, sketches, tmp_path)
    assert open_analysis(tmp_path) is None  # the measures are not there
    keep_measures(measures, tmp_path)
    found = open_analysis(tmp_path)

    assert found is not None
    assert (found.report, found.sketches) == (report, sketches)
    assert found.measures.rank_numbers == measures.rank_numbers


@pytest.mark.parametrize("name", ["report.json", "sketches.json", "measures.bin"])
def test_a_damaged_file_is_none(
    runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """The run is then measured again."""
    measures = measure(open_run(runs["before"]))
    report = report_of(measures)
    keep_measures(measures, tmp_path)
    keep_analysis(report, sketches_of(measures, report), tmp_path)
    (tmp_path / name).write_bytes(b"{")

    assert open_analysis(tmp_path) is None
