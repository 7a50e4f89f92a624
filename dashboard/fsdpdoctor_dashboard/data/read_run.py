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
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.open_paths import cores_here, processes_that_pay, rank_processes
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.run import Run
from fsdpdoctor_dashboard.data.rank_tracks import Progress, tracks_of
from fsdpdoctor_dashboard.data.store import (
    Store,
    build_store,
    cache_folder,
    forget_oldest,
    open_store,
    save_store,
)
from fsdpdoctor_dashboard.data.tile_cache import has_tiles, make_tiles

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
        progress(0, 0)
        there = self._executor.submit(
            _saved, self._run, measures, fingerprint, folder
        ).result()
        store = _opened(there)
        if there != folder:
            shutil.rmtree(there.parent)  # what is mapped stays until it is let go
        return store

    def report(self, measures: Measures, folder: Path | None) -> Report:
        """What the analysis says. Meanwhile coarse tiles are added to the cache."""
        if self._executor is None:
            return report_of(measures, self._run)
        tiles = self._executor.submit(_add_tiles, folder)
        report = self._executor.submit(report_of, measures, self._run).result()
        tiles.result()
        return report


def _kept(store: Store, folder: Path) -> Store | None:
    """The store mapped from the cache; None where that cannot be written."""
    try:
        save_store(store, folder)
        forget_oldest(folder)
    except OSError:
        return None  # it costs only time
    return open_store(folder)


def _saved(run: Run, measures: Measures, fingerprint: str, folder: Path | None) -> Path:
    """Where a worker put the run's store: in the cache, or else in a new folder."""
    store = build_store(tracks_of(run, measures), fingerprint)
    if folder is not None and _kept(store, folder) is not None:
        return folder
    place = Path(tempfile.mkdtemp(prefix="fsdpdoctor-")) / "store"
    save_store(store, place)
    return place


def _add_tiles(folder: Path | None) -> None:
    if folder is None or has_tiles(folder) or (store := open_store(folder)) is None:
        return
    with suppress(OSError):  # without them it is only slower
        make_tiles(store, folder)


def _opened(folder: Path) -> Store:
    store = open_store(folder)
    if store is None:
        raise FsdpDoctorError(f"{folder} was written just now and cannot be read")
    return store


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
        _return_memory()


def _return_memory() -> None:
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
