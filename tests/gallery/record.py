"""Records the gallery.

    python -m tests.gallery.record CASE...      python -m tests.gallery.record --all

Writes `traces/<case>/`, leaves `diagnosis.toml` alone, and prints what is found.
What names the machine is taken out; a file that still does is refused.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.detectors import judge_all
from fsdpdoctor.run import open_run
from fsdpdoctor.run_writer import RankWriter, write_run_header
from fsdpdoctor.schema import UNKNOWN, RunHeader
from fsdpdoctor.version import __version__
from tests.gallery.cases import CASES, OURS, Ranks, Rehearsed, Simulated
from tests.rig.changed import replace
from tests.rig.ranks import ROOT, run_python, run_ranks

TRACES = ROOT / "traces"

MOST_BYTES = 300_000
"""Of a case: a clone of the repository should stay small."""


def record(name: str) -> None:
    """Record one case into `traces/`, in place of an earlier recording of it."""
    how = CASES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name
        if isinstance(how, Simulated):
            _simulate(name, how, folder)
        else:
            _run(how, folder)
        _take_out_names(name, folder)
        _check(folder, temporary)
        target = TRACES / name
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob("r*"):
            old.unlink()
        for new in folder.glob("r*"):
            shutil.copy(new, target / new.name)


def _run(how: Ranks | Rehearsed, folder: Path) -> None:
    if isinstance(how, Rehearsed) and how.virtual:
        from tests.gallery import rehearsed, train

        rehearsed.rehearse(
            train.job(how.case),
            folder,
            command=(OURS, how.case),
            bandwidth=how.bandwidth,
            world_size=how.world_size,
            steps=how.steps,
        )
        return
    if isinstance(how, Rehearsed):
        command, *rest = how.command
        ended = [_python(command, folder, rest)]
    else:
        options = ("--steps", how.steps, "--out", str(folder), "--no-report")
        ended = run_ranks(how.nproc, "-m", "fsdpdoctor", "run", *options, *how.target)
    for one in ended:
        # A rank that is killed on purpose ends the others too.
        if one.status not in (0, 1, -9):
            one.ok()
        if one.status:
            click.echo(f"  ended with {one.status}: {one.stderr.strip()[-200:]}")


def _python(command: str, folder: Path, rest: list[str]) -> Any:
    return run_python(
        "-m", "fsdpdoctor", command, "--out", str(folder), "--no-report", *rest
    ).ok()


def _simulate(name: str, how: Simulated, folder: Path) -> None:
    data = how.make()
    header = RunHeader(
        run_id=name,
        source="simulated",
        world_size=data.header.world_size,
        device=data.header.device,
        fsdpdoctor=__version__,
        notes=("simulated: no run of it was recorded",),
    )
    write_run_header(folder, header)
    writer = RankWriter(folder, replace(data.header, ended="running"))
    for at, step in enumerate(data.steps):
        writer.write_step(step, data.names if at == 0 else ())
    writer.write_header(data.header)
    writer.close()


def _take_out_names(name: str, folder: Path) -> None:
    """Host, process and run id say nothing of the case."""
    for path in folder.glob("r*.json"):
        header = json.loads(path.read_text())
        if path.name == "run.json":
            header["run_id"] = name
        else:
            header["host"] = "host0" if header["host"] else None
            header["pid"] = UNKNOWN
        path.write_text(json.dumps(header, indent=1) + "\n")


def _check(folder: Path, temporary: str) -> None:
    files = list(folder.glob("r*"))
    total = sum(path.stat().st_size for path in files)
    if total > MOST_BYTES:
        raise SystemExit(f"{folder.name}: {total} bytes, at most {MOST_BYTES}")
    words = [str(ROOT), temporary, str(Path.home()) + os.sep, sys.prefix]
    quoted = [f'"{name}"' for name in (socket.gethostname(), getpass.getuser())]
    for path in files:
        for word in words + (quoted if path.suffix == ".json" else []):
            if word.encode() in path.read_bytes():
                raise SystemExit(f"{path.name} of {folder.name} holds {word!r}")


def show(name: str) -> None:
    """Print a case's findings as `diagnosis.toml` would have them."""
    findings, not_judged = judge_all(measure(open_run(TRACES / name)))
    codes = ", ".join(f'"{n.code}"' for n in not_judged)
    click.echo(f"# {name}\nnot_judged = [{codes}]\n")
    for finding in findings:
        click.echo(f"# {finding.summary}")
        click.echo(f'[[expect]]\ncode = "{finding.code}"')
        click.echo(f'severity = "{finding.severity.name.lower()}"')
        click.echo(f"units = {json.dumps(sorted(finding.units))}")
        if finding.phase:
            click.echo(f'phase = "{finding.phase}"')
        click.echo(f"ranks = {list(finding.ranks)}")
        if finding.cost_ns_per_step is not None:
            cost_ms = finding.cost_ns_per_step / 1e6
            click.echo(f"cost_ms = [{0.8 * cost_ms:.3g}, {1.2 * cost_ms:.3g}]")
        click.echo("")


def main() -> None:
    """Record, or only show, some cases or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", choices=[*CASES, []])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--show", action="store_true", help="record nothing")
    args = parser.parse_args()
    for name in CASES if args.all else args.case:
        if not args.show:
            record(name)
        show(name)


if __name__ == "__main__":
    main()
