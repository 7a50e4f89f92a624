"""The run that these tests export: two ranks whose times can be read off a picture.

16 ms a step, one a character; compute waits 8 of them, all for all-gathers.
"""

from __future__ import annotations

from pathlib import Path

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.report import report_of
from fsdpdoctor.report.value import Report
from fsdpdoctor.run import RankData, in_memory, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.testing import draw, measured
from tests.cli.test_cli import PICTURE

STEPS = (3, 4, 5, 6)


def ranks() -> tuple[RankData, ...]:
    """Both alike."""
    return tuple(
        draw(PICTURE, rank=rank, world_size=2, steps=len(STEPS), first_step=STEPS[0])
        for rank in (0, 1)
    )


def measured_run() -> tuple[Measures, Report]:
    """Its measures, and what is said of them."""
    measures = measured(*ranks())
    return measures, report_of(measures)


def save(folder: Path) -> Path:
    """The same as a folder."""
    header = RunHeader(run_id="drawn", source="recorded", world_size=2)
    save_run(in_memory(header, ranks()), folder)
    return folder
