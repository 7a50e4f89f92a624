"""Reading a run beside the server, and drawing it before all is measured."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from fsdpdoctor.report import encode, report_of
from fsdpdoctor.run import RankFiles, Run, open_run
from fsdpdoctor_dashboard.data import read_run as reading_module
from fsdpdoctor_dashboard.data.kept import kept_measures
from fsdpdoctor_dashboard.data.kept.kept_measures import KeptRanks
from fsdpdoctor_dashboard.data.read_run import AHEAD, Reader, apart, in_turn, reading
from fsdpdoctor_dashboard.data.run_registry import (
    Library,
    Loading,
    OpenRun,
    Picture,
    meta_of,
)
from fsdpdoctor_dashboard.data.run_summaries import Summaries, summary_of
from fsdpdoctor_dashboard.data.store import cache_folder
from fsdpdoctor_dashboard.data.tile_cache import has_tiles

OTHERS = 2
"""Processes that read, where it is not this one."""


@pytest.mark.ranks
def test_other_processes_read_what_this_one_would(runs: dict[str, Path]) -> None:
    """Measures, report and store are the same; the store and its tiles are kept."""
    run = open_run(runs["before"])
    seen: list[int] = []
    with reading(run, 0) as here:
        measures = here.measure(seen.append)
        report = here.report(measures, None)
        store = here.lay_out(measures, "read here", lambda done, total: None)
    folder = cache_folder("read elsewhere")
    assert folder is not None
    with reading(run, OTHERS) as elsewhere:
        measures = elsewhere.measure(seen.append)
        again = elsewhere.lay_out(measures, "read elsewhere", lambda done, total: None)
        assert encode(elsewhere.report(measures, folder)) == encode(report)

    assert seen == [0, 1, 2, 3, 0, 1, 2, 3]
    assert again.area(5, 9_000_000, again.ranks) == store.area(
        5, 9_000_000, store.ranks
    )
    assert again.names == store.names
    assert again.facts == store.facts
    assert has_tiles(folder)


@pytest.mark.ranks
def test_without_a_cache_a_large_run_is_read_too(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is not kept is the same."""
    monkeypatch.setattr(reading_module, "cache_folder", lambda fingerprint: None)
    run = open_run(runs["before"])
    stores = []
    for processes in (0, OTHERS):
        with reading(run, processes) as reader:
            measures = reader.measure(lambda rank: None)
            stores.append(reader.lay_out(measures, "none", lambda done, total: None))

    areas = [store.area(5, 9_000_000, store.ranks) for store in stores]
    assert areas[0] == areas[1]


@pytest.mark.parametrize("cached", [True, False])
def test_what_a_worker_does_leads_to_the_same_store(
    runs: dict[str, Path], tmp_path: Path, cached: bool
) -> None:
    """Where it may write into the cache and where not; tiles come with the report."""
    folder = tmp_path / "timeline-drawn" if cached else tmp_path / "file" / "store"
    (tmp_path / "file").write_text("no folder")
    run = open_run(runs["before"])
    with reading(run, 0) as here, ThreadPoolExecutor(1) as executor:
        measures = here.measure(lambda rank: None)
        store = here.lay_out(measures, "here", lambda done, total: None)
        reader = Reader(run, executor)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading_module, "cache_folder", lambda fingerprint: folder)
            again = reader.lay_out(measures, "here", lambda done, total: None)
        reader.report(measures, folder)

    assert again.area(5, 9_000_000, again.ranks) == store.area(
        5, 9_000_000, store.ranks
    )
    assert folder.exists() == has_tiles(folder) == cached


def test_a_store_that_cannot_be_read_back_is_said(tmp_path: Path) -> None:
    """By its folder: the disk is at fault."""
    with pytest.raises(FsdpDoctorError, match="store was written just now"):
        reading_module._opened(tmp_path / "store")


@pytest.mark.ranks
def test_readers_end_when_they_are_stopped(runs: dict[str, Path]) -> None:
    """Nobody waits for a run that nobody will see."""
    run = open_run(runs["before"])

    def read_on() -> None:
        with reading(run, OTHERS) as reader:
            reader.measure(lambda rank: None)
            reader.stop()
            reader.measure(lambda rank: None)

    with pytest.raises(FsdpDoctorError, match="died"):
        read_on()


