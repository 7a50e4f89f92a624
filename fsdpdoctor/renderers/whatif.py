"""A replay and its predictions on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fsdpdoctor.quantities import gbps, ms, percent, signed_percent, size
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.simulate.calibration.comm_cost import FREE
from fsdpdoctor.simulate.plans.forecast import Forecast, code_of
from fsdpdoctor.simulate.plans.predict import Prediction, Replay


def show_forecast(
    found: Forecast, console: Console, named: UnitNames, dialect: str = "fully_shard"
) -> None:
    """Print the replay's error, then every prediction with its code; units are called
    as `named` has them.
    """
    _show_replay(found.base, console)
    if found.withheld is not None:
        _print(console, f"\n{named.words(found.withheld)}")
        return
    if not found.predictions:
        console.print("\nNo change was found that makes this run faster or smaller.")
        return
    console.print()
    console.print(_table(found, named))
    for at, prediction in enumerate(found.predictions, 1):
        lines = code_of(found.base, prediction, dialect)
        _show_details(at, prediction, lines, console, named)


def _print(console: Console, line: str) -> None:
    """A line that is never broken: code must run as pasted."""
    console.print(Text(line), soft_wrap=True)


def _show_replay(base: Replay, console: Console) -> None:
    calibration = base.calibration
    _print(
        console,
        f"replay: {ms(base.outcome.step_ns)} against "
        f"{ms(calibration.measured_ns)} measured, mean step "
        f"({signed_percent(base.error)} of it), rank {calibration.rank}, "
        f"{calibration.steps} steps",
    )
    lanes = [
        f"{kind.replace('_', '-')} {signed_percent(error)}"
        for kind, error in base.lane_errors.items()
        if calibration.exposed_ns[kind] or error
    ]
    if lanes:
        _print(console, f"  exposed time, off by share of the step: {', '.join(lanes)}")
    for kind, fit in calibration.fits.items():
        latency = "" if fit.sizes > 1 else ", of one size: the latency is a guess"
        rate = f"+ bytes / {gbps(fit.wire.bytes_per_second)}"
        if fit.wire.bytes_per_second >= FREE:
            rate = "for any size"
        _print(
            console,
            f"  {kind.replace('_', '-')}: {ms(fit.wire.latency_ns)} {rate} "
            f"({fit.count} seen, off by "
            f"{percent(fit.residual_share)} in the median{latency})",
        )


def _table(found: Forecast, named: UnitNames) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("change")
    for name in ("mean step", "+-", "gain", "exposed", "memory"):
        table.add_column(name, justify="right")
    measured = ms(found.base.calibration.measured_ns)
    exposed = ms(found.base.outcome.exposed.total_ns)
    table.add_row("", "as it was", measured, "", "", exposed, "")
    for at, p in enumerate(found.predictions, 1):
        table.add_row(
            str(at),
            p.plan.words(named),
            ms(p.step_ns),
            ms(p.error_ns),
            ms(p.gain_ns),
            ms(sum(p.exposed_ns.values())),
            signed_size(p.memory_cost_bytes),
        )
    return table


def signed_size(count: int) -> str:
    """Bytes more or less than now."""
    return f"+{size(count)}" if count > 0 else size(count)


def _show_details(
    at: int, p: Prediction, lines: str, console: Console, named: UnitNames
) -> None:
    if not lines and not p.assumptions and p.forbidden is None:
        return
    _print(console, f"\n{at}. {p.plan.words(named)}")
    if p.forbidden is not None:
        _print(console, f"   not advised: {named.words(p.forbidden)}")
    for said in p.assumptions:
        _print(console, f"   assumed: {named.words(said)}")
    for line in lines.splitlines():
        _print(console, f"    {line}")
