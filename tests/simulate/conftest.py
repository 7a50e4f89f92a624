"""One process that is rank 0 of 8."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute in one thread: the machine is shared with other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def world(one_thread: None) -> Iterator[None]:
    """Rank 0 of 8, whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()
