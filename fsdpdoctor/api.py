"""What `import fsdpdoctor` offers of reading and judging; see docs/api.md."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass, field

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.errors import UsageError
from fsdpdoctor.open_paths import ReadOptions, open_paths, rank_workers
from fsdpdoctor.renderers import RENDERERS
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.report.row_table import RowTable
from fsdpdoctor.report.step_rows import StepRow, step_rows
from fsdpdoctor.report.value import CollectiveRow, FindingRow, RankRow, UnitRow
from fsdpdoctor.run import Run

FRAME_PX = 720
"""Height of the report in a notebook: it scrolls inside its frame."""


def open(  # what a reader of `fsdpdoctor.open` expects; nothing here opens files
    *paths: str | os.PathLike[str], cache: bool = True, rank_regex: str | None = None
) -> Run:
    """The run that paths name, as for `fsdpdoctor analyze`; no rank is loaded yet.

    A recorded run's folder, or one of each node; `latest`; traces, a folder of them, a
    glob; URLs. `cache` and `rank_regex` are of traces. Raises InputError where there is
    no run.
    """
    return open_paths(paths, ReadOptions(cache=cache, rank_regex=rank_regex))


def diagnose(run: Run, *, jobs: int = 1) -> RunReport:
    """Measure and judge a run; with more `jobs`, ranks are read in processes.

    Processes import the main module: a script then needs `if __name__ == "__main__"`.
    Raises InputError where no rank can be read.
    """
    with rank_workers(run, ReadOptions(jobs=jobs)) as executor:
        measures = measure(run, executor)
    return RunReport(value=report_of(measures, run), measures=measures)


def log_to(tracker: object, *paths: str | os.PathLike[str]) -> RunReport:
    """Diagnose the run that paths name, and log it to Weights & Biases or MLflow.

    `tracker` is a run of wandb, or the module `wandb` or `mlflow` for the active run.
    It gets the verdict, the figures of each step, and the report's page. Raises
    UsageError for any other.
    """
    from fsdpdoctor.integrations.trackers import log_report

    report = diagnose(open(*paths))
    log_report(tracker, report.value, tuple(report.steps))
    return report


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunReport:
    """A run's report: it shows itself, and its rows are tables."""

    value: Report  # all of it, each field as in the JSON
    # What it was made of: the rows of steps are made when they are asked for.
    measures: Measures = field(compare=False)

    @property
    def findings(self) -> RowTable[FindingRow]:
        """What hurts, in the order of the report."""
        return RowTable(FindingRow, self.value.findings)

    @property
    def units(self) -> RowTable[UnitRow]:
        """Each FSDP unit's times, counts, bytes and settings."""
        return RowTable(UnitRow, self.value.units)

    @property
    def collectives(self) -> RowTable[CollectiveRow]:
        """Bandwidths by group, kind and size."""
        return RowTable(CollectiveRow, self.value.collectives)

    @property
    def ranks(self) -> RowTable[RankRow]:
        """Each rank beside the others."""
        return RowTable(RankRow, self.value.ranks)

    @property
    def steps(self) -> RowTable[StepRow]:
        """Each recorded step of each rank: its time, what was exposed, its memory."""
        return RowTable(StepRow, step_rows(self.measures))

    def render(self, format: str = "text") -> str:
        """The report as `fsdpdoctor report --format` prints it."""
        if format not in RENDERERS:
            known = ", ".join(RENDERERS)
            raise UsageError(f"{format!r} is no format; expected one of {known}")
        return RENDERERS[format](self.value)

    def __repr__(self) -> str:
        return self.render("text")

    def _repr_html_(self) -> str:
        """For notebooks: a page in a frame, so that no style leaves it or gets in."""
        page = html.escape(self.render("html"), quote=True)
        style = f"width: 100%; height: {FRAME_PX}px; border: 0"
        return f'<iframe sandbox srcdoc="{page}" style="{style}"></iframe>'
