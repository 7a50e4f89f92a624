"""A job that does not fit goes on, and says where it would end and what it needs."""

from __future__ import annotations

from collections import Counter

import pytest

from fsdpdoctor.quantities import GIB
from fsdpdoctor.rehearsal.device.memory import memory_places as places
from fsdpdoctor.rehearsal.device.memory.caching_allocator import OutOfMemory
from fsdpdoctor.rehearsal.device.memory.storages import Ledger
from fsdpdoctor.rehearsal.device.memory.verdict import in_words
from fsdpdoctor.rehearsal.device.spec import load_spec
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice
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


def too_little(**held: int) -> str:
    """What would make a job fit of which 100 GiB are needed, on 80 GB."""
    device = VirtualDevice(load_spec("h100"))
    ledger = Ledger(device)
    ledger.failed = OutOfMemory(GIB, 78 * GIB, 78 * GIB, 78 * GIB)
    ledger.failed_place, ledger.peak_place = "layers.3, forward", "head, backward"
    ledger.peak = 100 * GIB
    ledger.at_peak = Counter({place: size * GIB for place, size in held.items()})
    return in_words(device, ledger).rpartition("To make it fit: ")[2]


CASES = {
    "a micro-batch": (
        {places.ACTIVATIONS: 60},
        "a micro-batch of 63% of this one's size, or activation checkpointing",
    ),
    "not enough alone": (
        {places.ACTIVATIONS: 10, places.PARAMETERS: 60},
        (
            "activation checkpointing or a smaller micro-batch, which is not enough; "
            "1.6 times as many ranks to shard over, or CPU offload"
        ),
    ),
    "units": (
        {places.GATHERED: 40},
        "smaller units, resharded after forward",
    ),
    "logits": (
        {places.BACKWARD: 50},
        "a loss in chunks, so that logits are not there all at once",
    ),
    "nothing alone": (
        {places.PARAMETERS: 20, places.GATHERED: 20, places.BACKWARD: 20},
        "no kind of memory alone is as large as the 21.9 GiB that are missing",
    ),
    "every way": (
        {places.ACTIVATIONS: 30, places.PARAMETERS: 30, places.GATHERED: 30},
        (
            "a micro-batch of 27% of this one's size, or activation checkpointing; "
            "3.7 times as many ranks to shard over, or CPU offload; "
            "smaller units, resharded after forward"
        ),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_what_makes_it_fit_is_what_is_large_enough(name: str) -> None:
    """22 GiB have to go: only what holds more of them is said to do alone."""
    held, expected = CASES[name]
    assert too_little(**held) == expected


def test_pieces_that_leave_no_room_between_them_are_named() -> None:
    """Less is allocated than there is room for, and still nothing is left."""
    device = VirtualDevice(load_spec("h100"))
    ledger = Ledger(device)
    room = device.spec.allocatable_bytes
    ledger.failed = OutOfMemory(4 * GIB, 60 * GIB, room, room)
    ledger.failed_place, ledger.peak = "layers.3, backward", 70 * GIB
    device.allocator.capacity = 80 * GIB  # grown; its peak was reset since
    device.allocator.peak_reserved = 56 * GIB
    assert in_words(device, ledger) == (
        "out of memory in layers.3, backward: at most 70.0 GiB are allocated, but in "
        "pieces for which 80.0 of 78.1 GiB had to be reserved. To make it fit: "
        "PYTORCH_ALLOC_CONF=expandable_segments:True"
    )
