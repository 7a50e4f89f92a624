"""N and O: parameters on the host; the allocator.

A modelled device does not price what the host computes, so that steps of offloaded
jobs are drawn: the optimizer's part, the copies, where parameters lie.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fsdpdoctor.schema import COUNTER_ALLOC_RETRIES, Evidence
from fsdpdoctor.testing import RECORDED, unit
from tests.zoo.entry import Entry, Untold
from tests.zoo.job import Moment, Tensor
from tests.zoo.situations import Drawn, drawn, rehearsed

GIB = 1 << 30

# -- N


def step(optimizer: int, copies: int = 0) -> str:
    """Copies before the gathers, and an optimizer of so many milliseconds."""
    c, o = copies, optimizer
    rows = {
        "memcpy": "0" * c + "." * (24 + o),
        "all_gather": "." * c + "0.1" + "." * (21 + o),
        "wait": "0" * (c + 1) + "." * (23 + o),
        "forward": "." * (c + 1) + "000000111111" + "." * (11 + o),
        "backward_all_gather": "." * (c + 9) + "0" + "." * (14 + o),
        "backward": "." * (c + 13) + "11111100000" + "." * o,
        "reduce_scatter": "." * (c + 19) + "1...0" + "." * o,
        "optimizer": "." * (c + 24) + "0" * o,
    }
    return "\n".join(f"{name:<20}{row}" for name, row in rows.items() if row.strip("."))


def units(where: str | None, size: int = GIB) -> tuple[Any, ...]:
    """Two blocks, whose shards are somewhere."""
    of = {"param_bytes": 8 * size, "shard_bytes": size, "unsharded_bytes": 4 * size}
    return tuple(unit(f"layers.{at}", offload=where, **of) for at in range(2))


def on_host(
    picture: str,
    where: str | None = "cpu-pinned",
    size: int = GIB,
    threads: int = 8,
) -> Drawn:
    """Two ranks with 80 GiB each."""
    header = {
        "device_bytes": 80 * GIB,
        "environment": {"OMP_NUM_THREADS": str(threads)},
        "local_world_size": 8,
    }
    return drawn(
        picture,
        picture,
        units=units(where, size),
        header=header,
        device="cuda",
        clock="cuda",
    )


ON_DEVICE = on_host(step(1), where=None)

# -- O


def of_all_lengths(moment: Moment) -> Tensor:
    """Longer and shorter sequences, in turns."""
    length = (1024, 640, 1536, 896, 2048, 768)[moment.step % 6]
    return padded_to(moment, length)


def of_one_length(moment: Moment) -> Tensor:
    """All padded to the longest."""
    return padded_to(moment, 2048)


def padded_to(moment: Moment, length: int) -> Tensor:
    """One forward of this length."""
    tokens = moment.tokens(length)
    logits = moment.model(tokens)
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


WITH_ALLOCATOR = (*RECORDED, Evidence.ALLOCATOR)


def retrying(often: int) -> Drawn:
    """An allocator that frees its cache so often in each step."""
    return drawn(
        step(1),
        step(1),
        units=units(None),
        evidence=WITH_ALLOCATOR,
        rising={COUNTER_ALLOC_RETRIES: often},
        header={"device_bytes": 80 * GIB},
        device="cuda",
        clock="cuda",
    )


ENTRIES: list[Entry | Untold] = [
    Entry(
        number="N01",
        why="shards come from the host before each gather; its optimizer takes most",
        fault=on_host(step(20, copies=3)),
        cure=ON_DEVICE,
        codes=("FD304",),
        units=("layers.0", "layers.1"),
        fast=True,
    ),
    Entry(
        number="N02",
        why="three to ten times slower: the host's optimizer",
        fault=on_host(step(60)),
        cure=ON_DEVICE,
        codes=("FD304",),
        fast=True,
    ),
    Entry(
        number="N03",
        why="eight ranks share two cores, a thread each: 17 s in place of 1.8 s",
        fault=on_host(step(40), threads=1),
        cure=on_host(step(1), where=None, threads=1),
        codes=("FD304",),
        fast=True,
    ),
    Entry(
        number="N04",
        why="fifteen times slower with the same model offloaded",
        fault=on_host(step(120, copies=12)),
        cure=ON_DEVICE,
        codes=("FD304",),
        fast=True,
    ),
    Entry(
        number="N05",
        why="copies from pageable memory, each waited for",
        fault=on_host(step(2, copies=12), where="cpu"),
        cure=on_host(step(2), where="cpu-pinned"),
        codes=("FD304",),
        fast=True,
    ),
    Entry(
        number="N06",
        why="a context of 131 thousand tokens fits with offloading only",
        fault=on_host(step(2), size=30 * GIB),
    ),
    Entry(
        number="N07",
        why="no fused optimizer for the host",
        fault=on_host(step(18)),
        cure=on_host(step(2)),
        codes=("FD304",),
        fast=True,
    ),
    Entry(
        number="O01",
        why="5.5 GB allocated, 73.6 GB reserved: fragments",
        fault=rehearsed(loss=of_all_lengths, blocks=4, memory_gib=3.2, steps=10),
        cure=rehearsed(
            loss=of_all_lengths,
            blocks=4,
            memory_gib=3.2,
            steps=10,
            environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        ),
        codes=("FD302",),
    ),
    Entry(
        number="O03",
        why="cudaMalloc and cudaFree in the middle of steps",
        fault=retrying(3),
        cure=retrying(0),
        codes=("FD302",),
        fast=True,
    ),
    Entry(
        number="O04",
        why="the allocator asks the driver for memory in each step",
        fault=retrying(1),
        cure=retrying(0),
        codes=("FD302",),
        fast=True,
    ),
    Entry(
        number="O08",
        why="sequences of unlike length: out of memory late",
        fault=rehearsed(loss=of_all_lengths, blocks=6, memory_gib=4.0, steps=12),
        cure=rehearsed(loss=of_one_length, blocks=6, memory_gib=4.0, steps=12),
        codes=("FD302", "FD408"),
    ),
    Untold(
        number="O05",
        why="segments that a save leaves behind: a modelled allocator gives them "
        "back at its first retry",
    ),
    Untold(
        number="O02",
        why="the same setting as O01, in another library",
    ),
    Untold(
        number="O06",
        why="16 G more under tensor parallelism, and no cause was found",
    ),
    Untold(
        number="O07",
        why="pools of several streams on another vendor's devices; a rehearsal has no "
        "allocator of theirs",
    ),
    Untold(
        number="O09",
        why="a compiler held the gathered parameters; which tensors hold memory is not "
        "recorded",
    ),
    Untold(
        number="O10",
        why="no report but torch's source: what several roots cost in fragments",
    ),
    Untold(
        number="O11",
        why="a shard that is a view keeps the whole storage alive: sizes of storages "
        "are not recorded",
    ),
]
