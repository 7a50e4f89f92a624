"""A plan where a LightningModule, or what Fabric is given, calls `fully_shard`.

The calls are the user's own there: in `configure_model`, or in the `parallelize_fn`
of Fabric's strategy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fsdpdoctor.changes.code import on_roots
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.quoting import quoted
from fsdpdoctor.changes.sharding_code import (
    MESH_IMPORT,
    arguments,
    preamble,
    shard_calls,
)
from fsdpdoctor.changes.snippet import (
    Snippet,
    indented,
    inner,
    own_units,
    settings,
    snippet,
)
from fsdpdoctor.changes.unit_tree import UnitTree

_TOLD = {"replicate", "param_dtype", "reduce_dtype"}
"""Changes of arguments that every call has."""


def lightning(plan: Plan, before: UnitTree, after: UnitTree) -> Iterator[Snippet]:
    """In `configure_model`, which may be called once for each stage."""
    found = _model(after)
    mesh = 'self.device_mesh["data_parallel"]'
    if _anew(plan, before, after):
        yield from snippet(
            "in configure_model, in place of its fully_shard calls",
            [
                "from torch.distributed.fsdp import FSDPModule",
                *found,
                "if not isinstance(model, FSDPModule):",
                *indented(_calls(plan, after, mesh)),
            ],
        )
    elif lines := settings(plan, before, after):
        yield from snippet("at the end of configure_model", [*found, *lines])
    if plan.accumulation is not None:
        yield from snippet(
            "in your LightningModule, with accumulate_grad_batches of the Trainer",
            _on_batch(plan, after, found),
        )


def fabric(plan: Plan, before: UnitTree, after: UnitTree) -> Iterator[Snippet]:
    """In the function that its strategy is given."""
    where = "the parallelize_fn(model, device_mesh) of ModelParallelStrategy"
    if _anew(plan, before, after):
        yield from snippet(
            f"in {where}, in place of its fully_shard calls",
            _calls(plan, after, 'device_mesh["data_parallel"]'),
        )
    else:
        yield from snippet(f"at the end of {where}", settings(plan, before, after))
    if plan.accumulation is None:
        return
    enabled = "False"
    if plan.accumulation != "every":
        enabled = f"micro_batch < {plan.micro_batches or 'micro_batches'} - 1"
    lines = [f"with fabric.no_backward_sync(model, enabled={enabled}):"]
    if plan.accumulation == "keep":
        lines.insert(0, f"last = not ({enabled})")
        lines[1:1] = on_roots(after, "set_reshard_after_backward(last)")
        lines[-1:-1] = on_roots(after, "set_is_last_backward(last)")
    lines.append("    ...  # forward and fabric.backward(loss)")
    yield from snippet("around each micro-batch", lines)


def _anew(plan: Plan, before: UnitTree, after: UnitTree) -> bool:
    return bool(_TOLD & set(plan.changes)) or own_units(before, after)


def _model(tree: UnitTree) -> list[str]:
    """The module that holds the units, whatever attribute it is."""
    paths = [path for unit in inner(tree) for path in unit.modules]
    if not paths:
        return ["model = self.model  # the module that was recorded"]
    ends = sorted({paths[0], paths[-1]})
    names = ", ".join(map(quoted, ends))
    return [
        f"names = {{{names}}}",
        "model = next(",
        "    m for m in self.modules() if names <= dict(m.named_modules()).keys()",
        ")",
    ]


def _calls(plan: Plan, after: UnitTree, mesh: str) -> Iterator[str]:
    given = after
    if plan.replicate is None:
        given = replace(
            after, units=tuple(replace(one, mesh=None) for one in after.units)
        )
    known = arguments(given.units, given)
    config = known.config
    if not any(entry.startswith('"mesh"') for entry in config):
        config = (f'"mesh": {mesh}', *config)
    yield from (
        line
        for line in preamble(known, "fully_shard")
        if line != MESH_IMPORT or plan.replicate is not None
    )
    yield from known.before
    yield f"config = {{{', '.join(config)}}}"
    yield from shard_calls(given.units, known, config=True)
    if given.root is None:
        yield "fully_shard(model, **config)"
    # Policies are in the calls already.
    yield from settings(plan, given, given)


def _on_batch(plan: Plan, tree: UnitTree, found: list[str]) -> Iterator[str]:
    calls = ["set_requires_gradient_sync(last)"]
    if plan.accumulation == "every":
        calls = ["set_requires_gradient_sync(True)"]
    elif plan.accumulation == "keep":
        calls += ["set_reshard_after_backward(last)", "set_is_last_backward(last)"]
    yield "def on_train_batch_start(self, batch, batch_idx):"
    body = [*found]
    if plan.accumulation != "every":
        body += [
            "count = self.trainer.accumulate_grad_batches",
            "last = (batch_idx + 1) % count == 0 or self.trainer.is_last_batch",
        ]
    for call in calls:
        body += on_roots(tree, call)
    yield from indented(body)
