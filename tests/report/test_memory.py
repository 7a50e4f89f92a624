"""What a report says of the step whose storages were counted."""

from __future__ import annotations

from fsdpdoctor.renderers.reading.memory_words import memory_lines
from fsdpdoctor.report.diagnosis import report_of
from fsdpdoctor.report.memory import MemoryPart, MemoryRow, UnitPeak
from fsdpdoctor.schema import (
    Bucket,
    MemoryShare,
    MemoryStep,
    Phase,
    UnitMemory,
)
from fsdpdoctor.testing import draw, measured
from tests.report.test_memory_peak import PICTURE
from tests.rig.changed import replace

COUNTED = MemoryStep(
    step=1,
    peak_bytes=5 << 20,
    peak_unit=1,
    peak_phase=Phase.BACKWARD,
    peak=(
        MemoryShare(bucket=Bucket.ACTIVATIONS, unit=0, bytes=3 << 20),
        MemoryShare(bucket=Bucket.GATHER_OUTPUTS, bytes=2 << 20),
    ),
    units=(
        UnitMemory(unit=0, forward_peak_bytes=7, backward_peak_bytes=9),
        UnitMemory(unit=1, forward_peak_bytes=8, activation_bytes=4),
    ),
)


def reported(*steps: MemoryStep | None, picture: str = PICTURE) -> MemoryRow | None:
    """Of a job whose ranks counted so."""
    ranks = [draw(picture, rank=at, world_size=len(steps)) for at in range(len(steps))]
    told = [
        replace(rank, header=replace(rank.header, memory=step))
        for rank, step in zip(ranks, steps, strict=True)
    ]
    return report_of(measured(*told)).memory


def test_it_is_of_the_rank_that_held_most() -> None:
    """The second of two; its units are named."""
    smaller = replace(COUNTED, peak_bytes=1 << 20)

    found = reported(smaller, COUNTED, None)

    assert found == MemoryRow(
        step=1,
        rank=1,
        ranks=2,
        peak_bytes=5 << 20,
        peak_unit="layers.1",
        peak_phase="backward",
        parts=(
            MemoryPart(bucket="activations", unit="layers.0", bytes=3 << 20),
            MemoryPart(bucket="gather_outputs", unit=None, bytes=2 << 20),
        ),
        units=(
            UnitPeak(
                unit="layers.0",
                forward_peak_bytes=7,
                backward_peak_bytes=9,
                activation_bytes=None,
            ),
            UnitPeak(
                unit="layers.1",
                forward_peak_bytes=8,
                backward_peak_bytes=None,
                activation_bytes=4,
            ),
        ),
    )


def test_units_have_their_peaks_without_an_allocator() -> None:
    """The larger of both passes, and their activations."""
    rank = draw(PICTURE)
    told = replace(rank, header=replace(rank.header, memory=COUNTED))

    rows = report_of(measured(told)).units

    assert [row.peak_bytes for row in rows] == [9, 8]
    assert [row.activation_bytes for row in rows] == [None, 4]


def test_nothing_is_said_where_nobody_counted() -> None:
    """No row, and no line."""
    assert reported(None) is None
    assert list(memory_lines(None)) == []


def test_words_name_place_and_parts() -> None:
    """In one line."""
    (line,) = memory_lines(reported(COUNTED))

    assert line == (
        "memory: at most 5.00 MiB, in backward of layers.1 (step 1): activations "
        "3.00 MiB, all-gather outputs 2.00 MiB"
    )


def test_a_refusal_is_said_with_its_reason() -> None:
    """And nothing else."""
    found = reported(MemoryStep(step=1, refused="code of torch.compile runs"))

    assert found is not None
    assert found.peak_bytes is None
    assert list(memory_lines(found)) == [
        "memory by unit was not counted: code of torch.compile runs"
    ]


def test_the_counted_step_is_not_judged() -> None:
    """Counting makes it slow; where too few steps are left, it is."""
    slow = replace(COUNTED, step=4)
    for steps, judged in ((5, [3, 5, 6, 7]), (3, [3, 4, 5])):
        rank = draw(PICTURE, steps=steps)
        told = replace(rank, header=replace(rank.header, memory=slow))

        assert measured(told).ranks[0].judged_steps.tolist() == judged
