"""Opens what the user's PATHs name, and measures it with progress on stderr."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fsdpdoctor.errors import FsdpDoctorError, InputError, UsageError
from fsdpdoctor.measures import Measures, measure
from fsdpdoctor.quantities import MIB
from fsdpdoctor.run import Run, is_run_folder, open_run

RUNS_FOLDER = Path("fsdpdoctor-runs")
"""Where `fsdpdoctor run` puts runs, and `latest` beside them."""

WORTH_PROCESSES = 32 * MIB
"""A worker takes about 0.4 s to start (measured, 2 cores), in which one process
reads and measures roughly this much of a record."""


def open_paths(paths: Sequence[Path]) -> Run:
    """The run that some paths name: its folder, its nodes' folders, or `latest`."""
    folders = [_folder(path) for path in paths]
    for path in folders:
        if not path.exists():
            raise InputError(
                f"{path} does not exist; expected the folder of a recorded run"
            )
    strangers = [path for path in folders if not is_run_folder(path)]
    if not strangers:
        return open_run(*folders)
    if len(strangers) < len(folders):
        raise UsageError(f"{strangers[0]} is not a recorded run, the other paths are")
    inside = [run for path in folders for run in _runs_in(path)]
    if inside:
        return _open_inside(folders[0], inside)
    return open_run(*folders)


def _folder(path: Path) -> Path:
    """A path as the run's folder: `latest` and a run's own run.json are understood."""
    if path == Path("latest") and not path.exists():
        return RUNS_FOLDER / "latest"
    return path.parent if path.name == "run.json" and path.is_file() else path


def _runs_in(path: Path) -> list[Path]:
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


def measure_paths(paths: Sequence[Path], jobs: int | None) -> Measures:
    """Open and measure, in processes where that is worth it or asked for."""
    run = open_paths(paths)
    with _workers(run, jobs) as executor, _progress(run) as progress:
        task = progress.add_task("reading ranks", total=len(run.sources))
        try:
            return measure(run, executor, lambda rank: progress.advance(task))
        except BrokenProcessPool:
            raise FsdpDoctorError(
                "a worker process died, probably out of memory: use fewer --jobs"
            ) from None


@contextmanager
def _workers(run: Run, jobs: int | None) -> Iterator[Executor | None]:
    """Processes over ranks; None where this one is enough."""
    count = min(jobs or _worth(run), len(run.sources))
    if count <= 1:
        yield None
        return
    with ProcessPoolExecutor(count, mp_context=get_context("forkserver")) as executor:
        yield executor


def _worth(run: Run) -> int:
    """How many processes pay for their start."""
    size = sum(
        path.stat().st_size
        for path in (Path(source.where) for source in run.sources)
        if path.is_file()
    )
    return max(1, min(len(os.sched_getaffinity(0)), size // WORTH_PROCESSES))


def _progress(run: Run) -> Progress:
    """A bar on stderr, only where somebody looks and there is something to wait for."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal or len(run.sources) < 2,
    )
