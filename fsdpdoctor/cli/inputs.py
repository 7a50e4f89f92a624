"""Opens what the user's PATHs name, and measures it with progress on stderr."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from fsdpdoctor.analysis.dask_executor import cluster_executor
from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.errors import FsdpDoctorError, InputError, UsageError
from fsdpdoctor.importers import ImportOptions, import_run
from fsdpdoctor.importers.reader.trace_cache import default_folder
from fsdpdoctor.quantities import MIB, count, parse_size
from fsdpdoctor.run import RankSource, Run, is_run_folder, open_run
from fsdpdoctor.storage.remote_path import RemotePath, path_of

RUNS_FOLDER = Path("fsdpdoctor-runs")
"""Where `fsdpdoctor run` puts runs, and `latest` beside them."""

WORTH_A_PROCESS = 24 * MIB
"""A worker's start costs half a second of processor time (0.48 s, imports), in which
one process reads and measures about this much JSON (a trace of 216,000 events, 3 MB
compressed, took 0.8 s)."""

GZIP_RATIO = 16
"""Bytes of a trace's JSON in one of its .gz, roughly."""

WORTH_A_BAR = 4 * MIB
"""Less is read before a bar could be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read what the paths name."""

    jobs: int | None = None  # processes; None: as many as pay
    cache: bool = True  # keep what a trace was parsed into, and use what was kept
    rank_regex: str | None = None  # finds the rank in a trace's file name
    scheduler: str | None = None  # of a dask cluster, which reads in place of processes


def open_paths(paths: Sequence[Path], how: ReadOptions) -> Run:
    """The run that some paths name: its folders, `latest`, or files of traces."""
    found = [_folder(path) for path in paths]
    if how.scheduler is not None:
        found = [path.absolute() for path in found]  # workers run elsewhere
    strangers = [path for path in found if not is_run_folder(path)]
    if not strangers:
        return open_run(*found)
    if len(strangers) < len(found):
        raise UsageError(f"{strangers[0]} is not a recorded run, the other paths are")
    inside = [run for path in found for run in _runs_in(path)]
    if inside:
        return _open_inside(found[0], inside)
    # Whether a remote file has changed since is not known.
    remote = any(isinstance(path, RemotePath) for path in found)
    cache = default_folder() if how.cache and not remote else None
    options = ImportOptions(rank_regex=how.rank_regex, cache_folder=cache)
    return import_run(found, options)


def _folder(path: Path) -> Path:
    """A path as the run's folder: `latest` and a run's own run.json are understood."""
    if path == Path("latest") and not path.exists():
        return RUNS_FOLDER / "latest"
    return path.parent if path.name == "run.json" and path.is_file() else path


def _runs_in(path: Path) -> list[Path]:
    if isinstance(path, RemotePath):
        return [found.parent for found in (path / "*" / "run.json").matching()]
    if not path.is_dir():
        return []
    return sorted(
        child
        for child in path.iterdir()
        if is_run_folder(child) and not child.is_symlink()
    )


def _open_inside(parent: Path, runs: Sequence[Path]) -> Run:
    """Folders of one run below one folder, as the nodes of a job leave them."""
    if len({open_run(run).header.run_id for run in runs}) == 1:
        return open_run(*runs)
    newest = max(runs, key=lambda run: (run / "run.json").stat().st_mtime)
    raise InputError(
        f"{parent} holds {len(runs)} runs; give one of them, for example {newest}"
    )


def measure_paths(paths: Sequence[Path], how: ReadOptions) -> Measures:
    """Open and measure."""
    return measure_run(open_paths(paths, how), how)


def measure_run(run: Run, how: ReadOptions) -> Measures:
    """Measure an open run, in processes where that is worth it or asked for."""
    sizes = {source.rank: _size(source) for source in run.sources}
    size = sum(sizes.values())
    with _workers(run, how, size) as executor, _progress(size) as bar:
        # One file's progress is not known before its end: then the bar only moves.
        total = size if len(sizes) > 1 else None
        task = bar.add_task(f"reading {count(len(sizes), 'rank')}", total=total)

        def advance(rank: int) -> None:
            bar.advance(task, sizes[rank])

        try:
            return measure(run, executor, advance)
        except BrokenProcessPool:
            raise FsdpDoctorError(
                "a worker process died, probably out of memory: use fewer --jobs"
            ) from None


def _size(source: RankSource) -> int:
    """The bytes of a rank's file, 0 where it has none to look at."""
    path = path_of(source.where)
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def _workers(run: Run, how: ReadOptions, size: int) -> Iterator[Executor | None]:
    """Processes over ranks, or a cluster's; None where this one is enough."""
    if how.scheduler is not None:
        with cluster_executor(how.scheduler) as executor:
            yield executor
        return
    packed = any(source.where.endswith(".gz") for source in run.sources)
    json_size = size * GZIP_RATIO if packed else size
    worth = min(len(os.sched_getaffinity(0)), json_size // WORTH_A_PROCESS)
    processes = min(how.jobs or worth, len(run.sources))
    if processes <= 1:
        yield None
        return
    with ProcessPoolExecutor(
        processes, mp_context=get_context("forkserver")
    ) as processes_over_ranks:
        yield processes_over_ranks


def _progress(size: int) -> Progress:
    """A bar on stderr, only where somebody looks and there is something to wait for."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal or size < WORTH_A_BAR,
    )


def byte_size(text: str) -> int:
    """The value of an option that takes a size."""
    size = parse_size(text)
    if size is None:
        raise click.BadParameter(f"{text!r} is no size; expected for example 80GiB")
    return size
