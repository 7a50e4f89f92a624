"""What a table of runs says of each: read one after the other, and kept in the cache.

A run's summary takes its whole diagnosis, but no timeline. It is made by one thread,
the newest run first, while somebody looks at the table.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path

import msgspec
import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.importers.reader.trace_cache import default_folder
from fsdpdoctor.open_paths import files_at
from fsdpdoctor.report import Report
from fsdpdoctor_dashboard.data.kept.kept_analysis import open_analysis
from fsdpdoctor_dashboard.data.read_run import Reader, reading
from fsdpdoctor_dashboard.data.run_registry import Entry, Library
from fsdpdoctor_dashboard.data.store import cache_folder, fingerprint_of

SPARKS = 60
"""Points of a run's line of steps; of more steps the longest stand for the others."""

LOOK_SECONDS = 10.0
"""How often runs are looked for again, and those that have changed read again."""

KEPT_SUMMARIES = 2_000
"""Files in the user's cache; one takes about 500 bytes."""

_PREFIX = "summary-"


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table; `error` where there is none."""

    verdict: str = ""
    kind: str = ""  # of the verdict
    started_unix_ns: int | None = None
    world_size: int = 0
    step_ns: int | None = None  # median
    exposed_share: float | None = None  # of the mean step
    steps: tuple[int, ...] = ()  # ns of each, at most SPARKS of them
    error: str | None = None


def summary_of(measures: Measures, report: Report) -> RunSummary:
    """A run in a row."""
    mean, exposed = report.step_time_ns.mean, report.exposed_ns_per_step.total
    return RunSummary(
        verdict=report.verdict.text,
        kind=report.verdict.kind,
        started_unix_ns=report.run.started_unix_ns,
        world_size=report.run.world_size,
        step_ns=report.step_time_ns.median,
        exposed_share=exposed / mean if exposed is not None and mean else None,
        steps=_steps(measures),
    )


def _steps(measures: Measures) -> tuple[int, ...]:
    """How long each judged step took, the mean of its ranks, in order."""
    ns: dict[int, list[int]] = {}
    for rank in measures.ranks:
        rows = rank.judged
        taken = rank.steps.duration_ns[rows].tolist()
        for step, length in zip(rank.steps.step[rows].tolist(), taken, strict=True):
            ns.setdefault(step, []).append(length)
    means = [round(sum(ns[step]) / len(ns[step])) for step in sorted(ns)]
    if len(means) <= SPARKS:
        return tuple(means)
    return tuple(int(part.max()) for part in np.array_split(means, SPARKS))


class Summaries:
    """Summaries of a library's runs, as far as they are known."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known: dict[str, tuple[str, RunSummary]] = {}
        self._thread: threading.Thread | None = None
        self._again = 0.0  # when files are looked at again
        self._lock = threading.Lock()
        self._closed = False
        self._reader: Reader | None = None
        self.version = 0  # rises with each row that is new

    def known(self) -> dict[str, RunSummary]:
        """By the run's id. Those that are missing are being read from now on."""
        with self._lock:
            idle = self._thread is None or not self._thread.is_alive()
            if idle and time.monotonic() >= self._again:
                self._thread = threading.Thread(target=self._read_all, daemon=True)
                self._thread.start()
            return {run_id: found for run_id, (_, found) in self._known.items()}

    def wait(self) -> None:
        """Until what is being read has been read."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Read no further, and let go of what is being read."""
        self._closed = True
        if self._reader is not None:
            self._reader.stop()

    def _read_all(self) -> None:
        self._library.look()
        for entry in newest_first(self._library.entries):
            if self._closed:
                return
            try:
                fingerprint = fingerprint_of(files_at(entry.path))
            except OSError as error:
                fingerprint, found = "", RunSummary(error=str(error))
            else:
                if self._known.get(entry.id, ("",))[0] == fingerprint:
                    continue
                found = _cached(fingerprint) or self._read(entry, fingerprint)
            with self._lock:
                self._known[entry.id] = (fingerprint, found)
                self.version += 1
        self._again = time.monotonic() + LOOK_SECONDS

    def _read(self, entry: Entry, fingerprint: str) -> RunSummary:
        opened = self._library.opened(entry.id)
        if opened is not None and opened.store.fingerprint == fingerprint:
            return summary_of(opened.measures, opened.report)
        folder = cache_folder(fingerprint)
        kept = None if folder is None else open_analysis(folder)
        if kept is not None:  # it was opened before
            return summary_of(kept.measures, kept.report)
        try:
            run = self._library.opener(entry.path)
            with reading(run) as reader:
                self._reader = reader
                measures = reader.measure(lambda _: None)
                found = summary_of(measures, reader.report(measures, None))
        except (FsdpDoctorError, OSError, BrokenExecutor) as error:
            return RunSummary(error=str(error))
        finally:
            self._reader = None
        if not any(rank.header.ended == "running" for rank in measures.ranks):
            _keep(fingerprint, found)
        return found


def newest_first(entries: tuple[Entry, ...]) -> list[Entry]:
    """By when their folders changed."""

    def changed(entry: Entry) -> float:
        try:
            return entry.path.stat().st_mtime
        except OSError:
            return 0.0

    return sorted(entries, key=lambda entry: (-changed(entry), entry.id))


def _place(fingerprint: str) -> Path | None:
    folder = default_folder()
    return None if folder is None else folder / f"{_PREFIX}{fingerprint}.json"


def _cached(fingerprint: str) -> RunSummary | None:
    place = _place(fingerprint)
    if place is None:
        return None
    try:
        return msgspec.json.decode(place.read_bytes(), type=RunSummary)
    except (OSError, msgspec.DecodeError):
        return None


def _keep(fingerprint: str, found: RunSummary) -> None:
    """Where it cannot be written it is read again the next time."""
    place = _place(fingerprint)
    if place is None:
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(found))
        new.replace(place)
        kept = sorted(place.parent.glob(f"{_PREFIX}*.json"), key=_age)
        for oldest in kept[:-KEPT_SUMMARIES]:
            oldest.unlink(missing_ok=True)
    except OSError:
        return


def _age(path: Path) -> float:
    return path.stat().st_mtime
