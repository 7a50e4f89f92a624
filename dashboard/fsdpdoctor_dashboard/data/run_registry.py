"""The runs that the dashboard shows: found once, opened when asked for, by id.

An id is a folder's name, never a path: what a browser sends is only ever looked up.
Runs are read in threads of their own, and one that is still being written is read
again as it grows.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.errors import FsdpDoctorError, InputError
from fsdpdoctor.open_paths import files_at, runs_at
from fsdpdoctor.renderers.reading.unit_names import UnitNames, names_in
from fsdpdoctor.report import Report
from fsdpdoctor.run import Run
from fsdpdoctor_dashboard.data.in_progress import report_so_far, still_going
from fsdpdoctor_dashboard.data.kept.kept_analysis import Analysis, open_analysis
from fsdpdoctor_dashboard.data.kept.rank_sketches import Sketches, sketches_of
from fsdpdoctor_dashboard.data.kept.run_overview import overview
from fsdpdoctor_dashboard.data.queries import Details
from fsdpdoctor_dashboard.data.read_run import Reader, reading, return_memory
from fsdpdoctor_dashboard.data.series import SERIES
from fsdpdoctor_dashboard.data.store import (
    Store,
    cache_folder,
    fingerprint_of,
    open_store,
)
from fsdpdoctor_dashboard.data.tile_cache import TileShelf
from fsdpdoctor_dashboard.data.tiles import whole_level

Opener = Callable[[Path], Run]

KEPT_OPEN = 4
"""Runs kept in memory at once; a run of a million spans takes about 60 MB."""
LIVE_SECONDS = 2.0
"""How often a growing run's files are looked at."""
LIVE_REST = 5.0
"""After reading a growing run, this many times as long passes until the next time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run that can be opened."""

    id: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """A run as far as its timeline needs it: there before all is measured."""

    entry: Entry
    store: Store
    revision: int = 1
    label: str = ""  # what a page calls it, where it is not its id
    whole: dict[str, Any] = field(init=False)  # of `meta`: what is counted once
    tiles: TileShelf = field(init=False)
    folder: Path | None = None  # of the cache, where the store is in one

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", overview(self.store, self.folder))
        object.__setattr__(self, "tiles", TileShelf(self.store, self.folder))

    @property
    def id(self) -> str:
        """The name under which a browser asks for it."""
        return self.entry.id

    @property
    def details(self) -> Details:
        """Answers about single marks."""
        return Details(self.store)

    @property
    def live(self) -> bool:
        """Whether there may be more: not known yet, so that a page asks again."""
        return True

    @property
    def units(self) -> tuple[str, ...]:
        """Names by unit id, of the first rank, safe to show."""
        ranks = self.store.ranks
        return self.store.names[ranks[0]].units if ranks else ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenRun(Picture):
    """A run, measured and ready to be drawn."""

    run: Run
    measures: Measures
    report: Report
    finished: bool = False  # nobody writes to it, whatever its ranks say
    going: bool = False  # its processes are seen to run, on this host
    kept_sketches: Sketches | None = None  # None: they are made when they are asked for
    _made: list[Sketches] = field(init=False, repr=False, default_factory=list)
    _running: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        Picture.__post_init__(self)
        running = any(facts.ended == "running" for facts in self.store.facts.values())
        object.__setattr__(self, "_running", running)

    @property
    def named(self) -> UnitNames:
        """What its units are called."""
        return names_in(self.report)

    @property
    def live(self) -> bool:
        """Whether some rank is still writing, as far as its record says."""
        return self._running and not self.finished

    @property
    def sketches(self) -> Sketches:
        """What pages show of all ranks together."""
        if self.kept_sketches is not None:
            return self.kept_sketches
        if not self._made:
            self._made.append(sketches_of(self.measures, self.report))
        return self._made[0]


