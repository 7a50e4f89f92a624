"""`fsdpdoctor demo`: record a small real training and show what comes out."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click

from fsdpdoctor import recorder
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.recorder.launch.closing_words import short
from fsdpdoctor.recorder.storage import run_folder

SCRIPT = "fsdpdoctor.demo.train"
RANKS = 2


@click.command()
@click.option("--out", type=GivenPath(), help="Folder of the run.")
def command(out: Path | None) -> None:
    r"""Record a small FSDP2 training on two CPU ranks, and show its report.

    Nothing is downloaded, and no GPU is needed; it takes about 20 seconds.

    \b
    fsdpdoctor demo
    """
    recorder.require_torch()
    folder = short(run_folder.new_location(out, "demo").folder)
    run = ["run", "--nproc-per-node", str(RANKS), "--out", folder, "-m", SCRIPT]
    click.echo(
        "A small transformer, trained for 12 steps with FSDP2 on "
        f"{RANKS} CPU ranks over gloo, recorded with\n\n"
        f"  fsdpdoctor {shlex.join(run)}\n"
    )
    status = subprocess.run(
        [sys.executable, "-m", "fsdpdoctor", *run],
        # torchrun would set this itself, with a warning.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    ).returncode
    if status != 0:
        raise SystemExit(status)
    shown = shlex.quote(folder)
    click.echo(
        f"\nThe run is in {shown}. Try next:\n\n"
        f"  fsdpdoctor analyze {shown} --format html --out report.html\n"
        f"  fsdpdoctor rehearse --world-size 64 --bandwidth ib100 -m {SCRIPT}\n"
        "  fsdpdoctor run --nproc-per-node 8 train.py      your own script\n"
    )
