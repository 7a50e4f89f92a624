"""`fsdpdoctor plan`: does it fit, and how sharded, before anything runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from fsdpdoctor.cli.inputs import byte_size
from fsdpdoctor.cli.modelled.sweep import SweepOptions, sweep_script
from fsdpdoctor.cli.option_types.amount import Amount
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import never_fail_to_encode
from fsdpdoctor.cli.processes.terminal import Terminal
from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import DEFAULT_WIRE
from fsdpdoctor.planning.memory_plan import (
    OPTIMIZERS,
    MemoryBudget,
    Training,
    budgets,
    cost_of_tokens,
)
from fsdpdoctor.planning.model_shape import (
    ModelShape,
    shape_of_config,
    shape_of_count,
    shape_of_params,
)
from fsdpdoctor.renderers.memory_plan import Costs, show_budgets
from fsdpdoctor.storage.regular_file import is_file, is_folder

BILLION = 10**9


@click.command(name="plan")
@click.argument("model")
@click.argument("args", nargs=-1)
@click.option("--layers", type=int, metavar="N", help="Blocks, for a model by count.")
@click.option("--world-size", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--replicas", type=click.IntRange(min=1), default=1, help="More: HSDP.")
@click.option("--batch", type=int, metavar="N", help="Sequences in a micro-batch.")
@click.option("--sequence", type=int, metavar="N", help="Tokens in a sequence.")
@click.option("--micro-batches", type=click.IntRange(min=1), default=1)
@click.option(
    "--stored-dtype", help="Of sharded parameters: a factory's own, else float32."
)
@click.option("--param-dtype", default="bfloat16", show_default=True)
@click.option("--reduce-dtype", default="float32", show_default=True)
@click.option(
    "--optimizer",
    type=click.Choice(list(OPTIMIZERS)),
    default="adamw",
    show_default=True,
)
@click.option("--eager-attention", is_flag=True, help="Attention weights are kept.")
@click.option("--fits", type=byte_size, metavar="SIZE", help="Which fit, 80GiB.")
@click.option("--tokens-per-second", type=Amount(), help="Of one device, measured.")
@click.option("--price", type=Amount(), help="Of one device's hour.")
@click.option("--on", metavar="DEVICE", help="Rehearse a script on it: sweep.")
@click.option(
    "--sweep",
    metavar="WHAT",
    help="What is varied: world=8..64,micro-batch=1..8,reshard,wrap,hsdp,"
    "checkpointing, and settings of the script's own. Values: A..B doubles, A/B/C.",
)
@click.option("--bandwidth", default=DEFAULT_WIRE, help="Links, as for rehearse.")
@click.option(
    "--nproc-per-node", type=click.IntRange(min=1), default=8, show_default=True
)
@click.option("--host", type=Amount(min=0.01), default=1.0, metavar="FACTOR")
@click.option("--jobs", type=click.IntRange(min=1), help="Rehearsals at once.")
@click.option(
    "--out",
    type=GivenPath(file_okay=False),
    help="Folder of the sweep: one that was broken off is gone on with.",
)
@click.option("-m", "is_module", is_flag=True, help="Sweep a module, as python -m.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    args: tuple[str, ...],
    on: str | None,
    sweep: str | None,
    bandwidth: str,
    nproc_per_node: int,
    host: float,
    jobs: int | None,
    out: Path | None,
    is_module: bool,
    layers: int | None,
    fits: int | None,
    tokens_per_second: float | None,
    price: float | None,
    eager_attention: bool,
    as_json: bool,
    stored_dtype: str | None,
    param_dtype: str,
    **options: Any,
) -> None:
    r"""Budget the memory of each rank for MODEL, or sweep a script with --on.

    MODEL is a Hugging Face config.json, a number of parameters with --layers, or
    module:factory, a function without arguments that makes the model (it runs on the
    meta device and needs torch).

    \b
    fsdpdoctor plan config.json --world-size 64 --batch 1 --sequence 4096
    fsdpdoctor plan 70B --layers 80 --world-size 128 --fits 80GiB
    fsdpdoctor plan train:make_model --world-size 8 --replicas 2

    With --on, MODEL is a training script, which is rehearsed on a modelled device in
    each configuration of --sweep. ARGS are the script's; {micro-batch} in them is
    where a value goes, else its own options and variables are looked for.

    \b
    fsdpdoctor plan train.py --on h100 --sweep world=8..64,micro-batch=1..8,reshard
    fsdpdoctor plan train.py --on h100 --sweep micro-batch=1/2 -- --bs {micro-batch}
    """
    if on is not None:
        sweep_script(
            SweepOptions(
                script=model,
                args=args,
                is_module=is_module,
                on=on,
                sweep=sweep,
                world_size=options["world_size"],
                bandwidth=bandwidth,
                node_size=nproc_per_node,
                host=host,
                jobs=jobs,
                out=out,
                price=price,
                as_json=as_json,
            )
        )
        return
    if sweep is not None or is_module or args or model.endswith(".py"):
        raise UsageError(
            "a script is swept on a modelled device: say which, such as --on h100"
        )
    if (options["batch"] is None) != (options["sequence"] is None):
        raise UsageError("--batch and --sequence go together: activations need both")
    shape = _shape(model, layers)
    how = Training(
        stored_dtype=stored_dtype or shape.dtype or "float32",
        compute_dtype=param_dtype,
        flash_attention=not eager_attention,
        **options,
    )
    found = {
        checkpointing: budgets(shape, replace(how, checkpointing=checkpointing))
        for checkpointing in (False, True)
    }
    costs = None
    if tokens_per_second is not None:
        hours, money = cost_of_tokens(BILLION, tokens_per_second, how.world_size, price)
        costs = Costs(hours=hours, money=money)
    elif price is not None:
        raise UsageError("--price needs --tokens-per-second: a cost needs a speed")
    never_fail_to_encode()
    if as_json:
        click.echo(_encode(shape, found, fits, costs))
        return
    console = Terminal()
    show_budgets(shape, how, found, console, fits=fits, costs=costs)


def _shape(model: str, layers: int | None) -> ModelShape:
    if model.endswith(".json") or is_file(Path(model)):
        return shape_of_config(Path(model))
    if is_folder(Path(model)):
        return shape_of_config(Path(model) / "config.json")
    if ":" in model:
        from fsdpdoctor.recorder import require_torch

        require_torch()
        from fsdpdoctor.planning.meta_model import meta_model

        made = meta_model(model)
        return shape_of_params(model, made.params, made.blocks)
    if layers is None:
        # Checks the number first: its error is the more helpful one.
        shape_of_count(model, 1)
        raise UsageError(
            f"{model} parameters in how many blocks? Give --layers: what is gathered "
            "at once depends on it"
        )
    return shape_of_count(model, layers)


def _encode(
    shape: ModelShape,
    found: dict[bool, list[MemoryBudget]],
    fits: int | None,
    costs: Costs | None,
) -> str:
    content = {
        "schema_version": 1,
        "model": shape.name,
        "parameters": shape.numel,
        "trainable_parameters": shape.trainable_numel,
        "units": len(shape.blocks) + bool(shape.root),
        "assumed": shape.assumed,
        "budgets": [
            {
                **asdict(budget),
                "checkpointing": checkpointing,
                "total": budget.total,
                "complete": budget.activations is not None,
                "fits": None if fits is None else budget.total <= fits,
            }
            for checkpointing, each in found.items()
            for budget in each
        ],
        "per_billion_tokens": None if costs is None else asdict(costs),
    }
    return json.dumps(content, indent=2)
