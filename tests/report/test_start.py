"""What the time to the first step went to."""

from __future__ import annotations

from fsdpdoctor.renderers.reading.memory_words import start_lines
from fsdpdoctor.report.diagnosis import report_of
from fsdpdoctor.report.start import StartRow
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import RunHeader, StartSpec
from fsdpdoctor.testing import draw, measured
from tests.rig.changed import replace

PICTURE = """
    all_gather   0.1.....
    unsharded    .0000000
    forward      .0.1....
"""
MS = 1_000_000
START = StartSpec(
    process_unix_ns=0,
    total_ns=100 * MS,
    import_ns=40 * MS,
    init_ns=10 * MS,
    mesh_ns=0,
    wrap_ns=5 * MS,
    first_step_ns=25 * MS,
)


def row(*starts: StartSpec | None, source: str = "recorded") -> StartRow | None:
    """Of a job whose ranks began so."""
    ranks: list[RankData] = []
    for at, start in enumerate(starts):
        rank = draw(PICTURE, rank=at, world_size=len(starts))
        ranks.append(replace(rank, header=replace(rank.header, start=start)))
    run = RunHeader(run_id="x", source=source, world_size=len(starts))
    return report_of(replace(measured(*ranks), run=run)).start


def test_parts_add_up_to_the_slowest_rank() -> None:
    """100 ms: 80 are named, and 20 are all else."""
    faster = replace(START, total_ns=90 * MS)

    found = row(faster, START, None)

    assert found == StartRow(
        rank=1,
        total_ns=100 * MS,
        import_ns=40 * MS,
        init_ns=10 * MS,
        mesh_ns=0,
        wrap_ns=5 * MS,
        load_ns=0,
        compile_ns=0,
        first_step_ns=25 * MS,
        other_ns=20 * MS,
    )


def test_a_rehearsal_has_no_start() -> None:
    """Its clock is the modelled host's."""
    assert row(START, source="rehearsal") is None
    assert row(None) is None


def test_words_are_largest_first() -> None:
    """What took nothing is not said."""
    (line,) = start_lines(row(START))

    assert line == (
        "start: 100 ms to the first step's end: imports 40.0 ms, first step 25.0 ms, "
        "else 20.0 ms, process group 10.0 ms, wrap 5.00 ms"
    )
