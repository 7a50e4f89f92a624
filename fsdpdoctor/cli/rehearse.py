"""`fsdpdoctor rehearse`: see a big job's overlap and memory before paying for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpdoctor import recorder
from fsdpdoctor.cli.option_types.amount import Amount
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.run import run_rank
from fsdpdoctor.cli.run_options import RunOptions
from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import DEFAULT_WIRE, PRESETS, adapters_hint, parse_network
from fsdpdoctor.plan_file import read_settings
from fsdpdoctor.recorder.launch.run_script import Target
from fsdpdoctor.recorder.storage.sampling import sampling_of
from fsdpdoctor.rehearsal.device.spec import known_devices, load_spec
from fsdpdoctor.storage.regular_file import is_file
from fsdpdoctor.untrusted.headers import MOST_RANKS

if TYPE_CHECKING:
    from fsdpdoctor.rehearsal.on_device import RehearsalOnDevice
    from fsdpdoctor.rehearsal.rehearsal import Rehearsal


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=f"Links: {', '.join(PRESETS)}, or a speed such as 25GB/s, 200Gb/s@10us. "
    f"Devices: {', '.join(known_devices())}.",
)
@click.option("--world-size", type=int, help="Ranks of the job that is rehearsed.")
@click.option(
    "--on",
    metavar="DEVICE",
    help="Rehearse on a device that is not here: a name, such as h100, or a file. "
    "Time is modelled then; no GPU is needed.",
)
@click.option(
    "--host",
    type=Amount(min=0.01),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="With --on: how much slower the host is than a server of today.",
)
@click.option("--mesh", help="Replicas and shards, as in 8x64: HSDP.")
@click.option(
    "--bandwidth",
    default=DEFAULT_WIRE,
    show_default=True,
    help="The network: one link, or links by group (shard, replicate), by reach "
    "(intra, inter: inside a node, across nodes) or by collective (all-gather, ...). "
    "8xib400: eight adapters of a node, which a group that fills nodes uses at once.",
)
@click.option(
    "--nproc-per-node",
    "--nproc_per_node",
    type=int,
    default=8,
    show_default=True,
    help="Ranks on a node of the job.",
)
@click.option("--out", type=GivenPath(), help="Folder of the run.")
@click.option("--steps", help="Record steps A to B, B not included: A:B.")
@click.option("--every", type=int, help="Record one step in K.")
@click.option(
    "--stop-after", type=click.IntRange(min=1), help="End after so many steps."
)
@click.option(
    "--apply",
    "plan",
    type=GivenPath(),
    help="Change the model as this plan says, which `whatif --save` or a sweep wrote.",
)
@click.option(
    "--checkpointing",
    type=click.Choice(["as-is", "on", "off"]),
    default="as-is",
    show_default=True,
    help="On: every unit whose class repeats is computed again in backward. Off: the "
    "script's own checkpoints are passed over.",
)
@click.option(
    "--verdict",
    type=GivenPath(),
    help="With --on: write as JSON whether it fits.",
)
@click.option("--no-report", is_flag=True, help="Print no summary at the end.")
@click.option("-m", "is_module", is_flag=True, help="Run a module, as python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    world_size: int | None,
    on: str | None,
    host: float,
    mesh: str | None,
    bandwidth: str,
    nproc_per_node: int,
    out: Path | None,
    steps: str | None,
    every: int | None,
    stop_after: int | None,
    plan: Path | None,
    checkpointing: str,
    verdict: Path | None,
    no_report: bool,
    is_module: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    r"""Run SCRIPT (or -m MODULE) as rank 0 of a bigger job, in this one process.

    Kernels, allocator, host cost and the 1/N shards are real. The network is a
    model, and every other rank is taken to be a copy of this one: losses are
    meaningless. With --on, the device is a model, too: the script runs as it is,
    with tensors that have no memory, in virtual time.

    \b
    fsdpdoctor rehearse --world-size 64 train.py --lr 1e-4
    fsdpdoctor rehearse --on h100 --world-size 64 train.py
    fsdpdoctor rehearse --mesh 8x64 --bandwidth shard=nvlink4,replicate=ib400 train.py
    """
    size, replicas = _job(world_size, mesh)
    if size > MOST_RANKS:
        raise UsageError(f"a job of {size:,} ranks; expected at most {MOST_RANKS:,}")
    wire = parse_network(bandwidth)
    sampling_of(steps, every)  # says what is wrong before anything starts
    recorder.require_torch()
    if not is_module and not is_file(Path(script)):
        raise UsageError(f"cannot run {script}: there is no such file")
    settings = None if plan is None else read_settings(plan)
    from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing

    rehearsal = Rehearsal(
        wire=wire, world_size=size, replicas=replicas, node_size=nproc_per_node
    )
    if verdict is not None and on is None:
        raise UsageError(
            "--verdict needs --on: without a modelled device none is given"
        )
    on_device = _job_on(on, host, rehearsal, verdict) if on else None
    notes = (rehearsal.note, *(on_device.notes if on_device else ()))
    if checkpointing != "as-is":
        notes = (*notes, f"activation checkpointing: {checkpointing}, by the rehearsal")
    hint = adapters_hint(wire, nproc_per_node, size)
    for note in (*notes, *([hint] if hint and bandwidth != DEFAULT_WIRE else [])):
        click.echo(f"fsdpdoctor: {note}", err=True)
    run_rank(
        RunOptions(
            target=Target(name=script, is_module=is_module, args=args),
            out=out,
            steps=steps,
            every=every,
            stop_after=stop_after,
            settings=settings,
            report=not no_report,
            source="rehearsal",
            notes=notes,
            ended=on_device.ended if on_device else lambda _: None,
        ),
        _job_with(on_device or rehearsing(rehearsal), checkpointing),
    )


@contextmanager
def _job_with(job: AbstractContextManager[None], checkpointing: str) -> Iterator[None]:
    """The rehearsal, and within it what is done in the script's place."""
    with job:
        if checkpointing == "as-is":
            yield
            return
        from fsdpdoctor.rehearsal.checkpointing import checkpointing as checkpoints

        with checkpoints(checkpointing == "on"):
            yield


def _job_on(
    on: str, host: float, rehearsal: Rehearsal, verdict: Path | None
) -> RehearsalOnDevice:
    """A rehearsal on a modelled device."""
    from fsdpdoctor.rehearsal.on_device import RehearsalOnDevice

    return RehearsalOnDevice(
        load_spec(on), rehearsal, host_scale=host, verdict_to=verdict
    )


def _job(world_size: int | None, mesh: str | None) -> tuple[int, int]:
    """Ranks and replicas of the job."""
    if mesh is None:
        if world_size is None:
            raise UsageError("say how big the job is: --world-size 64 or --mesh 8x64")
        return world_size, 1
    found = re.fullmatch(r"([1-9]\d{0,8})[xX]([1-9]\d{0,8})", mesh)
    if found is None:
        raise UsageError(f"--mesh is {mesh!r}; expected replicas x shards, as in 8x64")
    replicas, shards = int(found[1]), int(found[2])
    if world_size not in (None, replicas * shards):
        raise UsageError(
            f"--mesh {mesh} has {replicas * shards} ranks, --world-size says "
            f"{world_size}: give one of them, or make them agree"
        )
    return replicas * shards, replicas
