"""`fsdpdoctor tune`: try changes in short runs, and keep what proves itself."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import click

from fsdpdoctor import recorder
from fsdpdoctor.changes.plan import save_plan
from fsdpdoctor.cli.inputs import byte_size
from fsdpdoctor.cli.option_types.amount import Amount
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import never_fail_to_encode
from fsdpdoctor.cli.processes.terminal import Terminal
from fsdpdoctor.cli.processes.trial_runs import TrialRuns
from fsdpdoctor.errors import UsageError
from fsdpdoctor.recorder.storage.run_folder import new_location
from fsdpdoctor.renderers.tune import encode_tuning, show_tuning
from fsdpdoctor.storage.regular_file import is_file
from fsdpdoctor.tune import TuneLimits, Tuner, Tuning, Which, candidates_of


@click.command(
    name="tune",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--nproc-per-node", "--nproc_per_node", help="Ranks on this node.")
@click.option(
    "--launcher",
    help="What starts the ranks instead, followed by: -m fsdpdoctor run ... For "
    'example "torchrun --nnodes 2 ..." or "srun python".',
)
@click.option(
    "--max-runs", type=int, default=12, show_default=True, help="Runs in all."
)
@click.option("--minutes", type=Amount(), help="Start no run that would end later.")
@click.option(
    "--steps",
    type=click.IntRange(min=4),
    default=12,
    show_default=True,
    help="Steps of a run.",
)
@click.option("--timeout", type=Amount(), metavar="SECONDS", help="Of one run.")
@click.option(
    "--same-bits",
    is_flag=True,
    help="Try only changes that promise the same parameters to the bit.",
)
@click.option(
    "--restart-only",
    is_flag=True,
    help="Try no change that run --autotune makes in a running job.",
)
@click.option(
    "--memory", type=byte_size, metavar="SIZE", help="At most so much, such as 80GiB."
)
@click.option("--out", type=GivenPath(), help="Folder of the runs.")
@click.option("--save", type=GivenPath(), help="Write the plan to keep here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-m", "is_module", is_flag=True, help="Run a module, as python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    nproc_per_node: str | None,
    launcher: str | None,
    max_runs: int,
    minutes: float | None,
    steps: int,
    timeout: float | None,
    same_bits: bool,
    restart_only: bool,
    memory: int | None,
    out: Path | None,
    save: Path | None,
    as_json: bool,
    is_module: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    r"""Try changes to SCRIPT in short runs, and say which one to keep.

    The script runs as it is, once; from that run the changes that promise most are
    predicted, applied and measured, in turns with the script as it is. Nothing in
    the script changes. Each run ends after --steps optimizer steps.

    \b
    fsdpdoctor tune --nproc-per-node 8 train.py --lr 1e-4
    fsdpdoctor tune --nproc-per-node 8 --minutes 20 --save plan.json train.py
    fsdpdoctor tune --launcher "srun -N 2 -n 16 python" train.py
    """
    recorder.require_torch()
    if "RANK" in os.environ:
        raise UsageError("tune starts the ranks itself: call it outside torchrun")
    if not is_module and not is_file(Path(script)):
        raise UsageError(f"cannot run {script}: there is no such file")
    budget = TuneLimits(
        max_runs=max_runs, seconds=None if minutes is None else minutes * 60
    )
    options = ["--every", "1", "--stop-after", str(steps), "--check-bits"]
    runs = TrialRuns(
        launch=_launch(nproc_per_node, launcher),
        options=[*options, "--no-report"],
        script=[*["-m"] * is_module, script, *args],
        folder=new_location(out, f"tune-{Path(script).stem}").folder,
        timeout_s=timeout,
        say=lambda line: click.echo(line, err=True),
    )
    which = Which(same_bits=same_bits, restart_only=restart_only)
    tuning = _tune(runs, budget, which, memory)
    never_fail_to_encode()
    if as_json:
        click.echo(encode_tuning(tuning), nl=False)
    else:
        show_tuning(tuning, Terminal())
    _save(tuning, save or runs.folder / "plan.json")


def _launch(nproc: str | None, launcher: str | None) -> list[str]:
    if (nproc is None) == (launcher is None):
        raise UsageError(
            "say how the ranks are started: --nproc-per-node N, or --launcher COMMAND"
        )
    if launcher is not None:
        return [*shlex.split(launcher), "-m", "fsdpdoctor", "run"]
    start = [sys.executable, "-m", "fsdpdoctor", "run"]
    return [*start, "--nproc-per-node", str(nproc)]


def _tune(
    runs: TrialRuns, budget: TuneLimits, which: Which, memory: int | None
) -> Tuning:
    tuner = Tuner(runs.run, time.monotonic, budget)
    tuner.measure_baseline()
    base = runs.first
    assert base is not None  # the baseline was measured
    limit = memory or base.calibration.constraints.device_bytes
    candidates = candidates_of(base, which, limit)
    return tuner.tune(candidates, None if base.usable else base.why_withheld)


def _save(tuning: Tuning, path: Path) -> None:
    kept = tuning.kept
    if kept is None or kept.candidate is None:
        return
    save_plan(kept.candidate.plan, path, kept.candidate.apply)
    click.echo(
        f"wrote {path}; use it with: fsdpdoctor run --apply {path} ...", err=True
    )
