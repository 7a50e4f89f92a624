"""Summaries of runs: a row each, read once, and again where a run has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from fsdpdoctor.report import report_of
from fsdpdoctor.run import Run, open_run
from fsdpdoctor_dashboard.data import run_summaries
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.data.run_summaries import (
    SPARKS,
    RunSummary,
    Summaries,
    summary_of,
)
from tests.dashboard.synthetic import Shape, write_run


@pytest.fixture
def folder(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Two runs and one that cannot be read, and a cache of their own."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(run_summaries, "LOOK_SECONDS", 0.0)
    root = tmp_path / "folder"
    for name in ("before", "after"):
        shutil.copytree(runs[name], root / name)
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{")
    return root


def read(summaries: Summaries) -> dict[str, RunSummary]:
    """All there are, by a look that begins now: what is still looking has ended."""
    summaries.wait()
    summaries.known()
    summaries.wait()
    found = summaries.known()
    summaries.wait()
    return found


def test_a_row_is_what_the_report_says(runs: dict[str, Path]) -> None:
    """The median step, the exposed share of the mean, and the verdict."""
    measures = measure(open_run(runs["before"]))
    report = report_of(measures)
    found = summary_of(measures, report)
    exposed, mean = report.exposed_ns_per_step.total, report.step_time_ns.mean

    assert found.step_ns == report.step_time_ns.median
    assert found.exposed_share == (exposed or 0) / (mean or 1)
    assert found.verdict == report.verdict.text
    assert len(found.steps) == len(report.health.judged_steps)
    assert round(sum(found.steps) / len(found.steps)) == pytest.approx(mean, abs=1)


def test_the_longest_of_many_steps_stand_for_the_others(tmp_path: Path) -> None:
    """No step that stands out is lost."""
    shape = Shape(ranks=1, layers=1, steps=130, kernels=1)
    measures = measure(open_run(write_run(tmp_path / "long", shape)))
    found = summary_of(measures, report_of(measures))
    rank = measures.ranks[0]

    assert len(found.steps) == SPARKS
    assert max(found.steps) == int(rank.steps.duration_ns[rank.judged].max())


def test_runs_are_read_once(folder: Path) -> None:
    """By the first who looks; the next server has them from the cache. What cannot be
    read says why.
    """
    opened: list[str] = []

    def opener(path: Path) -> Run:
        opened.append(path.name)
        return open_run(path)

    first = read(Summaries(Library([folder], opener)))
    again = read(Summaries(Library([folder], opener)))

    assert first == again
    assert "damaged" in (first["broken"].error or "")
    assert sorted(opened) == ["after", "before", "broken", "broken"]


def test_what_has_changed_is_read_again(folder: Path, runs: dict[str, Path]) -> None:
    """A folder that holds another run now has its row, and a new run too."""
    summaries = Summaries(Library([folder], open_run))
    before = read(summaries)
    shutil.rmtree(folder / "after")
    shutil.copytree(runs["before"], folder / "after")
    shutil.copytree(runs["after"], folder / "later")
    after = read(summaries)

    assert before["after"].step_ns != before["before"].step_ns
    assert after["after"].step_ns == before["before"].step_ns
    assert after["later"] == before["after"]
