"""The events of a run's traces, for lanes that somebody opens: read when first asked
for, one file at a time, and kept beside what else is cached.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.importers.kineto.source import KinetoSource
from fsdpdoctor.importers.reader.build_index import build_index, index_folder
from fsdpdoctor.importers.reader.event_index import EventIndex, open_index
from fsdpdoctor.importers.reader.trace_cache import default_folder
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import MIB
from fsdpdoctor.recorder.launch.profiler_schedule import FOLDER
from fsdpdoctor.run import RankFiles
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Kind, Lane
from fsdpdoctor_dashboard.data.queries import row_of
from fsdpdoctor_dashboard.data.read_run import apart
from fsdpdoctor_dashboard.data.run_registry import OpenRun, Picture
from fsdpdoctor_dashboard.data.series import SERIES
from fsdpdoctor_dashboard.data.store import Store

KEPT_MAPPED = 64
"""Indices that stay mapped: each holds a file open."""

APART_FROM = 8 * MIB
"""Of a file: a larger one is read by a process of its own. 41 MB, packed, of 1.2
million events take 1.7 s of a processor and 200 MB meanwhile, and kept the server from
answering for up to 0.2 s.
"""

KEPT_PLACED = 32
"""Ranks whose streams stay known: that takes a look at all of their spans."""


class NoEventsError(FsdpDoctorError):
    """A rank whose operators and kernels cannot be shown; the words say why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankEvents:
    """A rank's events, and where they lie on the timeline's clock."""

    index: EventIndex
    starts_ns: Int64s  # of the rank's steps, ascending, on its own clock
    shifts_ns: Int64s  # from there to the timeline, of each step and what follows it
    streams: Mapping[int, frozenset[int]]  # that the spans of each row ran on
    rows: frozenset[int]  # that the rank has in the picture

    def on_timeline(self, own_ns: Int64s) -> Int64s:
        """Times of the trace, as the timeline counts them."""
        at = np.searchsorted(self.starts_ns, own_ns, "right") - 1
        moved: Int64s = own_ns + self.shifts_ns[np.maximum(at, 0)]
        return moved

    def own(self, time: int) -> int:
        """A time of the timeline, as the trace counts it."""
        at = int(np.searchsorted(self.starts_ns + self.shifts_ns, time, "right")) - 1
        return time - int(self.shifts_ns[max(at, 0)])


@dataclass(slots=True)
class _Reading:
    path: Path
    size: int = 0  # bytes that have been read
    error: str | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def words(self) -> str:
        """How far it is, where that is known."""
        if not self.size:
            return "reading the trace"
        return f"reading the trace: {self.size / MIB:.0f} MiB of events"


