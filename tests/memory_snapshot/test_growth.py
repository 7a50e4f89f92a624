"""Steps in a history, and what grows over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.memory_snapshot.diagnose_snapshot import diagnose_snapshot
from fsdpdoctor.memory_snapshot.growth import NO_STEPS
from fsdpdoctor.memory_snapshot.snapshot_report import DeviceReport, Growth
from tests.memory_snapshot.drawn_snapshot import LOOP, Drawn, draw_steps


def device(drawn: Drawn, folder: Path) -> DeviceReport:
    """What is said of the one device."""
    found = diagnose_snapshot(drawn.write(folder / "rank0.pickle")).main
    assert found is not None
    return found


@pytest.mark.parametrize("annotated", [True, False])
def test_steps_end_where_the_optimizer_s_do(tmp_path: Path, annotated: bool) -> None:
    """By its ranges, or by its allocations where none were recorded."""
    drawn = Drawn()
    draw_steps(drawn, 5, annotated=annotated)

    found = device(drawn, tmp_path)

    by = (
        "ranges of the optimizer's step"
        if annotated
        else "allocations of the optimizer"
    )
    assert (found.steps, found.steps_by) == (5, by)
    assert found.growth == ()
    assert found.growth_why is None


@pytest.mark.parametrize("annotated", [True, False])
def test_what_is_kept_of_each_step_is_a_leak(tmp_path: Path, annotated: bool) -> None:
    """A list of losses, to the byte; optimizer states grow in the first step alone."""
    drawn = Drawn()
    draw_steps(drawn, 6, annotated=annotated, leak=640)

    assert device(drawn, tmp_path).growth == (
        Growth(
            where="job/train.py:52",
            function="main",
            bucket="other",
            bytes_per_step=640,
            held_bytes=6 * 640,
            steps=5,
        ),
    )


def test_a_cache_that_is_full_is_no_leak(tmp_path: Path) -> None:
    """It grows in two steps, and not in the third."""
    drawn = Drawn()
    draw_steps(drawn, 2)
    drawn.alloc("cache", 5000, LOOP)
    for number in range(3):
        before = len(drawn.events)
        _again(drawn, number)
        assert len(drawn.events) > before

    assert device(drawn, tmp_path).growth == ()


def _again(drawn: Drawn, number: int) -> None:
    """A step of which the first alone keeps something."""
    drawn.begin("Optimizer.step#AdamW.step")
    if number == 0:
        drawn.alloc("kept", 700, LOOP)
    drawn.alloc("passing", 100, LOOP)
    drawn.free("passing")
    drawn.end("Optimizer.step#AdamW.step")


def test_three_steps_are_too_few(tmp_path: Path) -> None:
    """It is said how many there are and have to be."""
    drawn = Drawn()
    draw_steps(drawn, 3, leak=640)

    found = device(drawn, tmp_path)

    assert found.growth is None
    assert found.growth_why == "3 in the history: growth is judged from 4 on"


def test_without_an_optimizer_no_step_can_be_told(tmp_path: Path) -> None:
    """Inference, or a history that ends before the first step."""
    drawn = Drawn()
    drawn.alloc("a", 100, LOOP)

    found = device(drawn, tmp_path)

    assert (found.steps, found.growth, found.growth_why) == (None, None, NO_STEPS)
