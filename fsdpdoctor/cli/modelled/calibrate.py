"""`fsdpdoctor calibrate`: measure the device that is here, for rehearsals elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click

from fsdpdoctor import recorder
from fsdpdoctor.cli.option_types.amount import Amount
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import write_file


@click.command(name="calibrate")
@click.option(
    "--device",
    default="cuda",
    show_default=True,
    help="What is measured: cuda, cuda:1, or cpu to try the command.",
)
@click.option(
    "--out",
    type=GivenPath(dir_okay=False),
    help="The device's file. Default: the device's name, .toml.",
)
@click.option("--price", type=Amount(), help="Of its hour: sweeps give prices then.")
def command(device: str, out: Path | None, price: float | None) -> None:
    r"""Measure a device, and write the file that `rehearse --on FILE` reads.

    Matrix products, attention, memory, copies and launches, on one device that nobody
    else uses meanwhile; it takes a minute or two. The file can be used anywhere.

    \b
    fsdpdoctor calibrate --out my-gpu.toml
    fsdpdoctor rehearse --on my-gpu.toml --world-size 64 train.py
    """
    recorder.require_torch()
    from fsdpdoctor.rehearsal.device.measured_spec import errors_of, spec_of, to_toml
    from fsdpdoctor.rehearsal.measure_device import measure

    began = time.monotonic()
    measured = measure(
        device, say=lambda line: click.echo(f"measuring {line}", err=True)
    )
    spec = spec_of(measured, price)
    scale = measured.host_scale
    comment = (
        f"Measured by fsdpdoctor calibrate on {measured.name}.\n"
        f"Its host dispatches an operation in {measured.dispatch_us:.1f} us: "
        f"rehearse with --host {scale:.2g}."
    )
    path = out or Path(f"{_slug(measured.name)}.toml")
    write_file(path, to_toml(spec, comment))
    for kind, errors in errors_of(spec, measured).items():
        click.echo(_fit(kind, errors))
    click.echo(
        f"measured in {time.monotonic() - began:.0f} s; rehearse with: fsdpdoctor "
        f"rehearse --on {path} --host {scale:.2g} --world-size N SCRIPT"
    )


def _fit(kind: str, errors: Sequence[float]) -> str:
    far = [abs(error) for error in errors]
    return (
        f"{kind}: the file's prices are {median(far):.1%} from what was measured, "
        f"as the median, and {max(far):.1%} at the most, of {len(far)}"
    )


def _slug(name: str) -> str:
    return "-".join(re.findall(r"\w+", name.lower())) or "device"
