"""Bytes by bucket, and the most that was held."""

from __future__ import annotations

from fsdpdoctor.recorder.memory.live_storages import LiveStorages, Place
from fsdpdoctor.schema import Bucket, Phase

HEAD = Place(Bucket.ACTIVATIONS, 1, 1, Phase.FORWARD)
LOSS = Place(Bucket.BACKWARD, 0, 0, Phase.BACKWARD)


class At:
    """Where the training is."""

    def __init__(self) -> None:
        self.place = HEAD

    def __call__(self) -> Place:
        """The place."""
        return self.place


def started() -> tuple[LiveStorages, At]:
    """Nothing is held yet."""
    at = At()
    live = LiveStorages(at)
    live.start()
    return live, at


def test_peak_is_of_the_place_where_it_was_reached() -> None:
    """What is freed before counts no more, and a smaller height changes nothing."""
    live, at = started()
    live.saw(1, 100)
    live.saw(2, 50)
    at.place = LOSS
    live.entered()
    live.gone(1)
    live.saw(3, 20)

    highest = live.highest

    assert highest is not None
    assert (highest.bytes, highest.place) == (150, HEAD)
    assert +highest.parts == {(Bucket.ACTIVATIONS, 1): 150}
    assert live.most == {(1, Phase.FORWARD): 150, (0, Phase.BACKWARD): 150}
    assert live.total == 70


def test_what_it_turned_out_to_be_is_so_in_the_peak() -> None:
    """A storage that was there at the peak is moved there, too; a later one is not."""
    live, _ = started()
    live.saw(1, 100)
    live.gone(1)
    live.saw(2, 60)
    live.saw(3, 80)
    live.gone(3)
    live.saw(4, 30)

    live.is_for(2, Bucket.GRADIENTS, 1)
    live.is_for(4, Bucket.GRADIENTS, 1)

    highest = live.highest
    assert highest is not None
    assert +highest.parts == {(Bucket.ACTIVATIONS, 1): 80, (Bucket.GRADIENTS, 1): 60}
    assert +live.parts == {(Bucket.GRADIENTS, 1): 90}


def test_a_storage_that_grows_is_made_anew() -> None:
    """Freed in place and filled in another phase, it is of that phase."""
    live, at = started()
    live.saw(1, 100)
    live.saw(1, 0)
    at.place = LOSS
    live.saw(1, 100)

    assert +live.parts == {(Bucket.BACKWARD, 0): 100}
    assert live.buckets[Bucket.BACKWARD] == live.total == 100


def test_what_was_there_before_is_the_first_height() -> None:
    """The peak may be where counting began."""
    at = At()
    live = LiveStorages(at)
    live.saw(1, 70)
    live.is_for(1, Bucket.OTHER)
    live.start()

    assert live.highest is not None
    assert +live.highest.parts == {(Bucket.OTHER, -1): 70}
