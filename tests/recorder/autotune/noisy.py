"""A small job on a modelled wire whose compute is noise, in virtual time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

import fsdpdoctor
from fsdpdoctor.plan_file import settings_of
from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder.autotune.ranking import Candidate, Ranking
from fsdpdoctor.recorder.changes.apply_plan import Applier
from fsdpdoctor.rehearsal.modelled_group import World
from tests import models
from tests.models import SleepBlock
from tests.networks import modelled_world, uniform
from tests.recorder.autotune.modelled import Looking, Rank, one_thread_tuning
from tests.rig.fake import one_thread
from tests.rig.virtual import virtual_time
from tests.simulate.kinds import units
from tests.simulate.networks import Row

NOISE = 0.05
"""Of each block's compute, log-normal."""

OFTEN, LONGER = 0.002, 5.0
"""So many blocks are disturbed, and take so many times as long."""

DRIFT = 0.0001
"""By which each block's compute is longer than the one's before: a machine that slowly
gets busier, and after 5,000 blocks is as idle as at first."""

PLAIN_STEPS = 100


@contextmanager
def noisy(seed: int) -> Iterator[None]:
    """Inside, every block computes for longer or shorter than it should."""
    chance, compute, count = random.Random(seed), models.compute, iter(range(10**9))

    def disturbed(x: torch.Tensor, length_ns: int, spins: Any) -> None:
        factor = chance.lognormvariate(0, NOISE) + DRIFT * (next(count) % 5000)
        if chance.random() < OFTEN:
            factor *= LONGER
        compute(x, round(length_ns * factor), spins)

    patch = pytest.MonkeyPatch()
    patch.setattr(models, "compute", disturbed)
    try:
        yield
    finally:
        patch.undo()


def training() -> Callable[[], None]:
    """A step of the smallest model of which anything can be told."""
    torch.manual_seed(0)
    blocks = [SleepBlock(64, 4 * MS, 8 * MS, []) for _ in range(2)]
    model: Any = units(made := Row(blocks, embeds=False, head=False), made.layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        model(torch.ones(2, 64)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextmanager
def small_job(seed: int, bytes_per_second: float) -> Iterator[None]:
    """Eight ranks, a wire, and noise."""
    wire = uniform(bytes_per_second)
    world = World(wire=wire, size=8, shard_size=8, node_size=8)
    with one_thread(), virtual_time(), noisy(seed), modelled_world(world):
        yield


def nothings(count: int) -> Ranking:
    """Candidates that promise much, and set what is set already."""
    found = tuple(
        Candidate(
            summary=f"nothing {at}",
            plan={},
            apply={"units": {"layers.0": {"reshard_after_forward": True}}},
            code="",
            step_ns=500 - 10 * at,
            bytes=0,
        )
        for at in range(count)
    )
    return Ranking(measured_ns=1000, candidates=found)


def tuned(folder: Path, seed: int, bytes_per_second: float, rank: Rank) -> Looking:
    """A job that has trained until nothing more is tried."""
    with (
        one_thread_tuning(rank),
        small_job(seed, bytes_per_second),
        fsdpdoctor.record(folder, every=1, autotune=True),
    ):
        step = training()
        while not Looking.now.over:
            step()
        assert not Looking.now.failed
        return Looking.now


def plain_ns(seed: int, bytes_per_second: float, apply: dict[str, Any] | None) -> float:
    """The median step of a run that tries nothing, with a plan or without."""
    with small_job(seed, bytes_per_second):
        applier = None
        if apply is not None:
            applier = Applier(settings_of(apply), lambda: None)
            applier.attach()
        try:
            step = training()
            ends_ns = []
            for _ in range(PLAIN_STEPS):
                step()
                ends_ns.append(time.perf_counter_ns())
            return median(b - a for a, b in pairwise(ends_ns))
        finally:
            if applier is not None:
                applier.detach()


def later_gains(
    found: Looking, seed: int, bytes_per_second: float, runs: int
) -> list[float]:
    """Of plain runs with what was kept, each against one without, with other noise."""
    seeds = range(1000 * seed + 1000, 1000 * seed + 1000 + 2 * runs, 2)
    return [
        1
        - plain_ns(one, bytes_per_second, found.apply)
        / plain_ns(one + 1, bytes_per_second, None)
        for one in seeds
    ]
