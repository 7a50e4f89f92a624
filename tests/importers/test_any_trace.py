"""Whatever lies among the public traces is read and diagnosed, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.errors import FsdpDoctorError, InputError
from fsdpdoctor.hang.diagnose import Diagnosis
from fsdpdoctor.hang.diagnose import diagnose as diagnose_hang
from fsdpdoctor.hang.flight_recorder import load_dumps
from fsdpdoctor.importers import import_run
from fsdpdoctor.report import Report, diagnose
from tests.importers.real_traces import found, within

FILES = found("*")
FOLDERS = sorted({path.parent for path in FILES})

each = pytest.mark.parametrize("path", [*FILES, *FOLDERS], ids=within)


def report_on(path: Path) -> Report | str:
    """What is said of a trace, or why nothing can be."""
    try:
        return diagnose(import_run([path]))
    except FsdpDoctorError as error:
        return str(error)


def hang_in(path: Path) -> Diagnosis | str:
    """Who holds up whom, or why that cannot be said."""
    try:
        return diagnose_hang(load_dumps([path]))
    except InputError as error:
        return str(error)


def names_it(refusal: str, path: Path) -> bool:
    """Whether a refusal says which path, or which file in it, it is about."""
    inside = path.iterdir() if path.is_dir() else ()
    return any(one.name in refusal for one in (path, *inside))


@each
def test_it_is_diagnosed_or_refused(path: Path) -> None:
    """A report says of each rank where its time went; a refusal names a file."""
    said = report_on(path)

    if isinstance(said, Report):
        assert len(said.ranks) == said.run.ranks > 0
    else:
        assert names_it(said, path)


@each
def test_it_is_a_hang_or_refused(path: Path) -> None:
    """The same of `hang`: whoever is to blame is one of the ranks that are known."""
    said = hang_in(path)

    if isinstance(said, Diagnosis):
        known = {*said.ranks, *said.without_dump}
        assert {culprit.rank for culprit in said.culprits} <= known
    else:
        assert names_it(said, path)
