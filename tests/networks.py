"""Modelled networks, and one rank of a job on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from fsdpdoctor.network import CUSTOM_LATENCY_NS, Link, NetworkModel, Rule
from fsdpdoctor.rehearsal.modelled_group import BACKEND, World, modelling
from fsdpdoctor.rehearsal.modelled_work import Transfer


def uniform(
    bytes_per_second: float, latency_ns: int = CUSTOM_LATENCY_NS
) -> NetworkModel:
    """One link for everything."""
    link = Link(name="custom", bytes_per_second=bytes_per_second, latency_ns=latency_ns)
    return NetworkModel(rules=(Rule(link=link),))


@contextmanager
def modelled_world(world: World, rank: int = 0) -> Iterator[None]:
    """torch.distributed as one rank of a modelled job; destroyed at the end."""
    with modelling(world):
        dist.init_process_group(
            BACKEND, store=HashStore(), rank=rank, world_size=world.size
        )
        try:
            yield
        finally:
            if dist.is_initialized():  # the script may have done it
                dist.destroy_process_group()


def due_ns(transfer: Transfer) -> int:
    """How long the host should have stood still for it: without waking up late."""
    ends = ((start, min(end, transfer.end_ns)) for start, end in transfer.waits)
    return sum(max(end - start, 0) for start, end in ends)
