"""The peak is split by what for, at the first moment of it: bytes counted by hand."""

from __future__ import annotations

from dataclasses import replace

from fsdpdoctor.schema import UNKNOWN, Phase
from fsdpdoctor.simulate.engine.memory import Peak, peak_of
from fsdpdoctor.simulate.engine.opcodes import Held
from fsdpdoctor.simulate.engine.schedule import program
from fsdpdoctor.simulate.engine.step import Checkpoint, Node, Segment, Step
from tests.simulate.steps import checkpointed, step


def peak(one: Step) -> Peak:
    """Without the kinds of which nothing is held."""
    found = peak_of(one)
    return replace(found, held={k: n for k, n in found.held.items() if n})


def allocating(base: Step, at: int, forward: int = 0, backward: int = 0) -> Step:
    """A step one of whose segments needs memory of its own."""
    segments = list(base.segments)
    segments[at] = replace(
        segments[at], other_forward_bytes=forward, other_backward_bytes=backward
    )
    return replace(base, segments=tuple(segments))


def test_the_peak_of_a_root_and_a_layer() -> None:
    """As the root's first segment runs backward: its parameters and all its gradients,
    the layer's gradient, and what the layer reduced, which is not given back yet.
    """
    assert peak(step(1, resident_bytes=1000)) == Peak(
        bytes=1000 + 4160 + 4160 + 2048 + 256,
        held={
            Held.GATHERED: 4160,
            Held.GRADS: 4160,
            Held.REDUCE_INPUT: 2048,
            Held.SHARDED_GRADS: 256,
        },
        other_bytes=0,
        unit=0,
        segment=0,
        phase=Phase.BACKWARD,
    )


def test_the_peak_inside_a_forward() -> None:
    """The gathers' output of the layer is kept until the next copy-out."""
    one = allocating(step(1, resident_bytes=1000), 1, forward=9000)

    assert peak(one) == Peak(
        bytes=1000 + 4160 + 2048 + 2048 + 9000,
        held={Held.GATHERED: 4160 + 2048, Held.GATHER_OUTPUT: 2048},
        other_bytes=9000,
        unit=1,
        segment=1,
        phase=Phase.FORWARD,
    )


def test_the_peak_inside_a_backward() -> None:
    """Of the root's gradients there is the half that was made after the layer."""
    one = allocating(step(1), 1, backward=9000)

    assert peak(one) == Peak(
        bytes=4160 + 2048 + 2080 + 2048 + 9000,
        held={Held.GATHERED: 4160 + 2048, Held.GRADS: 2080 + 2048},
        other_bytes=9000,
        unit=1,
        segment=1,
        phase=Phase.BACKWARD,
    )


def test_what_is_recomputed_allocates_as_its_forward_does() -> None:
    """Beside the half of the root's gradients, which there were none of in forward."""
    one = checkpointed(step(1), Checkpoint.NON_REENTRANT)
    found = peak(allocating(one, 1, forward=9000, backward=1))

    assert found == Peak(
        bytes=4160 + 2048 + 2080 + 9000,
        held={Held.GATHERED: 4160 + 2048, Held.GRADS: 2080},
        other_bytes=9000,
        unit=1,
        segment=1,
        phase=Phase.BACKWARD,
    )


def test_the_first_of_equal_peaks_is_said() -> None:
    """Two layers alike, in forward."""
    one = allocating(allocating(step(2), 1, forward=9000), 2, forward=9000)

    assert (peak(one).unit, peak(one).segment) == (1, 1)
    assert peak(one).bytes == 4160 + 2048 + 2048 + 9000


def test_compute_of_no_segment_allocates_nothing() -> None:
    """The loss: then both units are there, which the last segment of the list, that
    the forward begins with, is computed without.
    """
    base = step(1, loss_ns=1)
    root, layer = base.units
    one = replace(
        allocating(base, 2, forward=9000),
        units=(
            replace(root, unshard_async_op=True),
            replace(layer, reshard_after_forward=False),
        ),
        root=Node(units=(0,), items=(2, base.root.items[1], 0)),
    )
    assert peak(one).bytes == program(one).peak_bytes == 4160 + 9000
    assert (peak(one).segment, peak(one).phase) == (2, Phase.FORWARD)


def test_where_nothing_is_taken_the_peak_is_what_is_resident() -> None:
    """At no moment."""
    one = replace(
        step(1, resident_bytes=1000),
        units=(),
        segments=(Segment(forward_ns=1, backward_ns=1),),
        root=Node(units=(), items=(0,)),
    )
    assert peak_of(one) == Peak(
        bytes=1000,
        held={},
        other_bytes=0,
        unit=UNKNOWN,
        segment=UNKNOWN,
        phase=Phase.OTHER,
    )


def test_the_peak_is_that_of_the_program() -> None:
    """To the byte; what is held, what is resident and what a segment allocates."""
    one = step(3, resident_bytes=1000)
    found = peak_of(one)

    assert found.bytes == program(one).peak_bytes
    assert found.bytes == 1000 + sum(found.held.values()) + found.other_bytes
