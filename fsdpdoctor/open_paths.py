"""Paths become a Run: recorded folders, `latest`, traces, folders that hold runs.

CLI, dashboard and `fsdpdoctor.open` stand on this. It is not called `open`: importing
a module of that name would put it in the place of the function `fsdpdoctor.open`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpdoctor.errors import FsdpDoctorError, InputError, UsageError
from fsdpdoctor.quantities import MIB
from fsdpdoctor.run import RUN, RankSource, Run, is_run_folder, open_run
from fsdpdoctor.storage.remote_path import RemotePath, path_of
from fsdpdoctor.storage.runs_place import LATEST, RUNS

if TYPE_CHECKING:
    from concurrent.futures import Executor

PROCESS_START_S = 0.5
"""Of a processor, until a worker has imported what it needs (0.48 s)."""

PACKED_PER_SECOND = 3 * MIB
JSON_PER_SECOND = 50 * MIB
RECORD_PER_SECOND = 11 * MIB
"""What one process reads and measures: a trace of 216,000 events, 3 MB packed and 16
times that as JSON, took 0.8 s; a record of 22 MiB took 1.6 to 2.2 s, 87 MB took 8 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read what the paths name."""

    jobs: int | None = None  # processes; None: as many as pay
    cache: bool = True  # keep what a trace was parsed into, and use what was kept
    rank_regex: str | None = None  # finds the rank in a trace's file name
    scheduler: str | None = None  # of a dask cluster, which reads in place of processes


DEFAULT = ReadOptions()


def open_paths(
    paths: Sequence[str | os.PathLike[str]], how: ReadOptions = DEFAULT
) -> Run:
    """The run that some paths name: its folders, `latest`, or files of traces.

    Nothing of its ranks is loaded yet. Raises InputError where there is no run or more
    than one, UsageError where recorded folders and traces are mixed.
    """
    given = [run_path(path_of(path)) for path in paths]
    if how.scheduler is not None:
        given = [path.absolute() for path in given]  # workers run elsewhere
    strangers = [path for path in given if not is_run_folder(path)]
    if not strangers:
        return open_run(*given)
    if len(strangers) < len(given):
        raise UsageError(f"{strangers[0]} is not a recorded run, the other paths are")
    below = [run for path in given for run in _run_folders_in(path)]
    if below:
        return _open_nodes(given[0], below)
    for path in given:
        _refuse_begun(path)
    # A recorded run needs none of these, which are a tenth of what it costs to read.
    from fsdpdoctor.importers import ImportOptions, import_run
    from fsdpdoctor.importers.reader.trace_cache import default_folder

    # Whether a remote file has changed since is not known.
    remote = any(isinstance(path, RemotePath) for path in given)
    cache = default_folder() if how.cache and not remote else None
    options = ImportOptions(rank_regex=how.rank_regex, cache_folder=cache)
    return import_run(given, options)


SNAPSHOT_SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
"""What memory snapshots are called. In a folder only files of such names are looked at;
of a path that names a file, its content counts."""


def snapshot_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The CUDA memory snapshots that paths name; empty where they name none.

    A folder is one of snapshots where it holds no traces. Raises UsageError where
    snapshots and other things are mixed.
    """
    given = [path_of(path) for path in paths]
    inside = {path: _pickles_in(path) for path in given}
    if not any(inside.values()):
        return []  # the importers are a tenth of what a recorded run costs to read
    from fsdpdoctor.importers.file_kind import FileKind, sniff

    found: list[Path] = []
    others: list[Path] = []
    for path, files in inside.items():
        mine = [file for file in files if sniff(file) is FileKind.MEMORY_SNAPSHOT]
        found += mine
        others += [] if mine else [path]
    if found and others:
        raise UsageError(
            f"{found[0]} is a CUDA memory snapshot, {others[0]} is not: analyze them "
            "apart"
        )
    return found


def _pickles_in(path: Path) -> list[Path]:
    """A file itself; of a folder that holds neither a run nor traces, its pickles."""
    if path.is_file():
        return [path]
    if not path.is_dir() or is_run_folder(path):
        return []
    files = sorted(path.iterdir())
    if any(file.name.lower().endswith((".json", ".json.gz")) for file in files):
        return []
    return [
        file
        for file in files
        if file.is_file() and file.name.lower().endswith(SNAPSHOT_SUFFIXES)
    ]


def run_path(path: Path) -> Path:
    """A path as the run's folder: `latest` and a run's own run.json are understood."""
    if path == Path(LATEST) and not path.exists():
        return RUNS / LATEST
    return path.parent if path.name == RUN and path.is_file() else path


