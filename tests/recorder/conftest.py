"""The recorded scenarios: one job of each size per test session."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.run import RankData, open_run
from tests.rig.ranks import run_ranks

JOB = Path(__file__).with_name("job.py")


class Recorded:
    """The folder of a job's runs, each named for its scenario."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rank(self, scenario: str, rank: int = 0) -> RankData:
        """What one rank left; the scenario must have run to its end."""
        failed = self._folder / f"{scenario}.{rank}.error"
        assert not failed.exists(), failed.read_text()
        return open_run(self._folder / scenario).sources[rank].load()


def _record(
    tmp: pytest.TempPathFactory, ranks: int, which: str, *more: str
) -> Recorded:
    folder = tmp.mktemp(which)
    job = str(JOB), str(folder), which, *more
    for finished in run_ranks(ranks, "-W", "ignore", *job):
        finished.ok()
    return Recorded(folder)


@pytest.fixture(scope="session")
def one(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Scenarios on one rank."""
    return _record(tmp_path_factory, 1, "one")


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Scenarios on two ranks."""
    return _record(tmp_path_factory, 2, "two")


@pytest.fixture(scope="session")
def two_live(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The same, without hooks in C."""
    return _record(tmp_path_factory, 2, "two", "live")


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Scenarios on four ranks."""
    return _record(tmp_path_factory, 4, "four")
