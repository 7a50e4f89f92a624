"""Ranks that did not end are said first, alike ones once, and of which model."""

from __future__ import annotations

from fsdpdoctor.renderers import RENDERERS
from fsdpdoctor.renderers.reading.stopped_words import stopped_lines
from fsdpdoctor.renderers.report_view import content_of
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.report.value import StoppedRank
from fsdpdoctor.schema import ModelSpec
from fsdpdoctor.storage.json_value import replace
from fsdpdoctor.testing import draw, measured, unit

PICTURE = """
    micro_batch  0000000000
    all_gather   0.........
    forward      .00.......
    backward     ...00.....
    forward      .....11...
    optimizer    .........x
"""


def report_with(*stopped: StoppedRank) -> Report:
    """An actor and a critic, whose units have the same names, and who stopped."""
    units = (unit("layers.1"), unit("layers.1 [tree=1]", tree=1, model=1))
    spec = ModelSpec(wrapper="fsdp2", models=("Actor", "Critic"))
    report = report_of(measured(draw(PICTURE, units=units, model=spec)))
    return replace(report, health=replace(report.health, stopped=stopped))


def test_a_unit_of_several_models_is_said_with_its_own() -> None:
    """And not by the number of its tree."""
    one = StoppedRank(rank=1, ended="running", step=7, unit="layers.1 [tree=1]")
    other = StoppedRank(rank=2, ended="running", step=7, unit="layers.1", doing="sync")

    seen = "did not end (killed, or still running); last seen in step 7"
    assert [*stopped_lines(report_with(one, other))] == [
        f"rank 1 {seen}: in layers.1 of Critic",
        f"rank 2 {seen}: sync of layers.1 of Actor",
    ]


def test_a_stopped_rank_stands_at_the_top() -> None:
    """Which rank, where, and in which collective: before any figure's details."""
    stopped = StoppedRank(
        rank=1,
        ended="running",
        step=7,
        micro_batch=2,
        unit="layers.1",
        phase="backward",
        doing="all-gather",
        group="shard",
        seq=41,
    )
    report = report_with(stopped)

    assert content_of(report).alerts == (
        (
            "rank 1 did not end (killed, or still running); last seen in step 7, "
            "micro-batch 2: all-gather of layers.1 of Actor, backward, "
            "collective 41 of group shard"
        ),
    )
    lines = RENDERERS["text"](report).splitlines()
    assert lines[4].startswith("! rank 1 did not end")


def test_ranks_that_stopped_alike_are_one_line() -> None:
    """A thousand ranks that wait for one do not hide that one."""
    rows = [
        StoppedRank(
            rank=rank,
            ended="running",
            step=7,
            micro_batch=None,
            unit="layers.1",
            phase="forward",
            doing="all-gather" if rank != 40 else "forward",
            group=None,
            seq=None,
        )
        for rank in range(1000)
    ]
    seen = "did not end (killed, or still running); last seen in step 7"
    assert content_of(report_with(*rows)).alerts == (
        f"ranks 0-39, 41-999 {seen}: all-gather of layers.1 of Actor, forward",
        f"rank 40 {seen}: forward of layers.1 of Actor",
    )