def runs_at(path: Path) -> list[Path]:
    """What can be opened at a path: each of several runs in a folder, or the path.

    Raises InputError where there is nothing.
    """
    if not path.exists():
        raise InputError(
            f"{path} does not exist: expected the folder of a run, or of several"
        )
    if not is_run_folder(path):
        below = _run_folders_in(path)
        if below and not _is_one_run(below):
            return below
    return [path]


def files_at(path: Path) -> list[Path]:
    """The files that a run is read from; a job's folder holds one folder per node, and
    traces may lie in folders of any depth.
    """
    if not path.is_dir():
        return [path]
    if not is_run_folder(path) and not _run_folders_in(path):
        return [file for file in path.rglob("*") if file.is_file()]
    inside = [child for child in path.iterdir() if not child.name.startswith(".")]
    nodes = [node for node in inside if is_run_folder(node)]
    files = [file for node in nodes for file in node.iterdir()]
    return [file for file in (*inside, *files) if file.is_file()]


def _refuse_begun(path: Path) -> None:
    """Where torchrun's ranks agree on a run's folder there is a note of it, and nothing
    else where no rank then recorded anything.
    """
    if isinstance(path, RemotePath) or not path.is_dir():
        return
    names = [child.name for child in path.iterdir()]
    if names and all(_JOB_NOTE.fullmatch(name) for name in names):
        raise InputError(
            f"{path} is where a job began to be recorded, and holds no rank's record: "
            "expected ranks to train in the processes that fsdpdoctor started, and not "
            "in what os.exec, for one, puts in their place"
        )


_JOB_NOTE = re.compile(r"\.job-\w+\.json")


def _run_folders_in(path: Path) -> list[Path]:
    if isinstance(path, RemotePath):
        return [found.parent for found in (path / "*" / RUN).matching()]
    if not path.is_dir():
        return []
    return sorted(
        child
        for child in path.iterdir()
        if is_run_folder(child) and not child.is_symlink()
    )


def _is_one_run(folders: Sequence[Path]) -> bool:
    """Whether they are what the nodes of one job left, a folder each.

    What cannot be read says nothing of it: one damaged run hides no others.
    """
    ids = []
    for folder in folders:
        with suppress(FsdpDoctorError):
            ids.append(open_run(folder).header.run_id)
    return len(set(ids)) == 1 and (len(ids) > 1 or len(folders) == 1)


def _open_nodes(parent: Path, folders: Sequence[Path]) -> Run:
    if len(folders) == 1 or _is_one_run(folders):
        return open_run(*folders)
    newest = max(folders, key=_written)
    raise InputError(
        f"{parent} holds {len(folders)} runs; give one of them, for example {newest}"
    )


def _written(folder: Path) -> float:
    header = folder / RUN  # another file of it may change whenever it is looked at
    return (header if header.exists() else folder).stat().st_mtime


def source_bytes(source: RankSource) -> int:
    """The bytes of a rank's file, 0 where it has none to look at."""
    path = path_of(source.where)
    return path.stat().st_size if path.is_file() else 0


def _measuring_s(source: RankSource) -> float:
    speeds = {".gz": PACKED_PER_SECOND, ".arrows": RECORD_PER_SECOND}
    suffix = Path(source.where).suffix
    return source_bytes(source) / speeds.get(suffix, JSON_PER_SECOND)


def processes_that_pay(run: Run, cores: int) -> int:
    """How many processes over its ranks take less time than they need to start."""
    seconds = sum(_measuring_s(source) for source in run.sources)
    return min(cores, len(run.sources), int(seconds / PROCESS_START_S))


def cores_here() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def rank_workers(run: Run, how: ReadOptions) -> Iterator[Executor | None]:
    """Who measures ranks: processes, or a cluster; None where this process is enough.

    Raises FsdpDoctorError where one of them dies.
    """
    if how.scheduler is not None:
        from fsdpdoctor.analysis.dask_executor import cluster_executor

        with cluster_executor(how.scheduler) as executor:
            yield executor
        return
    wanted = how.jobs or processes_that_pay(run, cores_here())
    processes = min(wanted, len(run.sources))
    if processes <= 1:
        yield None
        return
    with rank_processes(processes, hint=": use fewer --jobs") as executor:
        yield executor


@contextmanager
def rank_processes(
    count: int,
    start: Callable[[], object] | None = None,
    hint: str = "",
) -> Iterator[Executor]:
    """Processes that read ranks, each begun with `start`; nobody waits for their end.

    Raises FsdpDoctorError where one of them dies.
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    executor = ProcessPoolExecutor(
        count,
        # Forked from a clean process: this one may have threads, which hold locks.
        mp_context=get_context("forkserver"),
        initializer=start,
    )
    try:
        yield executor
    except BrokenProcessPool:
        raise FsdpDoctorError(
            f"a process that read the run died, probably out of memory{hint}"
        ) from None
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
