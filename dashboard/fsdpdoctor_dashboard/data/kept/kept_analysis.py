"""What a run was found to be, kept beside its store: opening it again measures nothing.

The files are of the same fingerprint as the store: of the run's files, of their times,
and of this program's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.report import Report, decode, encode
from fsdpdoctor_dashboard.data.kept.kept_measures import open_measures
from fsdpdoctor_dashboard.data.kept.rank_sketches import Sketches

_REPORT = "report.json"
_SKETCHES = "sketches.json"


class Analysis(NamedTuple):
    """A run's measures, what is said of them, and what pages show of all ranks."""

    measures: Measures
    report: Report
    sketches: Sketches | None = None  # None: not made yet


def keep_analysis(report: Report, sketches: Sketches, folder: Path) -> None:
    """Write both beside the measures. Raises OSError."""
    (folder / _SKETCHES).write_bytes(msgspec.json.encode(sketches))
    # Last: where it is, all is there.
    new = folder / f".{_REPORT}"
    new.write_text(encode(report), encoding="utf-8")
    new.rename(folder / _REPORT)


def open_analysis(folder: Path) -> Analysis | None:
    """What a folder holds; None where it holds none, or half of one."""
    try:
        report = decode((folder / _REPORT).read_bytes())
        sketches = msgspec.json.decode((folder / _SKETCHES).read_bytes(), type=Sketches)
    except (OSError, FsdpDoctorError, msgspec.DecodeError):
        return None
    measures = open_measures(folder)
    return None if measures is None else Analysis(measures, report, sketches)
