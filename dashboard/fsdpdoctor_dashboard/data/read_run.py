"""Reading a run: in this process where it is small, else in others.

Measuring a million spans takes seconds of a processor. In a thread of the server it
would hold the interpreter's lock, and every user would wait for one user's run.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.open_paths import cores_here, processes_that_pay, rank_processes
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.run import RankSource, Run
from fsdpdoctor_dashboard.data.kept.kept_analysis import (
    Analysis,
    keep_analysis,
    open_analysis,
)
from fsdpdoctor_dashboard.data.kept.kept_measures import keep_measures, read_measures
from fsdpdoctor_dashboard.data.kept.rank_sketches import sketches_of
from fsdpdoctor_dashboard.data.kept.store_files import Section, saving, section_of
from fsdpdoctor_dashboard.data.rank_series import part_of
from fsdpdoctor_dashboard.data.rank_tracks import (
    AmongAll,
    Progress,
    among_all,
    track_of,
    tracks_of,
)
from fsdpdoctor_dashboard.data.slices import RankFacts, RankNames, marks_of
from fsdpdoctor_dashboard.data.store import (
    Store,
    build_store,
    cache_folder,
    forget_oldest,
    open_store,
    save_store,
)
from fsdpdoctor_dashboard.data.tile_cache import has_tiles, make_tiles

T = TypeVar("T")

AHEAD = 8
"""Ranks that are asked of workers before the first of them is taken: as many as there
are, where they are few, and of more none waits long."""

NICENESS = 2
"""Readers give way to the server, which somebody is waiting for at every frame, but
hardly to others: at 5, on a busy machine, a million spans took 78 s and not 12."""


class Reader:
    """Reads one run, with or without an executor."""

    def __init__(
        self,
        run: Run,
        executor: Executor | None = None,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._run = run
        self._executor = executor
        self.stop = stop  # its processes end at once

    def measure(self, on_rank: Callable[[int], None]) -> Measures:
        """Every rank's measures. Raises InputError."""
        return measure(self._run, self._executor, on_rank)

    def lay_out(
        self, measures: Measures, fingerprint: str, progress: Progress
    ) -> Store:
        """The run's store, kept in the cache unless the run still grows."""
        growing = any(rank.header.ended == "running" for rank in measures.ranks)
        folder = None if growing else cache_folder(fingerprint)
        if self._executor is None:
            store = build_store(tracks_of(self._run, measures, progress), fingerprint)
            if folder is None:
                return store  # a growing run will have changed by the next time
            return _kept(store, folder) or store
        there = self._laid_out(self._executor, measures, fingerprint, folder, progress)
        store = _opened(there)
        if there != folder:
            shutil.rmtree(there.parent)  # what is mapped stays until it is let go
        return store

    def _laid_out(
        self,
        executor: Executor,
        measures: Measures,
        fingerprint: str,
        folder: Path | None,
        progress: Progress,
    ) -> Path:
        """Where the store is: in the cache, or else in a new folder."""
        if folder is not None:
            with suppress(OSError):
                self._write(executor, measures, fingerprint, folder, progress)
                forget_oldest(folder)
                return folder
        place = Path(tempfile.mkdtemp(prefix="fsdpdoctor-")) / "store"
        self._write(executor, measures, fingerprint, place, progress)
        return place

    def _write(
        self,
        executor: Executor,
        measures: Measures,
        fingerprint: str,
        folder: Path,
        progress: Progress,
    ) -> None:
        """Other processes lay ranks out, and what each comes to is written as it
        comes: a rank is a megabyte.
        """
        by_rank = {source.rank: source for source in self._run.sources}
        total = len(measures.ranks)
        asked = (
            (by_rank[rank.rank], rank, among_all(measures, rank.rank))
            for rank in measures.ranks
        )
        with saving(folder, fingerprint, 0) as writer:
            found = in_turn(executor, laid_out, asked)
            for done, (rank, (section, names, facts)) in enumerate(
                zip(measures.rank_numbers, found, strict=True)
            ):
                progress(done, total)
                writer.add(rank, section, names, facts)

    def report(self, measures: Measures, folder: Path | None) -> Report:
        """What the analysis says. Meanwhile coarse tiles are added to the cache."""
        return self.analysis(measures, folder).report

    def analysis(self, measures: Measures, folder: Path | None) -> Analysis:
        """The same, with what pages need of all ranks; it is kept where the store is.

        A large run's measures are written and read again from there: sent to a worker,
        those of thousands of ranks would be held three times.
        """
        if self._executor is not None:
            with suppress(OSError):
                return self._analysis_apart(self._executor, measures, folder)
        return Analysis(measures, report_of(measures, self._run))

    def _analysis_apart(
        self, executor: Executor, measures: Measures, folder: Path | None
    ) -> Analysis:
        """By a worker. Raises OSError where nothing can be written."""
        with _place_of(folder) as place:
            keep_measures(measures, place)
            tiles = executor.submit(_add_tiles, folder)
            executor.submit(_analyse, self._run, place).result()
            tiles.result()
            return _read_back(place)


