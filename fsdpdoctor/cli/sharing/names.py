"""A run without the names of people and machines, for what is given away of it."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.exporters.redacted_run import cleaner_of, redacted
from fsdpdoctor.renderers.reading.anonymous import stand_for
from fsdpdoctor.report import report_of
from fsdpdoctor.run import Run


def without_names(run: Run, *, mask: bool) -> Run:
    """The same figures. With `mask`, without those of modules, classes and files."""
    clean = cleaner_of(run)
    if not mask:
        return redacted(run, clean, str)
    stand = stand_for(report_of(measure(run), run))
    return redacted(run, clean, stand)
