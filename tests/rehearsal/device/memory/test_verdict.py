"""A job that does not fit goes on, and says where it would end and what it needs."""

from __future__ import annotations

from fsdpdoctor.quantities import GIB
from fsdpdoctor.rehearsal.device.memory.verdict import in_words
from tests.rig.virtual_device import Job, Log, rehearsed, train


def verdict(log: Log) -> str:
    """Of the job."""
    assert log.rig is not None
    return in_words(log.rig.device, log.rig.ledger)


def test_memory_that_fits_is_named_by_what_it_is_for() -> None:
    """With the unit and pass in which it is most."""
    with rehearsed(Job(steps=1)) as log:
        train(Job(steps=1))
    said = verdict(log)
    assert said.startswith("fits: ")
    assert "of 78.1 GiB reserved" in said
    assert ", backward; of which GiB: activations " in said


def test_memory_that_just_fits_is_said_to_be_tight() -> None:
    """What lives on memory that is given back may be far slower than it says."""
    with rehearsed(Job(steps=1)) as log:
        train(Job(steps=1))
        assert log.rig is not None
        log.rig.device.allocator.retries = 3
    said = verdict(log)
    assert said.startswith("fits: ")
    assert ". Tight: 3 times the allocator found no room" in said


def test_memory_that_does_not_fit_says_where_and_how_much() -> None:
    """The first allocation that fails ends a real job; what it needs is known after."""
    tight = Job(memory_gib=0.15, steps=1)
    with rehearsed(Job(steps=1)) as roomy:
        train(Job(steps=1))
    with rehearsed(tight) as log:
        train(tight)
    assert log.rig is not None
    assert roomy.rig is not None
    said = verdict(log)
    needed = roomy.rig.ledger.peak / GIB
    assert said.startswith("out of memory in ")
    assert f"needs {needed:.1f} of 0.2 GiB" in said
    assert "To make it fit: " in said
