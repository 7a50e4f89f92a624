"""What no replay's error shows: kinds of model whose changes were once mispredicted.

Each is recorded on a modelled wire in virtual time, changed as `run --apply` changes
it, and recorded again. `tests.benchmarks.predictions` does so for all of them.
"""

from __future__ import annotations

import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.simulate.plans.predict import MIN_ERROR
from tests.simulate.tried import GROUNDS, HOST, plans, tried

pytestmark = pytest.mark.slow

EXACT = 0.002
"""Of the step: some ticks of the virtual clock."""

KNOWN = [
    ("inner unit at the end", "lists, 2"),
    ("checkpointed, reentrant", "merge 3"),
    ("frozen trunk", "kept"),
    ("frozen trunk", "split root"),
    ("blocks alone", "lists, 1"),
    ("a block that never runs", "to 2"),
    ("lists of its own", "merge 2, lists"),
    ("resharded to two", "to 4"),
    ("resharded to two", "other links"),
]
"""Everything about these can be known from the record."""


@pytest.mark.parametrize(("kind", "change"), KNOWN)
def test_what_can_be_known_comes_true(kind: str, change: str) -> None:
    """Nearly to the tick."""
    found = tried(kind, "blocking", plans(HOST)[change])

    assert abs(found.off_ns) <= EXACT * found.step_ns


STREAMS = [
    ("compiled blocks", "async"),
    ("pictures", "lists, 1"),
    ("a head in float32", "lists, 2"),
]
"""The same of a modelled device with streams."""


@pytest.mark.parametrize(("kind", "change"), STREAMS)
def test_with_streams_too(kind: str, change: str) -> None:
    """Real FSDP2 on the device of a rehearsal, changed there."""
    found = tried(kind, "streams", plans(GROUNDS["streams"])[change])

    assert abs(found.off_ns) <= EXACT * found.step_ns


def test_models_that_no_replay_knows_are_refused() -> None:
    """Several roots, and blocks that run twice in a forward: no figure is given."""
    for kind, said in (
        ("two roots", "this .* several FSDP2 roots"),
        ("blocks that run twice", "layers.0 runs more than once"),
    ):
        with pytest.raises(InputError, match=said):
            tried(kind, "blocking", plans(HOST)["async"])


def test_one_size_of_message_widens_the_error() -> None:
    """Twice the bytes at once may cost anything from the same to twice as much."""
    found = tried("blocks alone", "blocking", plans(HOST)["merge 2"])

    assert abs(found.off_ns) > MIN_ERROR * found.step_ns
    assert found.inside


def test_steps_that_run_different_blocks_widen_the_error() -> None:
    """The usual step is predicted; the error reaches the others, and names the unit."""
    found = tried("a block left out at times", "blocking", plans(HOST)["async"])

    assert found.inside
    (said,) = found.prediction.assumptions
    assert said.startswith("steps of this run run different units (layers.3 only at")


def test_compute_in_narrower_numbers_widens_the_error() -> None:
    """By how much a device is faster in them depends on the model: it is never
    slower, so that a gain is none the less.
    """
    found = tried("adapters", "streams", plans(GROUNDS["streams"])["bfloat16"])

    assert found.off_ns > MIN_ERROR * found.step_ns
    assert found.inside
    assert found.prediction.gain_ns > 0
    assert 0 < found.prediction.sooner_ns < found.prediction.error_ns


def test_what_runs_beside_compute_may_slow_it() -> None:
    """Multiprocessors that collectives hold are no compute's: the run after a change
    that hides less is faster for it, by what no single run shows.
    """
    ground = "streams, contended"
    found = tried("decoder", ground, plans(GROUNDS[ground])["kept"])

    assert abs(found.off_ns) > MIN_ERROR * found.step_ns
    assert found.inside