class TraceEvents:
    """The events of all traces that were asked for."""

    def __init__(self) -> None:
        self._mapped: OrderedDict[Path, EventIndex] = OrderedDict()
        self._ranks: OrderedDict[tuple[str, int], RankEvents] = OrderedDict()
        self._readings: dict[Path, _Reading] = {}
        self._lock = threading.Lock()
        self._one = threading.Lock()  # so that memory holds one file's events
        self._own: Path | None = None

    def of(self, run: Picture, rank: int) -> RankEvents | str:
        """A rank's events, or how far their reading is. Raises NoEventsError."""
        if not isinstance(run, OpenRun):
            return "measuring the run"
        path = trace_of(run, rank)
        try:
            found = self._index(path)
        except OSError as error:
            raise NoEventsError(f"{path} cannot be read: {error.strerror}") from None
        return found if isinstance(found, str) else self._of_rank(run, rank, found)

    def _of_rank(self, run: OpenRun, rank: int, index: EventIndex) -> RankEvents:
        key = (f"{run.store.fingerprint}-{run.revision}", rank)
        with self._lock:
            known = self._ranks.get(key)
            if known is None or known.index is not index:
                known = self._ranks[key] = _placed(run, rank, index)
                while len(self._ranks) > KEPT_PLACED:
                    self._ranks.popitem(last=False)
            return known

    def wait(self, run: OpenRun, rank: int) -> RankEvents:
        """The same, when it is read."""
        found = self.of(run, rank)
        while isinstance(found, str):
            with self._lock:
                readings = list(self._readings.values())
            for reading in readings:
                reading.done.wait()
            found = self.of(run, rank)
        return found

    def _index(self, path: Path) -> EventIndex | str:
        with self._lock:
            folder = index_folder(path, self._cache())
            if folder in self._mapped:
                self._mapped.move_to_end(folder)
                return self._mapped[folder]
            reading = self._readings.get(folder)
            if reading is not None and not reading.done.is_set():
                return reading.words
            if reading is not None and reading.error is not None:
                raise NoEventsError(reading.error)
            found = open_index(folder)
            if found is not None:
                self._readings.pop(folder, None)
                self._mapped[folder] = found
                while len(self._mapped) > KEPT_MAPPED:
                    self._mapped.popitem(last=False)
                return found
            if reading is not None:
                raise NoEventsError(f"the events of {path} could not be kept")
            self._readings[folder] = reading = _Reading(path)
        threading.Thread(target=self._read, args=(reading, folder), daemon=True).start()
        return "reading the trace"

    def _read(self, reading: _Reading, folder: Path) -> None:
        def progress(size: int) -> None:
            reading.size = size

        try:
            with self._one:
                if reading.path.stat().st_size < APART_FROM:
                    build_index(reading.path, folder, progress)
                else:
                    apart(partial(build_index, reading.path, folder))
        except (FsdpDoctorError, OSError) as error:
            reading.error = str(error)
        except Exception as error:  # a thread has nobody to raise to
            reading.error = f"{reading.path} could not be read: {error!r}"
            raise
        finally:
            reading.done.set()

    def _cache(self) -> Path:
        kept = default_folder()
        if kept is not None:
            return kept
        if self._own is None:  # the user wants no cache: it goes with this process
            self._own = Path(tempfile.mkdtemp(prefix="fsdpdoctor-events-"))
            weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
        return self._own


def trace_of(run: OpenRun, rank: int) -> Path:
    """The trace that a rank was read from. Raises NoEventsError."""
    source = next((one for one in run.run.sources if one.rank == rank), None)
    if isinstance(source, KinetoSource):
        if isinstance(source.path, Path):
            return source.path
        raise NoEventsError("the trace is not on this machine: copy it here")
    said = run.run.header.source
    if said == "kineto":
        raise NoEventsError(
            "this run was kept without its trace, which has the operators and kernels: "
            "open the trace"
        )
    if said == "recorded":
        raise NoEventsError(_recorded(source))
    raise NoEventsError(_ELSEWHERE.get(said, "this run has no trace to open"))


_ELSEWHERE = {
    "nsys": "of an Nsight Systems capture only spans are read: its calls are in Nsight",
    "simulated": "a simulated step has no operators or kernels of its own",
    "rehearsal": "a rehearsal times units, and no operators or kernels",
}


def _recorded(source: object) -> str:
    if isinstance(source, RankFiles) and (source.folder / FOLDER).is_dir():
        return (
            "the record times units; operators and kernels are in the traces beside "
            f"it: fsdpdoctor view {source.folder / FOLDER}"
        )
    return (
        "recorded without torch.profiler, which alone sees operators and kernels: "
        "fsdpdoctor run --kineto 2 records two steps with it"
    )


def _placed(run: OpenRun, rank: int, index: EventIndex) -> RankEvents:
    clock, store = run.measures.alignment.clocks[rank], run.store
    starts = np.sort(run.measures.of(rank).steps.start_ns)
    if not len(starts):  # of no step: what is there is moved together
        starts = index.start_ns[:1].astype(np.int64)
    return RankEvents(
        index=index,
        starts_ns=starts,
        shifts_ns=clock.to_reference(starts) - starts - store.origin_ns,
        streams=_streams(store, rank),
        rows=frozenset(int(SERIES[s.series].row) for s in store.series(rank)),
    )


def _streams(store: Store, rank: int) -> dict[int, frozenset[int]]:
    """The streams that the spans of each row ran on."""
    table = store.spans[rank]
    lane, kind, stream = (table.column(name) for name in ("lane", "kind", "stream"))
    known = (stream != UNKNOWN) & (stream != NO_TIME)
    of_span = np.stack([lane[known], kind[known], stream[known]])
    found: dict[int, set[int]] = {}
    for of_lane, of_kind, one in np.unique(of_span, axis=1).T.tolist():
        found.setdefault(row_of(Kind(of_kind), Lane(of_lane)), set()).add(one)
    return {row: frozenset(streams) for row, streams in found.items()}
