"""Passes are given their micro-batches when the step is over."""

from __future__ import annotations

import pytest
import torch

from fsdpdoctor.recorder.steps.micro_batches import (
    NO_INPUTS,
    Inputs,
    MicroBatches,
    inputs_of,
    length_of,
)

A, B = 1, 2
"""Two trees."""


def ran(*passes: str) -> MicroBatches:
    """Passes as words: "A" is a forward of tree A, "a" one of a part of it, "bA" a
    backward, "bAB" of both.
    """
    batches = MicroBatches()
    for at, word in enumerate(passes):
        if word[0] != "b":
            root = {"A": A, "B": B}[word.upper()]
            batches.forward(root, at, NO_INPUTS, part=word.islower())
            continue
        for tree in word[1:]:
            batches.backward({"A": A, "B": B}[tree], at)
        batches.backward_ended(at, aborted=False)
    return batches


@pytest.mark.parametrize(
    ("passes", "found"),
    [
        (["A", "bA"], [0, 0]),
        (["A", "bA", "A", "bA"], [0, 0, 1, 1]),
        # Several forwards before one backward: a preference loss.
        (["A", "A", "bA"], [0, 0, 0]),
        (["A", "A", "bA", "A", "A", "bA"], [0, 0, 0, 1, 1, 1]),
        # Pipelines: all forwards first, and in turn after a start.
        (["A", "A", "bA", "bA"], [0, 1, 0, 1]),
        (["A", "A", "bA", "A", "bA", "bA"], [0, 1, 0, 2, 1, 2]),
        # Two parts of a model on one rank.
        (
            ["A", "A", "B", "bB", "B", "bA", "bB", "bA"],
            [0, 1, 0, 0, 1, 0, 1, 1],
        ),
        # A loss in chunks before the model's own backward; two losses of one forward.
        (["A", "bA", "bA", "A", "bA", "bA"], [0, 0, 0, 1, 1, 1]),
        (["A", "B", "bA", "bAB"], [0, 0, 0, 0]),
        (["A", "bA", "a", "bA", "bA"] * 2, [0] * 5 + [1] * 5),
        # A part called before its root.
        (["a", "A", "bA"] * 2, [0, 0, 0, 1, 1, 1]),
        # Two models, one after the other, and one through the other.
        (["A", "bA", "B", "bB"], [0, 0, 0, 0]),
        (["A", "B", "A", "bA", "B", "A", "bAB"], [0, 0, 0, 0, 1, 1, 1]),
    ],
)
def test_of_each_pass(passes: list[str], found: list[int]) -> None:
    """By the backwards of the pass's own tree."""
    batches = ran(*passes)
    batches.settle()

    assert [batches.of_pass()[at] for at in range(len(passes))] == found
    assert batches.count == max(found) + 1


def test_markers_reach_from_forward_to_backward() -> None:
    """Of all forwards first: the first micro-batch ends before the second."""
    markers = ran("A", "A", "bA", "bA").settle()

    assert [(m.number, m.start_ns, m.end_ns) for m in markers] == [(2, 0, 2), (3, 1, 3)]


def test_goes_on_over_a_boundary_within_the_step() -> None:
    """A second optimizer's passes are counted on."""
    batches = ran("A", "bA")
    batches.settle()
    batches.forward(A, 5, NO_INPUTS)
    batches.backward(A, 6)
    batches.backward_ended(7, aborted=False)
    batches.settle()

    assert batches.of_pass() == {0: 0, 1: 0, 2: 1, 3: 1}
    assert batches.count == 2


def test_what_follows_the_boundary_is_the_next_step_s() -> None:
    """A step that turns out late to have ended leaves its successor's passes alone."""
    batches = ran("A", "bA")
    batches.settle()
    batches.forward(A, 5, NO_INPUTS)
    batches.step_ended()
    batches.backward(A, 6)
    batches.backward_ended(7, aborted=False)
    batches.settle()

    assert batches.count == 1
    assert [batches.of_pass()[at] for at in (2, 3)] == [0, 0]


def test_a_backward_that_came_to_no_tree_is_its_forward_s() -> None:
    """As without FSDP2, or between recorded steps."""
    batches = MicroBatches()
    batches.forward(A, 0, NO_INPUTS)
    assert batches.waiting()
    batches.backward_ended(1, aborted=False)
    assert not batches.waiting()
    batches.settle()

    assert batches.of_pass() == {0: 0, 1: 0}


def test_a_forward_alone_is_a_micro_batch() -> None:
    """Its optimizer stepped all the same."""
    batches = ran("A")
    batches.settle()

    assert (batches.count, batches.of_pass()) == (1, {0: 0})


def test_inputs_are_counted_once_for_each_micro_batch() -> None:
    """Two forwards of one loss read one batch."""
    batches = MicroBatches()
    tokens = torch.zeros(3, 4, dtype=torch.int64)
    for _ in range(2):
        batches.forward(A, 0, inputs_of((), {"input_ids": tokens}))
    batches.backward(A, 1)
    batches.backward_ended(2, aborted=False)
    batches.settle()

    assert batches.inputs == Inputs(tokens=12, samples=3)


def test_samples_are_rows_and_tokens_whole_numbers() -> None:
    """Of an image there are no tokens; of nothing there is neither."""
    assert inputs_of((torch.zeros(5, 3, 2, 2),), {}) == Inputs(samples=5)
    assert inputs_of(("a",), {}) == NO_INPUTS


class Refusing(torch.Tensor):
    """A tensor of a script's class, which raises where it is looked at."""

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """Not to be had."""
        raise RuntimeError("no shape")

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """Nor this."""
        raise RuntimeError("no dtype")

    def dim(self) -> int:
        """Nor this."""
        raise RuntimeError("no dim")

    numel = size = dim  # type: ignore[assignment]


def test_a_tensor_is_not_asked_in_its_own_way() -> None:
    """Its class may be the script's, and refuse."""
    words = torch.zeros(4, 7, dtype=torch.int64).as_subclass(Refusing)
    assert inputs_of((words,), {}) == Inputs(tokens=28, samples=4)
    assert length_of((words,), {}) == 7
