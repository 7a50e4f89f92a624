"""What can be recorded in this environment, what cannot, and why."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fsdpdoctor.recorder.fsdp2.internals import TorchSymbols
from fsdpdoctor.recorder.fsdp2.signals import SIGNALS
from fsdpdoctor.recorder.fsdp2.signatures import installed
from fsdpdoctor.recorder.host import collective_operators
from fsdpdoctor.recorder.tape.extension import extension
from fsdpdoctor.storage.runs_place import RUNS

NO_SOURCES = "its names were not read: torch's sources are not there"
NO_CUDA = "torch sees no CUDA device here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """Something that is recorded, or is not."""

    what: str
    can: bool
    why: str = ""  # empty where nothing stands in the way


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the recorder meets here."""

    facts: tuple[tuple[str, str], ...]  # name and value
    abilities: tuple[Ability, ...]


IN_C = "in C where parameters are on a CPU, in Python on a device"
IN_PYTHON = (
    "in Python: they were not compiled as this was installed, and recording costs "
    "two to three times as much of a CPU's step (install with a C compiler)"
)


def surroundings() -> Surroundings:
    """Look at the interpreter, torch and its devices; nothing is begun."""
    names = TorchSymbols()
    return Surroundings(
        facts=tuple(_facts(names)),
        abilities=(*_of_fsdp2(names), *_of_torch(), *_of_the_host()),
    )


def _facts(names: TorchSymbols) -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    yield "torch", str(torch.__version__)
    yield "FSDP2", _fsdp2(names)
    yield "hooks", IN_C if extension() is not None else IN_PYTHON
    yield "backends", ", ".join(_backends()) or "none"
    yield "devices", ", ".join(_devices()) or NO_CUDA
    clock = time.get_clock_info("perf_counter")
    resolution = f"{clock.resolution * 1e9:.0f} ns"
    yield "host's clock", f"perf_counter: {clock.implementation}, {resolution}"
    yield "device's clock", "CUDA events" if torch.cuda.is_available() else "none"


def _fsdp2(names: TorchSymbols) -> str:
    if names.module_class is None:
        return "none: this torch has no torch.distributed.fsdp.fully_shard"
    if not installed():
        return NO_SOURCES
    used = {need for signal in SIGNALS for need in (*signal.hooks, *signal.needs)}
    lost = {name for lack in names.lacks for name in lack.names}
    return f"{len(used) - len(lost)} of the {len(used)} names that are used are there"


def _backends() -> Iterator[str]:
    if not dist.is_available():
        return
    asked: dict[str, Any] = {
        "gloo": dist.is_gloo_available,
        "nccl": dist.is_nccl_available,
        "ucc": dist.is_ucc_available,
        "mpi": dist.is_mpi_available,
    }
    for name, there in asked.items():
        if there():
            yield name


def _devices() -> Iterator[str]:
    for number in range(torch.cuda.device_count()):
        yield f"{torch.cuda.get_device_name(number)} ({number})"


def _of_fsdp2(names: TorchSymbols) -> Iterator[Ability]:
    lost = {lack.signal: lack for lack in names.lacks}
    vital = next((lack for lack in names.lacks if lack.signal.vital), None)
    for signal in SIGNALS:
        why = ""
        if names.module_class is None:
            why = "this torch has no FSDP2"
        elif signal in lost:
            why = lost[signal].words.partition(f"{signal.words}: ")[2]
        elif vital is not None:
            why = f"without {vital.signal.words} it means nothing"
        yield Ability(what=signal.words, can=not why, why=why)


def _of_torch() -> Iterator[Ability]:
    cuda = torch.cuda.is_available()
    yield Ability(what="steps and optimizers", can=True)
    yield Ability(
        what="collectives that FSDP2 does not issue",
        can=collective_operators.supported(),
        why=""
        if collective_operators.supported()
        else "this torch's operators of c10d cannot be followed",
    )
    yield Ability(
        what="times on the device, and its allocator's memory",
        can=cuda,
        why="" if cuda else f"{NO_CUDA}; what runs on the CPU is timed by the host",
    )
    autograd: Any = torch.autograd  # parts of it have no types
    profiler = autograd.kineto_available()
    yield Ability(
        what="torch.profiler beside it (--kineto)",
        can=profiler,
        why="" if profiler else "this torch is built without it",
    )


def _of_the_host() -> Iterator[Ability]:
    frames = hasattr(sys, "_current_frames")
    yield Ability(
        what="where a rank stands when nothing progresses",
        can=frames,
        why="" if frames else "this Python does not show threads' stacks",
    )
    processes = Path("/proc/self/stat").exists()
    yield Ability(
        what="whether a rank that says nothing is stopped, or has ended",
        can=processes,
        why="" if processes else "there is no /proc here",
    )
    folder = RUNS if RUNS.exists() else Path()
    writable = os.access(folder, os.W_OK)
    yield Ability(
        what=f"a run, below {RUNS}",
        can=writable,
        why="" if writable else "nothing may be written here: give --out FOLDER",
    )
