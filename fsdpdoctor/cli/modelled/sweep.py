"""`fsdpdoctor plan SCRIPT --on DEVICE`: one script in many configurations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from fsdpdoctor import recorder
from fsdpdoctor.cli.output import never_fail_to_encode, write_file
from fsdpdoctor.cli.processes.sweep_runs import SweepRuns, SweptScript
from fsdpdoctor.cli.processes.terminal import Terminal
from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import parse_network
from fsdpdoctor.planning.script_settings import NAMES, Handle, handle_of
from fsdpdoctor.planning.sweep import (
    DEFAULT_VALUES,
    OURS,
    Dimension,
    Outcome,
    choices,
    parse_sweep,
)
from fsdpdoctor.recorder.storage.run_folder import new_location
from fsdpdoctor.rehearsal.device.spec import DeviceSpec, load_spec
from fsdpdoctor.renderers.sweep import Sweep, encode_sweep, show_sweep
from fsdpdoctor.renderers.sweep_page import sweep_page

PAGE = "sweep.html"
RESULT = "sweep.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What was asked for."""

    script: str
    args: tuple[str, ...]
    is_module: bool
    on: str
    sweep: str | None
    world_size: int
    bandwidth: str
    node_size: int
    host: float
    jobs: int | None
    out: Path | None
    price: float | None
    as_json: bool


def sweep_script(asked: SweepOptions) -> None:
    """Rehearse every configuration, then print the table and write the page."""
    recorder.require_torch()
    spec = load_spec(asked.on)
    parse_network(asked.bandwidth)
    source = _source(asked)
    dimensions = _dimensions(asked, source)
    handles = _handles(asked, dimensions, source)
    found = choices(dimensions, asked.node_size)
    if not found:
        raise UsageError("--sweep: no combination of these values is a job")
    folder = _folder(asked)
    runs = SweepRuns(
        swept=SweptScript(
            script=asked.script,
            args=asked.args,
            is_module=asked.is_module,
            handles=handles,
            options=_rehearsal_options(asked),
            node_size=asked.node_size,
        ),
        folder=folder,
        jobs=asked.jobs or min(2, os.cpu_count() or 1),
        say=lambda line: click.echo(line, err=True),
    )
    click.echo(
        f"{len(found)} configurations, into {folder}; where it is broken off, the same "
        f"command with --out {folder} goes on",
        err=True,
    )
    outcomes = runs.run(found)
    price = asked.price if asked.price is not None else spec.price_per_hour
    _show(asked, spec, outcomes, handles, price, folder)


def _show(
    asked: SweepOptions,
    spec: DeviceSpec,
    outcomes: Sequence[Outcome],
    handles: dict[str, Handle],
    price: float | None,
    folder: Path,
) -> None:
    sweep = Sweep(
        script=asked.script,
        device=spec.name,
        outcomes=outcomes,
        price_per_hour=price,
        handles={name: str(handle) for name, handle in handles.items()},
    )
    encoded = encode_sweep(sweep)
    write_file(folder / RESULT, encoded)
    write_file(folder / PAGE, sweep_page(sweep))
    never_fail_to_encode()
    if asked.as_json:
        click.echo(encoded, nl=False)
        return
    show_sweep(sweep, Terminal())


def _source(asked: SweepOptions) -> str:
    if asked.is_module:
        return ""
    try:
        return Path(asked.script).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {asked.script}: {error.strerror}") from None


def _dimensions(asked: SweepOptions, source: str) -> tuple[Dimension, ...]:
    """What is varied: what was asked for, or what every script has."""
    if asked.sweep is not None:
        given = parse_sweep(asked.sweep)
    else:
        names = ["reshard", "checkpointing", "hsdp"]
        if handle_of("micro-batch", source, asked.args) is not None:
            names.insert(0, "micro-batch")
        given = tuple(Dimension(name=n, values=DEFAULT_VALUES[n]) for n in names)
    if any(d.name == "world" for d in given):
        return given
    return (Dimension(name="world", values=(str(asked.world_size),)), *given)


def _handles(
    asked: SweepOptions, dimensions: Sequence[Dimension], source: str
) -> dict[str, Handle]:
    """Where the script takes what is its own. Raises UsageError where it does not."""
    found = {}
    for dimension in dimensions:
        name = dimension.name
        if name in OURS:
            continue
        handle = handle_of(name, source, asked.args)
        if handle is None:
            known = ", ".join(f"--{one}" for one in NAMES.get(name, (name,))[:4])
            raise UsageError(
                f"{asked.script} takes no {name}, as far as its source says (options "
                f"such as {known}, or variables of these names). Write {{{name}}} "
                f"where it belongs in the script's arguments: fsdpdoctor plan ... "
                f"{asked.script} -- --its-option {{{name}}}. Without the script's "
                f"help these can be varied: {', '.join(OURS)}"
            )
        found[name] = handle
    return found


def _folder(asked: SweepOptions) -> Path:
    if asked.out is not None:
        return asked.out.absolute()
    return new_location(None, f"sweep-{Path(asked.script).stem}").folder


def _rehearsal_options(asked: SweepOptions) -> tuple[str, ...]:
    options = ["--on", asked.on, "--bandwidth", asked.bandwidth]
    options += ["--nproc-per-node", str(asked.node_size)]
    if asked.host != 1.0:
        options += ["--host", str(asked.host)]
    return tuple(options)
