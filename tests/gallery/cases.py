"""How each case of the gallery is recorded: the command, or what is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fsdpdoctor.run import RankData
from tests.gallery import simulated

RIG = "tests/rig/scripts/train.py"
OURS = "tests.gallery.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Processes over gloo."""

    nproc: int
    target: tuple[str, ...]  # a script, or -m and a module, with arguments
    steps: str = "3:7"

    @property
    def command(self) -> tuple[str, ...]:
        """What a user would type after `fsdpdoctor`, without `--out`."""
        return (
            *("run", "--nproc-per-node", str(self.nproc)),
            *("--steps", self.steps, *self.target),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """One process as rank 0 of `world_size`, on a modelled wire."""

    case: str  # of `tests.gallery.train`
    bandwidth: str
    virtual: bool  # time; else the machine's own
    world_size: int = 8
    steps: str = "3:8"

    @property
    def command(self) -> tuple[str, ...]:
        """What a user would type after `fsdpdoctor`, without `--out`."""
        return (
            *("rehearse", "--world-size", str(self.world_size)),
            *("--bandwidth", self.bandwidth, "--steps", self.steps),
            *("-m", OURS, self.case),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What FSDP2's schedule would be on a device: no run of it was recorded."""

    make: Callable[[], RankData]


How = Ranks | Rehearsed | Simulated

FAST = "1GB/s@100us"
"""A block's 256 KiB take a third of a millisecond: nothing waits."""

GATHERS = "40MB/s@100us,reduce-scatter=1GB/s@100us"
"""A block's gather takes 6 ms, its forward 20 ms; reductions are fast."""

INSTANT = "100GB/s@1us"
"""For cases about something else, in the machine's time: there is no wait to be late
from.
"""

REDUCTIONS = "1GB/s@100us,reduce-scatter=10MB/s@100us"
"""The other way round."""


def rig(fault: str, nproc: int = 2, *more: str, steps: str = "3:7") -> Ranks:
    """The rig's small Llama."""
    arguments = ("--fault", fault, "--steps", "10", *more)
    return Ranks(nproc=nproc, target=(RIG, *arguments), steps=steps)


def ours(case: str, steps: str = "3:7") -> Ranks:
    """The gallery's network on two ranks."""
    return Ranks(nproc=2, target=("-m", OURS, case), steps=steps)


def wire(case: str, bandwidth: str = FAST) -> Rehearsed:
    """The gallery's network on a modelled wire, in virtual time."""
    return Rehearsed(case=case, bandwidth=bandwidth, virtual=True)


def timed(case: str, bandwidth: str = FAST) -> Rehearsed:
    """The same in the machine's time."""
    return Rehearsed(case=case, bandwidth=bandwidth, virtual=False)


CASES: dict[str, How] = {
    # Healthy.
    "healthy-llama": rig("none", steps="3:9"),
    "healthy-checkpointing": rig("checkpoint"),
    "healthy-hsdp": rig("hsdp", 4, "--layers", "2"),
    "healthy-ignored-head": rig("ignored"),
    "healthy-prefetch": wire("chain", GATHERS),
    "healthy-fast-wire": wire("blocks"),
    "healthy-accumulation-once": wire("accumulate-once", REDUCTIONS),
    "healthy-kept-unsharded": wire("kept-chain", GATHERS),
    "healthy-experts": wire("experts"),
    "healthy-tables-apart": wire("tables-apart", "100GB/s@100us"),
    "healthy-nearly-even": wire("nearly-even"),
    "healthy-unused-head": wire("unused"),
    "healthy-loader": wire("fast-loader", GATHERS),
    "healthy-short-script": wire("short-script"),
    "healthy-norm-by-hand": wire("norm-by-hand", GATHERS),
    "healthy-frozen-heap": timed("frozen-garbage", INSTANT),
    "healthy-async-checkpoint": ours("async-checkpoints"),
    "healthy-dropped-together": ours("dropped-together"),
    "healthy-mixed-precision": wire("mixed-precision"),
    "healthy-half-frozen": wire("half-frozen"),
    "healthy-frozen-narrow": wire("frozen-narrow"),
    "healthy-registered-method": wire("registered"),
    "healthy-compiled-inside": wire("compiled-inside"),
    "healthy-evaluation": wire("evaluated-resharded"),
    # One thing wrong.
    "exposed-all-gather": wire("blocks", GATHERS),
    "exposed-reduce-scatter": wire("blocks", REDUCTIONS),
    "prefetch-skips-a-block": wire("skip", GATHERS),
    "nested-in-checkpoint": rig("nested-checkpoint", 2, "--layers", "3"),
    "accumulation-reduces-each": wire("accumulate", REDUCTIONS),
    "one-unit-for-all": wire("root-only", GATHERS),
    "head-outside": rig("outside"),
    "seeds-of-their-own": rig("seeds"),
    "every-linear-a-unit": wire("fine", GATHERS),
    "tables-in-root": wire("big-tables", "100GB/s@100us"),
    "padded-rows": wire("uneven"),
    "prefetch-never-runs": wire("idle-target", GATHERS),
    "unshard-for-nothing": wire("unshards-for-nothing"),
    "slow-rank": rig("slow-rank", 2, "--sleep-ms", "300"),
    "slow-loader": wire("slow-loader", GATHERS),
    "garbage-every-step": timed("garbage", INSTANT),
    "slow-script": timed("slow-script", INSTANT),
    "slow-optimizer": wire("slow-optimizer", GATHERS),
    "optimizer-gathers": wire("gathering-optimizer", GATHERS),
    "checkpoint-often": ours("checkpoints"),
    "killed-rank": ours("killed"),
    "one-rank-drops-a-micro-batch": ours("micro-batch-dropped"),
    "sliced-mesh": rig("sub-mesh", 4, "--layers", "2"),
    "autocast-gathers-wide": wire("autocast"),
    "adapters-only": wire("adapters", GATHERS),
    "adapter-units": wire("adapter-units"),
    "frozen-in-float32": wire("frozen-masters"),
    "frozen-in-backward": wire("frozen-backward", GATHERS),
    "optimizer-too-early": rig("early-optimizer"),
    "idle-head": wire("idle-head"),
    "compiled-around": timed("compiled-around", INSTANT),
    "evaluation-keeps-root": wire("evaluated"),
    "ddp-instead": rig("ddp"),
    # On a device: simulated.
    **{name: Simulated(make=make) for name, make in simulated.CASES.items()},
}
