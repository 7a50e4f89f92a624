"""A change that was predicted, as a command line that tries it on the run's script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fsdpdoctor.changes.plan import ALL

_FLAGS = {
    "forward_prefetch": "--forward-prefetch",
    "backward_prefetch": "--backward-prefetch",
    "reshard_after_forward": "--reshard",
    "merge": "--merge",
    "split_root": "--split-root",
    "wrap": "--wrap",
    "param_dtype": "--param-dtype",
    "reduce_dtype": "--reduce-dtype",
    "separate_reduce_scatter_group": "--separate-reduce-scatter-group",
    "max_input_buffers": "--max-input-buffers",
    "accumulation": "--accumulation",
    "micro_batches": "--micro-batches",
    "unshard_async_op": "--async",
}
"""Options of `whatif`, by a plan's field; a plan with another is told as code only."""


def try_command(
    run: Path, change: Mapping[str, object], command: Sequence[str]
) -> str | None:
    """Two commands: one that writes the plan, one that runs the script with it.

    None where no option of `whatif` says what the change is.
    """
    if not change or not set(change) <= set(_FLAGS):
        return None
    options = [word for name, value in change.items() for word in _words(name, value)]
    asked = shlex.join(["fsdpdoctor", "whatif", str(run), *options])
    script = shlex.join(command) if command else "train.py"
    return (
        f"{asked} --save plan.json\n"
        f"fsdpdoctor run --apply plan.json {script}  # with the options it had"
    )


def _words(name: str, value: object) -> Iterator[str]:
    flag = _FLAGS[name]
    if name == "unshard_async_op":
        yield flag if value else "--no-async"
    elif isinstance(value, Mapping):
        for unit, kept in value.items():
            said = str(kept).lower()
            yield from (flag, said if unit == ALL else f"{unit}={said}")
    elif value is True:
        yield flag
    elif value is not False and value is not None:
        yield from (flag, str(value))