def in_turn(
    executor: Executor, task: Callable[..., T], asked: Iterable[tuple[Any, ...]]
) -> Iterator[T]:
    """A task's answers, in order; what is asked is made as workers come to it, and no
    more answers wait than some for each of them.
    """
    waiting: deque[Future[T]] = deque()
    for arguments in asked:
        waiting.append(executor.submit(task, *arguments))
        if len(waiting) > AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def laid_out(
    source: RankSource, rank: RankMeasures, among: AmongAll
) -> tuple[Section, RankNames, RankFacts]:
    """One rank, as a store holds it: what a worker does."""
    track = track_of(source.load(), rank, among)
    section = section_of(part_of(track, marks_of(track), 0))
    return section, track.names, track.facts


def _analyse(run: Run, place: Path) -> None:
    """Put the report of measures that lie in a folder beside them, and what pages
    show of all ranks.
    """
    measures = read_measures(place)
    if measures is None:
        raise _gone(place)
    report = report_of(measures, run)
    keep_analysis(report, sketches_of(measures, report), place)


def _read_back(place: Path) -> Analysis:
    found = open_analysis(place)
    if found is None:
        raise _gone(place)
    return found


@contextmanager
def _place_of(folder: Path | None) -> Iterator[Path]:
    """The folder of a run's store, if it has one, or one that is gone afterwards: what
    is mapped stays until it is let go.
    """
    if folder is not None and os.access(folder, os.W_OK):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fsdpdoctor-") as name:
        yield Path(name)


def _kept(store: Store, folder: Path) -> Store | None:
    """The store mapped from the cache; None where that cannot be written."""
    try:
        save_store(store, folder)
        forget_oldest(folder)
    except OSError:
        return None  # it costs only time
    return open_store(folder)


def _add_tiles(folder: Path | None) -> None:
    if folder is None or has_tiles(folder) or (store := open_store(folder)) is None:
        return
    with suppress(OSError):  # without them it is only slower
        make_tiles(store, folder)


def _opened(folder: Path) -> Store:
    store = open_store(folder)
    if store is None:
        raise _gone(folder)
    return store


def _gone(folder: Path) -> FsdpDoctorError:
    return FsdpDoctorError(f"{folder} was written just now and cannot be read")


@contextmanager
def reading(run: Run, processes: int | None = None) -> Iterator[Reader]:
    """A reader for a run, with so many processes, or None: as many as pay.

    Its processes end with the block, and with this process, however that ends.
    """
    if processes is None:
        spare = max(1, cores_here() - 1)  # one is the server's own
        processes = processes_that_pay(run, spare)
    if processes < 1:
        yield Reader(run)
        return
    with _workers(processes) as (executor, stop):
        yield Reader(run, executor, stop)


def apart(task: Callable[[], None]) -> None:
    """Do something in a process of its own, which ends with this one. Raises what it
    raises.
    """
    with _workers(1) as (executor, _):
        executor.submit(task).result()


@contextmanager
def _workers(processes: int) -> Iterator[tuple[Executor, Callable[[], None]]]:
    """Processes that give way to this one, and what ends them at once."""
    watched, held = get_context("forkserver").Pipe(duplex=False)
    try:
        with rank_processes(processes, partial(_start_worker, watched)) as executor:
            try:
                yield executor, held.close
            finally:
                held.close()
    finally:
        return_memory()


def return_memory() -> None:
    """What came from the readers was packed up to three times: 60 of 90 MB, of a run of
    a million spans, are free then, and glibc would keep them.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def _start_worker(watched: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the server's to hear
    os.nice(NICENESS)
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()


def _end_with(watched: Connection) -> None:
    """Nothing ever comes: the other end closes, also when its process is killed."""
    try:
        watched.recv()
    except (EOFError, OSError):
        os._exit(0)
