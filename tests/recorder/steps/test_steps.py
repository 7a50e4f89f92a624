"""Steps follow each other without a gap, and say what the host did in them."""

from __future__ import annotations

from collections import Counter

import pytest

from fsdpdoctor.recorder.steps.steps import OWN_OPTIMIZER
from fsdpdoctor.schema import COUNTER_EXCEPTIONS, UNKNOWN, Flag, Kind, Phase
from tests.recorder.conftest import Recorded
from tests.recorder.fsdp2.test_fsdp2 import count

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    "scenario", ["block", "evaluate", "two_optimizers", "optimizer_in_backward", "ddp"]
)
def test_a_step_begins_where_the_last_one_ended(two: Recorded, scenario: str) -> None:
    """No time is lost between steps, and none is counted twice."""
    steps = two.rank(scenario).steps

    assert [s.step for s in steps] == list(range(len(steps)))
    assert [s.start_ns for s in steps[1:]] == [s.end_ns for s in steps[:-1]]
    assert all(s.duration_ns > 0 for s in steps)


@pytest.mark.parametrize("scenario", ["block", "accumulate", "host_events", "plain"])
def test_spans_lie_in_their_step(two: Recorded, scenario: str) -> None:
    """A span of a step begins and ends within it."""
    for step in two.rank(scenario).steps:
        assert (step.spans.start_ns >= step.start_ns).all()
        assert (step.spans.end_ns <= step.end_ns).all()
        assert (step.memory.time_ns >= step.start_ns).all()
        assert (step.memory.time_ns <= step.end_ns).all()


def test_several_optimizers_make_one_step(two: Recorded) -> None:
    """The step ends with the last of them."""
    for step in two.rank("two_optimizers").steps:
        ends = step.spans.end_ns[step.spans.kind == Kind.OPTIMIZER]
        assert len(ends) == 2
        assert ends.max() <= step.end_ns


def test_optimizers_in_turn_make_one_step(two: Recorded) -> None:
    """A step has both; the critic had two forwards for one backward."""
    steps = two.rank("alternating").steps

    assert [s.complete for s in steps] == [True] * 4
    assert [count(s, Kind.OPTIMIZER) for s in steps] == [2] * 4
    assert [s.micro_batches for s in steps] == [2] * 4
    assert [count(s, Kind.ROOT_FORWARD) for s in steps] == [5] * 4
    assert [count(s, Kind.MICRO_BATCH) for s in steps] == [2] * 4


def test_an_optimizer_s_second_turn_is_the_next_step(two: Recorded) -> None:
    """Three steps of the critic, the third with the generator's, twice."""
    steps = two.rank("several_critics").steps

    assert [count(s, Kind.OPTIMIZER) for s in steps] == [1, 1, 2] * 2
    assert [s.micro_batches for s in steps] == [1, 1, 2] * 2
    assert [count(s, Kind.ROOT_FORWARD) for s in steps] == [3, 3, 5] * 2


def test_a_model_that_never_trains_makes_no_step(two: Recorded) -> None:
    """Its passes are without gradients, and told apart from the trained one's."""
    data = two.rank("teacher")

    for step in data.steps[:4]:
        passes = step.spans.rows(step.spans.kind == Kind.ROOT_FORWARD)
        trees = [data.header.units[unit].tree for unit in passes.unit.tolist()]
        assert (step.micro_batches, len(passes)) == (1, 2)
        assert (passes.flags & Flag.NO_GRAD != 0).tolist() == [True, False]
        assert trees == [0, 1]


def test_an_optimizer_of_the_script_s_own_ends_steps(two: Recorded) -> None:
    """With the backward whose gradients were used, and the record says so."""
    data = two.rank("own_optimizer")

    assert [s.complete for s in data.steps] == [True] * 4
    assert [s.micro_batches for s in data.steps] == [1] * 4
    assert data.header.warnings == (OWN_OPTIMIZER,)


def test_own_steps_of_several_micro_batches(two: Recorded) -> None:
    """Gradients that are added to are of one step, wherever they are zeroed."""
    data = two.rank("own_optimizer_accumulating")

    assert [s.micro_batches for s in data.steps] == [2] * 4
    assert data.header.warnings == (OWN_OPTIMIZER,)


@pytest.mark.parametrize(
    ("scenario", "passes"),
    [
        ("pipeline_all_forwards_first", 4),
        ("pipeline_in_turn", 4),
        ("pipeline_interleaved", 8),
    ],
)
def test_a_pipeline_s_micro_batches_are_its_backwards(
    four: Recorded, scenario: str, passes: int
) -> None:
    """Four on every stage, however its schedule orders them. The pass by which torch
    learns shapes, in the first step, is none.
    """
    for rank in range(4):
        steps = four.rank(scenario, rank).steps
        assert [s.micro_batches for s in steps] == [4] * 4
        assert [count(s, Kind.MICRO_BATCH) for s in steps] == [passes] * 4
        for step in steps:
            forwards = step.spans.rows(step.spans.kind == Kind.FORWARD)
            counted = Counter(forwards.micro_batch.tolist())
            for_shapes = counted.pop(UNKNOWN, 0)
            assert counted == Counter(dict.fromkeys(range(4), 2 * passes // 4))
            assert for_shapes == (2 * passes // 4 if step.step == 0 else 0)


def test_an_optimizer_in_backward_ends_its_step_with_backward(two: Recorded) -> None:
    """Nineteen optimizers step inside one backward: one step, one micro-batch."""
    for step in two.rank("optimizer_in_backward").steps:
        assert count(step, Kind.OPTIMIZER) == 19
        assert step.micro_batches == 1


def test_the_user_says_where_steps_end(two: Recorded) -> None:
    """From the first call on, two optimizer steps are one step."""
    steps = two.rank("user_steps").steps

    assert [s.micro_batches for s in steps] == [1, 1, 2, 2]
    assert [count(s, Kind.OPTIMIZER) for s in steps] == [1, 1, 2, 2]


def test_sees_the_host_s_own_work(two: Recorded) -> None:
    """Loading before the step's forward; clipping; the checkpoint after the step."""
    steps = two.rank("host_events").steps

    assert [count(s, Kind.INPUT) for s in steps] == [1, 1, 1, 1]
    assert [count(s, Kind.CLIP, Phase.OPTIMIZER) for s in steps] == [1, 1, 1, 0]
    assert [count(s, Kind.CHECKPOINT_SAVE) for s in steps] == [0, 1, 1, 1]
    full = steps[1].spans.rows(steps[1].spans.kind == Kind.GC)
    assert 2 in full.value


def test_counts_micro_batches_and_inputs(two: Recorded) -> None:
    """Four of them, three samples of four tokens each."""
    (first, second) = two.rank("accumulate").steps

    assert (second.micro_batches, second.tokens, second.samples) == (4, 48, 12)
    assert sorted(set(first.spans.micro_batch.tolist())) == [UNKNOWN, 0, 1, 2, 3]


def test_counts_exceptions(two: Recorded) -> None:
    """One forward raised, whatever was open in it."""
    data = two.rank("exception")
    found = [
        int(value)
        for step in data.steps
        for name, value in zip(step.counters.name, step.counters.value, strict=True)
        if data.name(int(name)) == COUNTER_EXCEPTIONS
    ]

    assert found == [1]


def test_says_what_recording_cost(two: Recorded) -> None:
    """Each step has a cost, and it is less than the step."""
    for step in two.rank("block").steps:
        assert 0 < step.recorder_ns < step.duration_ns
