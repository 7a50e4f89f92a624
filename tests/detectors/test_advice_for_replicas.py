"""The advice for ranks that differ runs as pasted, on four ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.detectors.drawn_jobs import APART
from tests.detectors.pasted_code import run
from tests.detectors.test_advice_runs import all_code


@pytest.fixture
def job_of_four() -> Iterator[None]:
    """Rank 0 of 4."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_advice_for_ranks_that_differ(job_of_four: None) -> None:
    """Replicas that nobody reduces over, seeds of their own, a head outside."""
    for m in APART:
        codes = all_code(m)

        assert codes
        for code in codes:
            run(code)
