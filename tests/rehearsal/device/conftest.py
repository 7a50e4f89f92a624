"""A device that is there without a training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig.virtual_device import Job, Log, rehearsed


@pytest.fixture
def log() -> Iterator[Log]:
    """What the device does, as rank 0 of 16."""
    with rehearsed(Job()) as seen:
        yield seen
