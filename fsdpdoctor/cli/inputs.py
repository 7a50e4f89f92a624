"""Options that say what to read and how, and the progress on stderr meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.open_paths import ReadOptions, rank_workers, source_bytes
from fsdpdoctor.quantities import MIB, count, parse_size
from fsdpdoctor.run import RankSource, Run

if TYPE_CHECKING:
    from concurrent.futures import Executor

USUALLY_PACKED = 16
"""Times that a trace's text is larger than its file."""

WORTH_A_BAR = 4 * MIB
"""Less is read before a bar could be looked at."""

scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Read ranks with the workers of this dask cluster: tcp://host:8786.",
)
jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes to read ranks with. Default: one per core where it pays.",
)
rank_regex_option = click.option(
    "--rank-regex",
    metavar="REGEX",
    help="Finds the rank in the traces' file names, where they do not say it.",
)


def byte_size(text: str) -> int:
    """The value of an option that takes a size."""
    size = parse_size(text)
    if size is None:
        raise click.BadParameter(f"{text!r} is no size; expected for example 80GiB")
    return size


def measure_run(run: Run, how: ReadOptions) -> Measures:
    """Measure an open run, in processes where that is worth it or asked for.

    It takes no path: what is said of a run in progress is all of one opening.
    """
    sizes = {source.rank: _text_bytes(source) for source in run.sources}
    with rank_workers(run, how) as executor:
        # A bar only where somebody looks and there is something to wait for.
        if not sys.stderr.isatty() or sum(sizes.values()) < WORTH_A_BAR:
            return measure(run, executor)
        return _measure_with_bar(run, executor, sizes)


def _measure_with_bar(
    run: Run, executor: Executor | None, sizes: Mapping[int, int]
) -> Measures:
    """The same with a bar on stderr. `sizes`: bytes of each rank."""
    # Imported where it is shown: most calls are in scripts, and imports are half of
    # what a small trace takes.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        # One file's progress is not known before its end: then the bar only moves.
        total = sum(sizes.values()) if len(sizes) > 1 else None
        task = bar.add_task(f"reading {count(len(sizes), 'rank')}", total=total)

        def advance(rank: int) -> None:
            bar.advance(task, sizes[rank])

        return measure(run, executor, advance)


def _text_bytes(source: RankSource) -> int:
    """What there is to go through: a packed file unpacks to some times its size."""
    packed = Path(source.where).suffix == ".gz"
    return source_bytes(source) * (USUALLY_PACKED if packed else 1)
