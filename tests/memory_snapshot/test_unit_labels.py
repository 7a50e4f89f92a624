"""Which unit an allocation belongs to, by the ranges around it."""

from __future__ import annotations

from fsdpdoctor.memory_snapshot.snapshot import Annotation
from fsdpdoctor.memory_snapshot.unit_labels import UnitLabels, unit_labels
from fsdpdoctor.schema.memory import Bucket


def labels(picture: str) -> UnitLabels:
    """Ranges that begin (`+name`) and end (`-name`) at 10, 20, ... microseconds."""
    lines = [line.strip() for line in picture.strip().splitlines()]
    return unit_labels(
        [
            Annotation(10 * (at + 1), line[1:], line[0] == "+")
            for at, line in enumerate(lines)
        ]
    )


def units(found: UnitLabels, bucket: Bucket, *times: int) -> list[str | None]:
    """Whose allocations of a bucket are, at some times."""
    return [found.unit_at(time, bucket) for time in times]


def test_what_fsdp2_allocates_is_of_the_innermost_range() -> None:
    """A prefetch lies within another unit's range."""
    found = labels("""
        +FSDP::pre_backward (layers.1)
        +FSDP::backward_prefetch for layers.0
        +FSDP::all_gather (layers.0)
        -FSDP::all_gather (layers.0)
        -FSDP::backward_prefetch for layers.0
        -FSDP::pre_backward (layers.1)
    """)

    assert units(found, Bucket.GATHER_OUTPUTS, 5, 15, 35, 55, 65) == [
        None,
        "layers.1",
        "layers.0",
        "layers.1",
        None,
    ]


def test_activations_are_of_the_forward_that_runs() -> None:
    """Of the innermost: the root's own between its layers."""
    found = labels("""
        +FSDP::pre_forward
        -FSDP::pre_forward
        +FSDP::pre_forward (layers.0)
        -FSDP::pre_forward (layers.0)
        +FSDP::post_forward (layers.0)
        -FSDP::post_forward (layers.0)
        +FSDP::post_forward
        -FSDP::post_forward
    """)

    assert units(found, Bucket.ACTIVATIONS, 15, 25, 45, 65, 85) == [
        None,
        "<root>",
        "layers.0",
        "<root>",
        None,
    ]
    assert units(found, Bucket.OPTIMIZER_STATES, 25, 45) == [None, None]


def test_a_forward_that_opens_for_each_of_its_modules_ends_once() -> None:
    """fully_shard([norm, output]): two pre_forward, one post_forward."""
    found = labels("""
        +FSDP::pre_forward (norm, output)
        -FSDP::pre_forward (norm, output)
        +FSDP::pre_forward (norm, output)
        -FSDP::pre_forward (norm, output)
        +FSDP::post_forward (norm, output)
        -FSDP::post_forward (norm, output)
    """)

    assert units(found, Bucket.ACTIVATIONS, 25, 45, 65) == [
        "norm, output",
        "norm, output",
        None,
    ]


def test_recomputation_does_not_end_the_backward() -> None:
    """A checkpoint runs the unit's forward again within its backward."""
    found = labels("""
        +FSDP::pre_backward (layers.0)
        -FSDP::pre_backward (layers.0)
        +FSDP::pre_forward (layers.0)
        -FSDP::pre_forward (layers.0)
        +FSDP::post_forward (layers.0)
        -FSDP::post_forward (layers.0)
        +FSDP::post_backward_accumulate (layers.0)
        -FSDP::post_backward_accumulate (layers.0)
    """)

    assert units(found, Bucket.BACKWARD, 25, 45, 65, 85) == [
        "layers.0",
        "layers.0",
        "layers.0",
        None,
    ]


def test_other_ranges_say_nothing() -> None:
    """The user's, the optimizer's, and an end without a beginning."""
    found = labels("""
        +Optimizer.step#AdamW.step
        -FSDP::all_gather (a)
        +forward
    """)

    assert units(found, Bucket.GATHER_OUTPUTS, 15, 25, 35) == [None, None, None]
