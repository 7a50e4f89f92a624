"""A measured run as one file for Perfetto: see `exporters.perfetto`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.exporters.perfetto import RankView, write_perfetto
from fsdpdoctor.quantities import SECOND
from fsdpdoctor.run import Run


def write_run(
    run: Run,
    measures: Measures,
    path: Path,
    *,
    ranks: Collection[int] | None = None,
    left_out: Callable[[int], None] = lambda rank: None,
) -> None:
    """Write some ranks, or all, on the reference rank's clock.

    A rank that cannot be read is told to `left_out`.
    """
    starts = [
        int(
            measures.alignment.clocks[rank.rank].to_reference(rank.steps.start_ns).min()
        )
        for rank in measures.ranks
        if len(rank.steps)
    ]
    write_perfetto(
        _views(run, measures, ranks, left_out),
        path,
        made_from=f"a {run.header.source} run",
        base_ns=min(starts, default=0) // SECOND * SECOND,
    )


def _views(
    run: Run,
    measures: Measures,
    ranks: Collection[int] | None,
    left_out: Callable[[int], None],
) -> Iterator[RankView]:
    """Ranks one at a time: a run may be larger than memory."""
    measured = {rank.rank: rank for rank in measures.ranks}
    for source in run.sources:
        if ranks is not None and source.rank not in ranks:
            continue
        if source.rank not in measured:
            left_out(source.rank)
            continue
        yield RankView(
            data=source.load(),
            stalls=measured[source.rank].stalls,
            causes=measures.causes[source.rank],
            to_shared=measures.alignment.clocks[source.rank].to_reference,
        )
