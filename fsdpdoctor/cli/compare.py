"""`fsdpdoctor compare`: what differs between runs, for people and for CI."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.cli.inputs import jobs_option, measure_run
from fsdpdoctor.cli.option_types.amount import Amount
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import never_fail_to_encode
from fsdpdoctor.cli.processes.terminal import Terminal
from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.open_paths import ReadOptions, open_paths, runs_at
from fsdpdoctor.quantities import percent
from fsdpdoctor.renderers.comparison import show_comparison, show_sheets
from fsdpdoctor.renderers.reading.unit_names import UnitNames, names_in
from fsdpdoctor.report import report_of
from fsdpdoctor.report.comparison import (
    Comparison,
    Subject,
    compare,
    encode_comparisons,
)
from fsdpdoctor.report.comparison.sheet import Given, encode_sheets, sheet_of


def _share(context: click.Context, option: click.Parameter, text: str | None) -> object:
    """The value of `--max-regression`: `5%`, or `0.05`."""
    if text is None:
        return None
    try:
        number = text.strip().removesuffix("%")
        share = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 10:
        raise click.BadParameter(f"{text!r} is no share; expected for example 5%")
    return share


@click.command(name="compare")
@click.argument("runs", nargs=-1, required=True, type=GivenPath())
@click.option(
    "--baseline",
    type=GivenPath(exists=True),
    help="A run, or a folder of repeated ones, that RUNS are compared with. Of "
    "several the newest is the first run, and a step has to be longer than all.",
)
@click.option(
    "--max-regression",
    metavar="SHARE",
    callback=_share,
    help="End with status 1 where a median step is longer than the first run's by "
    "more than this, and beyond noise: 5%.",
)
@click.option(
    "--sheet",
    is_flag=True,
    help="Print the fair-benchmark sheet of each run instead; of one run, too.",
)
@click.option(
    "--tokens", type=Amount(), help="For --sheet: tokens of a rank in each step."
)
@click.option("--flops", type=Amount(), help="For --sheet: of a rank in each step.")
@click.option(
    "--peak-tflops",
    type=Amount(),
    help="For --sheet: what a device does in a second.",
)
@click.option(
    "--device", help="For --sheet: the device whose peak it is, as `rehearse --on`."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@jobs_option
def command(
    runs: tuple[Path, ...],
    baseline: Path | None,
    max_regression: float | None,
    sheet: bool,
    tokens: float | None,
    flops: float | None,
    peak_tflops: float | None,
    device: str | None,
    as_json: bool,
    jobs: int | None,
) -> None:
    r"""Show what differs from the first run to each other one: settings, what they
    may be credited with, findings that went and came, and times beyond noise.

    \b
    fsdpdoctor compare fsdpdoctor-runs/before fsdpdoctor-runs/after
    fsdpdoctor compare before after-one-change after-another --json
    fsdpdoctor compare --baseline known-good --max-regression 5% latest
    fsdpdoctor compare --sheet --device h100 latest
    """
    if sheet:
        how = _Sheet(tokens=tokens, flops=flops, peak_tflops=peak_tflops, device=device)
        _print_sheets(runs, how, as_json=as_json, jobs=jobs)
        return
    firsts = (runs[0],) if baseline is None else tuple(_newest_first(baseline))
    others = runs[1:] if baseline is None else runs
    if not others:
        raise UsageError(
            "one run is compared with nothing: name a second, or give --baseline"
        )
    first, *repeats = (_subject(path, jobs) for path in firsts)
    spread_ns = _spread_ns(first, *repeats)
    compared: list[Comparison] = []
    named: list[UnitNames] = []
    for other in (_subject(path, jobs) for path in others):
        compared.append(compare(first, other, spread_ns=spread_ns))
        named.append(names_in(first.report).beside(names_in(other.report)))
    found = tuple(compared)
    never_fail_to_encode()
    if as_json:
        click.echo(encode_comparisons(found), nl=False)
    else:
        console = Terminal()
        for index, each in enumerate(found):
            if index:
                console.print()
            show_comparison(each, console, named[index])
    if max_regression is not None:
        _exit_on(max_regression, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sheet:
    """What is said for a sheet."""

    tokens: float | None
    flops: float | None
    peak_tflops: float | None
    device: str | None

    def given(self, m: Measures) -> Given:
        """In the sheet's words. Raises UsageError."""
        peak = self.peak_tflops
        if peak is None and self.device is not None:
            from fsdpdoctor.rehearsal.device.spec import load_spec

            spec = load_spec(self.device)
            peak = getattr(spec, f"{_precision(m)}_tflops")
        return Given(
            tokens_per_step=self.tokens,
            flops_per_step=self.flops,
            peak_flops=None if peak is None else peak * 1e12,
        )


_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def _precision(m: Measures) -> str:
    """What most of a model is computed in, as device files name it."""
    specs = [rank.header.model for rank in m.ranks]
    autocast = {spec.autocast_dtype for spec in specs if spec is not None}
    of_units = {unit.param_dtype or unit.orig_dtype for unit in m.units}
    for name, short in _PRECISIONS.items():
        if name in autocast | of_units:
            return short
    return "fp32"


def _print_sheets(
    runs: tuple[Path, ...], how: _Sheet, *, as_json: bool, jobs: int | None
) -> None:
    sheets = []
    for path in runs:
        options = ReadOptions(jobs=jobs)
        measures = measure_run(open_paths((path,), options), options)
        sheets.append(sheet_of(str(path), measures, how.given(measures)))
    never_fail_to_encode()
    if as_json:
        click.echo(encode_sheets(sheets), nl=False)
    else:
        show_sheets(sheets, Terminal())


def _newest_first(baseline: Path) -> list[Path]:
    found = runs_at(baseline)
    if not found:
        raise InputError(f"{baseline}: no run here; expected one, or a folder of them")
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _spread_ns(*subjects: Subject) -> int:
    """What repeated runs differ by in their median step."""
    known = [s.measures.median_step_ns for s in subjects]
    steps = [step for step in known if step is not None]
    return max(steps) - min(steps) if steps else 0


def _exit_on(max_regression: float, found: tuple[Comparison, ...]) -> None:
    for each in found:
        if each.regression_share is None:
            raise InputError(
                f"{each.b}: whether its step is longer cannot be told "
                f"({each.not_compared[0] if each.not_compared else 'no whole step'})"
            )
    if any((each.regression_share or 0) > max_regression for each in found):
        click.echo(f"longer by more than {percent(max_regression)}", err=True)
        raise SystemExit(1)


def _subject(path: Path, jobs: int | None) -> Subject:
    how = ReadOptions(jobs=jobs)
    measures = measure_run(open_paths((path,), how), how)
    return Subject(name=str(path), measures=measures, report=report_of(measures))
