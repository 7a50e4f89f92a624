"""`fsdpdoctor check`: judge a script's sharding before any device is paid for."""

from __future__ import annotations

import ast
import io
import tempfile
from pathlib import Path

import click
from rich.console import Console

from fsdpdoctor import recorder, redact
from fsdpdoctor.changes.fsdp1_migration import Migration, migration
from fsdpdoctor.cli.inputs import measure_run
from fsdpdoctor.cli.option_types.amount import Amount
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import (
    exit_on,
    fail_on_option,
    never_fail_to_encode,
    print_text,
)
from fsdpdoctor.cli.processes.first_steps import FirstSteps, rehearse_first_steps
from fsdpdoctor.cli.processes.terminal import Terminal
from fsdpdoctor.errors import UsageError
from fsdpdoctor.open_paths import DEFAULT, open_paths
from fsdpdoctor.renderers.check import show_check
from fsdpdoctor.renderers.sarif import findings_as_sarif
from fsdpdoctor.renderers.text import PLAIN_WIDTH
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.report.check import Check, encode_check, untimed
from fsdpdoctor.run import is_run_folder
from fsdpdoctor.storage.regular_file import is_file

STEPS = 3
"""The first is the second's warm-up; a prefetch list acts from the second on."""

OURS = "fsdpdoctor: "
FITS = ("fits: ", "out of memory")
"""How the rehearsal's word on memory begins."""

FACTORY = """\
import sys

sys.path[0] = {cwd!r}
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from {module} import {factory}

dist.init_process_group("nccl")
model = {factory}()
roots = [part for part in model.modules() if isinstance(part, FSDPModule)]
if not roots:
    raise SystemExit("{module}:{factory} calls no fully_shard: `fsdpdoctor plan "
                     "{module}:{factory}` says what memory each way to shard needs")
roots[0].forward = lambda: None  # its hooks alone: what the model takes is not known
roots[0]()
"""
"""The script of module:factory: no step is trained."""


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--world-size", type=click.IntRange(min=2), default=8, show_default=True)
@click.option("--on", default="h100", show_default=True, metavar="DEVICE")
@click.option("--mesh", help="Replicas and shards, as in 8x64: HSDP.")
@click.option(
    "--limit",
    type=Amount(min=1),
    default=60.0,
    show_default=True,
    help="Seconds that the first steps may take.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json", "sarif"]),
    default="text",
    show_default=True,
)
@click.option("--out", type=GivenPath(dir_okay=False))
@fail_on_option
@click.option("-m", "is_module", is_flag=True, help="Run a module, as python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    world_size: int,
    on: str,
    mesh: str | None,
    limit: float,
    format_: str,
    out: Path | None,
    fail_on: str | None,
    is_module: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    r"""Judge how SCRIPT shards its model, without a GPU and in seconds.

    The script (or module:factory, which makes the model) runs its first steps as rank
    0 of the job, on a modelled device, with tensors that have no memory. What is judged
    needs no timing: units, settings, dtypes, meshes, parameters that nothing shards,
    memory. A script of FSDP1 gets the code of FSDP2. `rehearse --on` tells times, too.

    \b
    fsdpdoctor check train.py --config small.yaml
    fsdpdoctor check --world-size 64 --mesh 8x8 --fail-on critical train.py
    fsdpdoctor check --format sarif --out check.sarif train.py
    """
    never_fail_to_encode()
    recorder.require_torch()
    job = ["--on", on, "--steps", f"0:{STEPS}", "--stop-after", str(STEPS)]
    job += ["--mesh", mesh] if mesh else ["--world-size", str(world_size)]
    with tempfile.TemporaryDirectory(prefix="fsdpdoctor-check-") as folder:
        target, text = _target(script, is_module, Path(folder))
        run = Path(folder) / "run"
        options = [*job, "--no-report", "--out", str(run)]
        done = rehearse_first_steps([*options, *target, *args], Path(folder), limit)
        check = _judged(script, run, done, text)
    _print(check, text, format_, out)
    if not _trained(check.report) and check.migration is None:
        raise SystemExit(2)
    exit_on(fail_on, check.findings)


def _target(script: str, is_module: bool, folder: Path) -> tuple[list[str], str | None]:
    """What is rehearsed, and its source where it is a file."""
    if is_module:
        return ["-m", script], None
    path = Path(script)
    if is_file(path):
        return [script], path.read_text(errors="replace")
    module, colon, factory = script.partition(":")
    names = [*module.split("."), factory]
    if not colon or not all(name.isidentifier() for name in names):
        raise UsageError(f"cannot check {script}: there is no such file")
    driver = folder / "factory.py"
    driver.write_text(
        FACTORY.format(module=module, factory=factory, cwd=str(Path.cwd()))
    )
    return [str(driver)], None


def _judged(script: str, run: Path, done: FirstSteps, text: str | None) -> Check:
    report = None
    if is_run_folder(run):
        opened = open_paths([run])
        report = untimed(report_of(measure_run(opened, DEFAULT), opened))
        if not _trained(report) and not report.findings:
            report = None
    ours = [line.removeprefix(OURS) for line in done.said if line.startswith(OURS)]
    return Check(
        script=script,
        report=report,
        memory=None
        if report is None
        else next((line for line in ours if line.startswith(FITS)), None),
        ended=_ended(done, ours, seen=_trained(report)),
        migration=_migration(text),
        seconds=done.seconds,
    )


def _trained(report: Report | None) -> bool:
    """Whether there was something to judge, beside how the script ended."""
    return report is not None and bool(report.units or report.run.steps)


def _ended(done: FirstSteps, ours: list[str], *, seen: bool) -> str | None:
    """Why there are no steps, where that is so."""
    if done.status is None:
        return (
            f"its first {STEPS} steps took more than {done.seconds:.0f} s; --limit "
            "gives them longer"
        )
    if done.status == 0:
        return None if seen else "it trained no model that fully_shard has sharded"
    theirs = [line for line in done.said if not line.startswith(OURS)]
    last = (theirs or ours or ["it said nothing"])[-1]
    return f"it ended with status {done.status}: {redact.text(last)}"


def _migration(text: str | None) -> Migration | None:
    try:
        return migration(text) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None  # the run has said so


def _print(check: Check, text: str | None, format_: str, out: Path | None) -> None:
    if format_ == "sarif":
        line = _sharded_at(text)
        print_text(findings_as_sarif(check.findings, check.script, line), out)
    elif format_ == "json":
        print_text(encode_check(check), out)
    elif out is None:
        show_check(check, Terminal())
    else:
        shown = io.StringIO()
        show_check(check, Console(file=shown, width=PLAIN_WIDTH, color_system=None))
        print_text(shown.getvalue(), out)


def _sharded_at(text: str | None) -> int:
    """The line of the first `fully_shard(...)`; 1 where there is none to be seen."""
    try:
        tree = ast.parse(text or "")
    except (SyntaxError, ValueError, RecursionError):
        return 1
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] == "fully_shard"
    ]
    return min(lines, default=1)
