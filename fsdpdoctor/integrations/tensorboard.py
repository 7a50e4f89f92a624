"""A run for TensorBoard: a chart for each figure of a step, and the report as text.

Each rank is a run of TensorBoard's, so that its charts lay ranks over one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.integrations.event_file import Scalar, Text, event_file
from fsdpdoctor.integrations.scalars import scalars_of
from fsdpdoctor.quantities import SECOND
from fsdpdoctor.renderers.markdown import render, render_units
from fsdpdoctor.report.step_rows import StepRow, step_rows
from fsdpdoctor.report.value import Report


def write_events(measures: Measures, report: Report, folder: Path) -> Iterator[Path]:
    """Write what `tensorboard --logdir folder` shows; yields each file."""
    began_s = (report.run.started_unix_ns or 0) / SECOND
    texts = [
        Text(tag="fsdpdoctor/report", text=render(report), time_s=began_s),
        Text(tag="fsdpdoctor/units", text=render_units(report), time_s=began_s),
    ]
    yield _write(event_file(texts, began_s), folder / "report", began_s)
    rows: dict[int, list[StepRow]] = {}
    for row in step_rows(measures):
        rows.setdefault(row.rank, []).append(row)
    for rank, steps in rows.items():
        content = event_file(_points(measures, rank, steps), began_s)
        yield _write(content, folder / f"rank{rank}", began_s)


def _points(m: Measures, rank: int, rows: list[StepRow]) -> Iterator[Scalar]:
    one = m.of(rank)
    ends_ns = one.steps.end_ns + one.header.unix_minus_clock_ns
    for row, end_ns in zip(rows, ends_ns.tolist(), strict=True):
        for name, value in scalars_of(row).items():
            yield Scalar(
                tag=f"fsdpdoctor/{name}",
                step=row.step,
                value=value,
                time_s=end_ns / SECOND,
            )


def _write(content: bytes, folder: Path, began_s: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{int(began_s):010d}.fsdpdoctor"
    path.write_bytes(content)
    return path