@dataclass(slots=True)
class Loading:
    """A run that is being read: how far, or why it cannot be."""

    done: int = 0
    total: int = 0
    what: str = "opening"
    error: str | None = None
    fingerprint: str | None = None  # of the files, before they were read
    picture: Picture | None = field(default=None, repr=False)  # comes first
    reader: Reader | None = field(default=None, repr=False)
    thread: threading.Thread | None = field(default=None, repr=False)

    def measured(self, _: int) -> None:
        """One more rank is done."""
        self.done += 1

    def laid_out(self, done: int, total: int) -> None:
        """So many ranks' marks are made."""
        self.what, self.done, self.total = "laying out the timeline", done, total

    @property
    def words(self) -> str:
        """How far it is."""
        if self.total:
            return f"{self.what}: {self.done} of {self.total} ranks"
        return self.what


class UnknownRunError(FsdpDoctorError):
    """An id that stands for no run."""


class Library:
    """Runs by id."""

    def __init__(self, paths: Iterable[Path], opener: Opener) -> None:
        self.opener = opener
        self._roots = tuple(paths)
        self._entries: dict[str, Entry] = {}
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._extra: dict[str, OpenRun] = {}
        self._loading: dict[str, Loading] = {}
        self._looked: dict[str, float] = {}
        self._lock = threading.RLock()
        self.look()
        if not self._entries:
            given = ", ".join(map(str, self._roots))
            raise InputError(
                f"no run under {given}: expected the folder of a recorded run, a "
                "folder of traces, or a folder that holds runs"
            )

    def look(self) -> None:
        """Find the runs anew: those given, or those inside a folder that was given."""
        with self._lock:
            for root in self._roots:
                for path in runs_at(root):
                    if path not in {e.path for e in self._entries.values()}:
                        entry = Entry(id=self._free_id(path), path=path)
                        self._entries[entry.id] = entry

    def _free_id(self, path: Path) -> str:
        name = (
            re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name).strip(".-") or "run"
        )
        taken, number = name, 2
        while taken in self._entries:
            taken, number = f"{name}-{number}", number + 1
        return taken

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All runs that were found."""
        return tuple(self._entries.values())

    def entry(self, run_id: str) -> Entry:
        """Raises UnknownRunError."""
        try:
            return self._entries[run_id]
        except KeyError:
            raise UnknownRunError("there is no run with this id") from None

    def get(self, run_id: str) -> OpenRun | Loading:
        """The run, or how far its reading has come; the first call starts it."""
        with self._lock:
            if run_id in self._extra:
                return self._extra[run_id]
            entry = self.entry(run_id)
            if run_id in self._open:
                self._open.move_to_end(run_id)
                self._follow(self._open[run_id])
                return self._open[run_id]
            return self._start(entry, revision=1)

    def opened(self, run_id: str) -> OpenRun | None:
        """The run where it is open; nothing is read for the question."""
        with self._lock:
            return self._open.get(run_id)

    def picture(self, run_id: str) -> Picture | Loading:
        """The same for those who only draw: they need not wait for the report."""
        found = self.get(run_id)
        if isinstance(found, Loading) and found.picture and found.error is None:
            return found.picture
        return found

    def wait(self, run_id: str) -> OpenRun:
        """The run, when it is read. Raises InputError where it cannot be."""
        while True:
            found = self.get(run_id)
            if isinstance(found, OpenRun):
                return found
            if found.error is not None:
                raise InputError(found.error)
            if found.thread is not None:
                found.thread.join()

    def close(self) -> None:
        """Let go of what is being read."""
        with self._lock:
            for loading in self._loading.values():
                if loading.reader is not None:
                    loading.reader.stop()

    def add(self, made: OpenRun) -> None:
        """Show a run that is not on disk: a simulated one. The oldest gives way."""
        with self._lock:
            self._extra.pop(made.id, None)  # it is the newest again
            self._extra[made.id] = made
            while len(self._extra) > KEPT_OPEN:
                del self._extra[next(iter(self._extra))]

    def _start(self, entry: Entry, revision: int) -> Loading:
        found = self._loading.get(entry.id)
        if found is not None and found.error is None:
            return found
        if found is not None and revision == 1 and not _changed(entry, found):
            return found  # what cannot be read is not read again for every page
        loading = Loading()
        self._loading[entry.id] = loading
        loading.thread = threading.Thread(
            target=self._read, args=(entry, loading, revision), daemon=True
        )
        loading.thread.start()
        return loading

    def _read(self, entry: Entry, loading: Loading, revision: int) -> None:
        began = time.monotonic()
        try:
            loading.fingerprint = fingerprint_of(files_at(entry.path))
            opened = open_entry(entry, self.opener, loading, revision)
        except (FsdpDoctorError, OSError) as error:
            loading.error = str(error)
            return
        except Exception as error:  # A thread has nobody to raise to: the page says it.
            loading.error = f"{entry.path} could not be read: {error!r}"
            raise
        with self._lock:
            self._open[entry.id] = opened
            self._open.move_to_end(entry.id)
            while len(self._open) > KEPT_OPEN:
                self._open.popitem(last=False)
            self._loading.pop(entry.id, None)
            took = time.monotonic() - began
            self._looked[entry.id] = time.monotonic() + took * LIVE_REST

    def _follow(self, opened: OpenRun) -> None:
        """Read a growing run again where its files have changed."""
        entry, now = opened.entry, time.monotonic()
        loading = self._loading.get(entry.id)
        if not opened.live or (loading is not None and loading.error is None):
            return
        if now < self._looked.get(entry.id, 0.0):
            return
        self._looked[entry.id] = now + LIVE_SECONDS
        # Who is killed writes nothing any more, and is seen to be gone.
        ended = opened.going and not still_going(opened.measures)
        if ended or fingerprint_of(files_at(entry.path)) != opened.store.fingerprint:
            self._start(entry, opened.revision + 1)


def _changed(entry: Entry, failed: Loading) -> bool:
    """Whether a run that could not be read is another since, as far as one can see."""
    try:
        return fingerprint_of(files_at(entry.path)) != failed.fingerprint
    except OSError:
        return failed.fingerprint is not None


def open_entry(
    entry: Entry, opener: Opener, loading: Loading, revision: int = 1
) -> OpenRun:
    """Read, measure and lay out a run. Raises InputError.

    A large one is read by other processes, so that this one goes on answering.
    """
    fingerprint = fingerprint_of(files_at(entry.path))
    folder = cache_folder(fingerprint)

    def drawn(store: Store) -> None:
        loading.picture = Picture(
            entry=entry, store=store, revision=revision, folder=folder
        )

    cached = None if folder is None else open_store(folder)
    kept = None
    if folder is not None and cached is not None:
        drawn(cached)
        kept = open_analysis(folder)
    run = opener(entry.path)
    loading.what, loading.total = "measuring", len(run.sources)
    found = kept or _analysed(run, loading, fingerprint, folder, drawn)
    if kept is None:
        return_memory()  # of all ranks' measures, where they are in a file now
    assert loading.picture is not None
    going = kept is None and still_going(found.measures)
    return OpenRun(
        entry=entry,
        run=run,
        measures=found.measures,
        report=report_so_far(found.report) if going else found.report,
        store=loading.picture.store,
        revision=revision,
        folder=folder,
        going=going,
        kept_sketches=found.sketches,
    )


def _analysed(
    run: Run,
    loading: Loading,
    fingerprint: str,
    folder: Path | None,
    drawn: Callable[[Store], None],
) -> Analysis:
    with reading(run) as reader:
        loading.reader = reader
        measures = reader.measure(loading.measured)
        if loading.picture is None:
            drawn(reader.lay_out(measures, fingerprint, loading.laid_out))
        loading.what, loading.total = "looking for what hurts", 0
        return reader.analysis(measures, folder)


def meta_of(run: Picture) -> dict[str, Any]:
    """All that a page needs before its first tile."""
    store = run.store
    return {
        "id": run.id,
        "label": run.label or run.id,
        "fingerprint": f"{store.fingerprint}-{run.revision}",
        "end": store.end,
        "level": whole_level(store),
        "series": [spec._asdict() for spec in SERIES],
        "units": run.units,
        "revision": run.revision,
        "live": run.live,
        **run.whole,
    }
