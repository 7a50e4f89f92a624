"""`fsdpdoctor whatif`: what a change would give, before it is made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fsdpdoctor.advice import memory_cost, told_costs
from fsdpdoctor.changes.frameworks import DIALECTS
from fsdpdoctor.changes.plan import ACCUMULATION, ALL, Plan, load_plan, save_plan
from fsdpdoctor.cli.inputs import byte_size, jobs_option, measure_run
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import never_fail_to_encode
from fsdpdoctor.cli.processes.terminal import Terminal
from fsdpdoctor.detectors import judge_all
from fsdpdoctor.errors import FsdpDoctorError, UsageError
from fsdpdoctor.finding import Finding
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.renderers.reading.unit_names import names_on
from fsdpdoctor.renderers.whatif import show_forecast
from fsdpdoctor.simulate.plans.forecast import (
    Forecast,
    encode_forecast,
    forecast,
    replay_run,
)
from fsdpdoctor.simulate.plans.predict import Replay
from fsdpdoctor.simulate.plans.search import search
from fsdpdoctor.simulate.plans.settings import settings


@click.command(name="whatif")
@click.argument("run", type=GivenPath())
@click.option(
    "--prefetch",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="K",
    help="Explicit lists, K units ahead, in both directions; several are compared.",
)
@click.option(
    "--forward-prefetch", type=click.IntRange(min=0), metavar="K", help="Only forward."
)
@click.option(
    "--backward-prefetch", type=click.IntRange(min=0), metavar="K", help="Only back."
)
@click.option(
    "--reshard",
    multiple=True,
    metavar="[UNIT=]true|false|N",
    help="reshard_after_forward, of every unit but the root or of one.",
)
@click.option("--merge", type=int, metavar="K", help="K neighbours as one unit.")
@click.option(
    "--split-root", is_flag=True, help="Embedding, and norm and head, as own units."
)
@click.option("--wrap", metavar="CLASS", help="A unit for each block of this class.")
@click.option("--param-dtype", metavar="DTYPE", help="For example bfloat16.")
@click.option("--reduce-dtype", metavar="DTYPE", help="For example float32.")
@click.option("--world-size", type=int, metavar="N", help="On so many ranks.")
@click.option("--mesh", metavar="RxS", help="R replicas of a shard over S ranks.")
@click.option(
    "--bandwidth", metavar="LINKS", help="Links, as for rehearse: intra=nvlink4,ib400."
)
@click.option(
    "--separate-reduce-scatter-group", is_flag=True, help="Its own communicator."
)
@click.option("--max-input-buffers", type=int, metavar="K", help="Of reduce-scatters.")
@click.option(
    "--accumulation",
    type=click.Choice(ACCUMULATION),
    help="Reduce after every micro-batch, only the last, or keep weights as well.",
)
@click.option("--micro-batches", type=int, metavar="N", help="In each step.")
@click.option(
    "--async/--no-async",
    "async_op",
    default=None,
    help="Unshards that do not block; with --prefetch on CPU they are meant anyway.",
)
@click.option("--plan", type=GivenPath(), help="A saved plan.")
@click.option("--search", "searching", is_flag=True, help="Find the changes worth it.")
@click.option(
    "--memory",
    type=byte_size,
    metavar="SIZE",
    help="With --search: at most so much, for example 80GiB.",
)
@click.option("--save", type=GivenPath(), help="Write the best plan.")
@click.option(
    "--code",
    "dialect",
    type=click.Choice(DIALECTS),
    default=DIALECTS[0],
    show_default=True,
    help="What shards your model: the code is for that.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@jobs_option
def command(
    run: Path,
    searching: bool,
    memory: int | None,
    save: Path | None,
    dialect: str,
    as_json: bool,
    jobs: int | None,
    **options: Any,
) -> None:
    r"""Say what a change would give RUN, with its error, and the code for it.

    The run is first replayed as it was; how far off that is stands above every
    prediction. Options together are one change.

    \b
    fsdpdoctor whatif fsdpdoctor-runs/latest --search
    fsdpdoctor whatif latest --prefetch 1 --prefetch 2
    fsdpdoctor whatif latest --mesh 8x64 --bandwidth shard=nvlink4,replicate=ib400
    fsdpdoctor whatif latest --reshard false --save plan.json
    fsdpdoctor whatif latest --reshard false --code accelerate
    """
    how = ReadOptions(jobs=jobs)
    opened = open_paths((run,), how)
    measures = measure_run(opened, how)
    base = replay_run(opened, measures)
    plans = _plans(base, options)
    found = forecast(base, plans)
    if searching and base.usable:
        best = tuple(search(base, memory or base.calibration.constraints.device_bytes))
        found = replace(found, predictions=(*found.predictions, *best))
    if found.predictions:
        found = _as_advised(found, judge_all(measures)[0])
    if save is not None:
        _save(found, save)
    never_fail_to_encode()
    if as_json:
        click.echo(encode_forecast(found, dialect), nl=False)
    else:
        show_forecast(found, Terminal(), names_on(measures.ranks[0]), dialect)


def _as_advised(found: Forecast, findings: Sequence[Finding]) -> Forecast:
    """With the memory that advice to do the same says, where it knows."""
    advice = (one for finding in findings for one in finding.advice)
    told = told_costs(found.base, advice)
    costs = [memory_cost(told, one) for one in found.predictions]
    predictions = tuple(
        one if cost is None else replace(one, memory_cost_bytes=cost)
        for one, cost in zip(found.predictions, costs, strict=True)
    )
    return replace(found, predictions=predictions)


def _plans(base: Replay, options: dict[str, Any]) -> list[Plan]:
    """The plans that the options ask for: one, or one for each --prefetch."""
    step = base.calibration.step
    plan = load_plan(options["plan"]) if options["plan"] else Plan()
    given: dict[str, Any] = {
        name: options[name]
        for name in (
            "forward_prefetch",
            "backward_prefetch",
            "merge",
            "wrap",
            "param_dtype",
            "reduce_dtype",
            "world_size",
            "bandwidth",
            "max_input_buffers",
            "accumulation",
            "micro_batches",
        )
        if options[name] is not None
    }
    if options["split_root"]:
        given["split_root"] = True
    if options["separate_reduce_scatter_group"]:
        given["separate_reduce_scatter_group"] = True
    if options["reshard"]:
        given["reshard_after_forward"] = dict(map(_policy, options["reshard"]))
    if options["mesh"]:
        given |= _mesh(options["mesh"])
    if options["async_op"] is not None:
        given["unshard_async_op"] = options["async_op"]
    depths = options["prefetch"]
    lists = depths or {"forward_prefetch", "backward_prefetch"} & set(given)
    if lists and step.blocking:
        # Without it a prefetched gather blocks the host at once, and hides nothing.
        given.setdefault("unshard_async_op", True)
    plan = replace(plan, **given)
    if depths:
        return [replace(plan, forward_prefetch=k, backward_prefetch=k) for k in depths]
    return [plan] if plan.changes else []


def _policy(text: str) -> tuple[str, bool | int]:
    unit, _, value = text.rpartition("=")
    if value.lower() in ("true", "false"):
        return unit or ALL, value.lower() == "true"
    if value.isdecimal() and len(value) < 10:
        return unit or ALL, int(value)
    raise UsageError(
        f"--reshard {text!r} is no policy; expected true, false or a number of ranks, "
        "perhaps of one unit: layers.3=false"
    )


def _mesh(text: str) -> dict[str, int]:
    found = re.fullmatch(r"(\d{1,9})x(\d{1,9})", text)
    if found is None:
        raise UsageError(f"--mesh {text!r} is no mesh; expected RxS, for example 8x64")
    replicas, shard = int(found[1]), int(found[2])
    return {"replicate": replicas, "world_size": replicas * shard}


def _save(found: Forecast, path: Path) -> None:
    if not found.predictions:
        raise UsageError(
            found.withheld
            or "there is no plan to save: ask for a change, or for --search"
        )
    best = max(found.predictions, key=lambda p: p.gain_ns)
    try:
        constraints = found.base.calibration.constraints
        save_plan(best.plan, path, settings(best.plan, best.step, constraints))
    except OSError as error:
        raise FsdpDoctorError(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"wrote {path}: {best.plan}", err=True)
