"""Where steps end of which only gradients tell."""

from __future__ import annotations

import torch
from torch import nn

from fsdpdoctor.recorder.steps.own_steps import WAITED_FOR, End, OwnSteps
from fsdpdoctor.recorder.steps.step_bounds import Moment
from fsdpdoctor.recorder.storage.recording import BufferPosition


class Training:
    """One parameter, moved by hand after each backward."""

    def __init__(self) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        self.own = OwnSteps()

    def backward(self, at: int) -> None:
        """The nth pass has ended."""
        self.model(torch.ones(1, 1)).sum().backward()
        self.own.remember(self.model.parameters())
        self.own.may_end(end(at))

    def move(self) -> None:
        """By hand."""
        with torch.no_grad():
            self.model.weight.sub_(0.1)
        self.model.weight.grad = None


def end(at: int) -> End:
    """After the nth pass."""
    moment = Moment(host_ns=at, tick=at)
    return End(moment, BufferPosition(at, 0, 0), at)


def test_every_use_may_have_ended_a_step() -> None:
    """Gradients that were not used did not; where no optimizer comes, the rest did."""
    training = Training()
    for at in range(4):
        training.backward(at)
        if at != 1:
            training.move()
        assert training.own.used(training.model.parameters()) is (at != 1)

    assert not training.own.sure
    assert training.own.settle() == [end(0), end(2), end(3)]
    assert training.own.sure


def test_an_optimizer_s_step_takes_them_all() -> None:
    """What was moved before it belongs to its step."""
    training = Training()
    training.backward(0)
    training.move()
    assert training.own.used(training.model.parameters())
    training.own.stepped()

    assert training.own.settle() == []


def test_waiting_has_an_end() -> None:
    """After so many uses nobody is waited for any more."""
    training = Training()
    waited = []
    for at in range(WAITED_FOR):
        training.backward(at)
        training.move()
        training.own.used(training.model.parameters())
        waited.append(training.own.may_wait)

    assert waited == [True] * (WAITED_FOR - 1) + [False]


def test_a_run_that_ends_ends_its_last_step() -> None:
    """Used or not; but one backward alone tells nothing."""
    training = Training()
    training.backward(0)
    assert not training.own.ended(training.model.parameters())
    training.move()
    assert training.own.used(training.model.parameters())
    training.backward(1)

    assert training.own.ended(training.model.parameters())
    assert training.own.settle() == [end(0), end(1)]
