"""Where the public traces lie, and the figures that every tool agrees on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fsdpdoctor.analysis.timeline import of_kinds
from fsdpdoctor.importers import import_run
from fsdpdoctor.intervals import Intervals, subtract, total_ns, union
from fsdpdoctor.quantities import US
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import COMMUNICATION_LANES, DEVICE_WORK, Spans

FOLDER = Path(__file__).parents[3] / "shared" / "traces"


def real(name: str) -> Path:
    """A public trace, or a skip where the folder is not beside the project."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} is not here: real traces lie beside the project")
    return path


def found(pattern: str) -> list[Path]:
    """The files of such names that lie there, whoever put them."""
    return sorted(path for path in FOLDER.rglob(pattern) if path.is_file())


def within(path: Path) -> str:
    """Where a file lies in the folder of public traces: a test's id."""
    return str(path.relative_to(FOLDER))


def load(name: str) -> list[RankData]:
    """Every rank of a public trace."""
    return list(import_run([real(name)]).load())


def everything(data: RankData) -> Spans:
    """The spans of a whole capture."""
    return Spans.concat([*(step.spans for step in data.steps), data.outside])


class Figures(NamedTuple):
    """Of a whole capture, as the traces' README gives them."""

    comm_us: float
    overlap_percent: float
    exposed_us: float


def figures(spans: Spans) -> Figures:
    """Communication, the share of it under compute kernels, and the rest."""
    comm = spans.rows(np.isin(spans.lane, COMMUNICATION_LANES))
    kernels = of_kinds(spans, *DEVICE_WORK)
    return figures_of(
        union(comm.start_ns, comm.end_ns), union(kernels.start_ns, kernels.end_ns)
    )


def figures_of(comm: Intervals, compute: Intervals) -> Figures:
    """The same from intervals."""
    comm_ns, exposed_ns = total_ns(comm), total_ns(subtract(comm, compute))
    return Figures(
        comm_us=comm_ns / US,
        overlap_percent=round(100 * (comm_ns - exposed_ns) / comm_ns, 2),
        exposed_us=exposed_ns / US,
    )