def test_a_run_seen_before_is_drawn_before_it_is_measured(
    runs: dict[str, Path],
) -> None:
    """The timeline comes from the cache at once; pages wait for the report."""
    Library([runs["after"]], open_run).wait("after")
    may_open = threading.Event()

    def slow(path: Path) -> Run:
        may_open.wait(60)
        return open_run(path)

    library = Library([runs["after"]], slow)
    library.get("after")
    while not isinstance(drawn := library.picture("after"), Picture):
        threading.Event().wait(0.01)
    assert isinstance(library.get("after"), Loading)
    may_open.set()
    opened = library.wait("after")

    assert not isinstance(drawn, OpenRun)
    assert drawn.units == opened.units
    assert drawn.whole == opened.whole
    assert library.picture("after") is opened


def test_what_is_done_apart_is_done_in_another_process(tmp_path: Path) -> None:
    """And raises here what it raised there."""
    told = tmp_path / "stat"
    apart(partial(shutil.copyfile, "/proc/self/stat", told))  # type: ignore[arg-type]

    assert int(told.read_text().split()[0]) != os.getpid()
    with pytest.raises(FileNotFoundError):
        apart(partial(os.rmdir, tmp_path / "none"))


class Watched(ThreadPoolExecutor):
    """Workers in this process, and what they were asked."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[tuple[object, ...]] = []

    def submit(self, task: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        """Do it, and note what it was given."""
        self.asked.append(arguments)
        return super().submit(task, *arguments, **named)


@pytest.mark.parametrize("cached", [True, False])
def test_no_worker_is_sent_all_ranks(
    runs: dict[str, Path], tmp_path: Path, cached: bool
) -> None:
    """Of thousands they are gigabytes. The report is the same, and what a reader gives
    reads a rank when it is asked for.
    """
    folder = tmp_path / "timeline-sent" if cached else None
    run = open_run(runs["wide"])
    expected = encode(report_of(measure(run), run))
    with Watched() as workers, pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading_module, "cache_folder", lambda fingerprint: folder)
        reader = Reader(run, workers)
        measures = reader.measure(lambda rank: None)
        reader.lay_out(measures, "sent", lambda done, total: None)
        found = reader.analysis(measures, folder)

    for arguments in workers.asked:
        assert not any(isinstance(one, Measures) for one in arguments)
        assert sum(isinstance(one, RankMeasures) for one in arguments) <= 1
    assert encode(found.report) == expected
    assert isinstance(found.measures.ranks, KeptRanks)
    assert found.measures.of(63).rank == 63


def test_where_nothing_can_be_written_the_run_is_analysed_here(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """A full disk costs time, and no report; what was written of it is gone."""
    run = open_run(runs["before"])
    measures = measure(run)
    expected = encode(report_of(measures, run))

    def full(measures: Measures, file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "no space left")

    with Watched() as workers, pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_measures, "_write", full)
        found = Reader(run, workers).analysis(measures, tmp_path)

    assert encode(found.report) == expected
    assert (found.measures, found.sketches) == (measures, None)
    assert [*tmp_path.iterdir()] == []


def test_answers_do_not_pile_up() -> None:
    """Whoever is slow to take them has as many waiting as workers were asked ahead."""
    made: list[int] = []
    with ThreadPoolExecutor(1) as workers:
        found = in_turn(workers, made.append, ((number,) for number in range(100)))
        assert made == []  # nothing is asked before somebody takes
        next(found)
        for _ in range(100):
            threading.Event().wait(0.01)
        assert len(made) == AHEAD + 1
        assert len([*found]) == 99
    assert made == [*range(100)]


def test_a_run_that_was_read_is_opened_without_reading_a_rank(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one: its report, its pages' figures and its timeline are in the cache."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))

    @contextmanager
    def workers(processes: int) -> Iterator[tuple[Watched, Callable[[], None]]]:
        with Watched() as executor:
            yield executor, lambda: None

    monkeypatch.setattr(reading_module, "_workers", workers)
    monkeypatch.setattr(reading_module, "processes_that_pay", lambda run, spare: 1)
    before = Library([runs["wide"]], open_run).wait("wide")
    monkeypatch.setattr(RankFiles, "load", None)
    again = Library([runs["wide"]], open_run).wait("wide")

    assert encode(again.report) == encode(before.report)
    assert again.sketches == before.sketches
    assert meta_of(again) == meta_of(before)
    assert (again.live, again.going) == (before.live, before.going)
    summary = Summaries(Library([runs["wide"]], open_run))
    summary.known()
    summary.wait()
    assert summary.known() == {"wide": summary_of(before.measures, before.report)}
    assert again.measures.of(5).judged_steps.tolist() == (
        before.measures.of(5).judged_steps.tolist()
    )
