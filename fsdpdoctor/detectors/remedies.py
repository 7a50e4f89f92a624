"""Advice that several detectors give, as code for the user's own module names.

Each function answers None (or nothing) where its advice does not apply: the torch
that ran has no such call, or recomputation forbids it. Code is pasted after the
model is sharded; `model` is the root module. `change` says the same as the code, in
the simulator's words: what is predicted is what is pasted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.tables import (
    all_units,
    backward_order,
    first_path,
    forward_order,
    on_cpu,
    recompute_seen,
)
from fsdpdoctor.finding import Advice
from fsdpdoctor.schema import ROOT, UNKNOWN

MODEL = "# `model` is your root module, the one that fully_shard() was called on last."

SINCE = {
    "set_modules_to_forward_prefetch": "2.6",
    "set_modules_to_backward_prefetch": "2.6",
    "set_requires_gradient_sync": "2.6",
    "set_requires_all_reduce": "2.6",
    "set_reshard_after_backward": "2.6",
    "set_is_last_backward": "2.6",
    "set_unshard_in_backward": "2.6",
    "unshard": "2.6",
    "reshard": "2.6",
    "_set_unshard_async_op": "2.6",
    "set_reshard_after_forward": "2.8",
    "set_reduce_scatter_unused_params": "2.13",
    "set_separate_reduce_scatter_group": "2.13",
    "set_reduce_scatter_max_input_buffers": "2.13",
}
"""The torch release by which each FSDPModule method is there: `docs/detectors.md` names
the pull requests; the last three were seen in 2.13."""

RECOMPUTE_REASON = (
    "No forward prefetch is advised: activations are recomputed in backward, where a "
    "forward prefetch would gather units whose backward is already done."
)


def has(m: Measures, *calls: str) -> bool:
    """Whether the torch that ran has some FSDPModule methods, or may have them."""
    return not m.run.available or all(call in m.run.available for call in calls)


def needs_torch(m: Measures, *calls: str) -> str:
    """What to add to a text where it is not known which torch ran."""
    if m.run.available:
        return ""
    newest = max((SINCE[c] for c in calls), key=lambda v: tuple(map(int, v.split("."))))
    return f" (needs torch {newest} or newer)"


def module(fqn: str) -> str:
    """The expression for a unit's module."""
    return "model" if fqn == ROOT else f'model.get_submodule("{first_path(fqn)}")'


def listing(name: str, fqns: Sequence[str]) -> str:
    """A Python list of module paths, one line each where there are many."""
    paths = [f'"{first_path(fqn)}"' for fqn in fqns]
    if sum(map(len, paths)) < 60:
        return f"{name} = [{', '.join(paths)}]"
    return "\n".join([f"{name} = [", *(f"    {path}," for path in paths), "]"])


def largest_bytes(m: Measures, fqns: Iterable[str]) -> int | None:
    """The largest gathered unit among some, None where sizes are not known."""
    specs = all_units(m)
    sizes = [specs[fqn].unsharded_bytes for fqn in fqns if fqn in specs]
    return max((s for s in sizes if s != UNKNOWN), default=None)


def prefetch_chain(m: Measures, phase: str) -> str | None:
    """Code that makes every unit prefetch the one that runs next."""
    forward = phase == "forward"
    order = forward_order(m) if forward else backward_order(m)
    if len(order) < 2:
        return None
    rest = [fqn for fqn in order if fqn != ROOT]
    start = "[model]" if ROOT in order else "[]"
    return "\n".join(
        [
            MODEL,
            f"# Units in the order in which their {phase}s ran.",
            listing("order", rest),
            f"units = {start} + [model.get_submodule(name) for name in order]",
            "for unit, following in zip(units, units[1:]):",
            f"    unit.set_modules_to_{phase}_prefetch([following])",
        ]
    )


def prefetch(m: Measures, phase: str) -> Advice | None:
    """Explicit prefetch of the next unit in one phase."""
    call = f"set_modules_to_{phase}_prefetch"
    if not has(m, call) or (phase == "forward" and recompute_seen(m)):
        return None
    code = prefetch_chain(m, phase)
    if code is None:
        return None
    return Advice(
        text=f"Prefetch the next unit explicitly in {phase}{needs_torch(m, call)}; one "
        "more gathered unit is alive at a time.",
        code=code,
        memory_cost_bytes=largest_bytes(m, forward_order(m)),
        change={f"{phase}_prefetch": 1},
    )


def clear_prefetch(m: Measures, phase: str, owners: Sequence[str]) -> Advice | None:
    """No prefetch lists any more on some units."""
    call = f"set_modules_to_{phase}_prefetch"
    if not owners or not has(m, call):
        return None
    return Advice(
        text=f"Clear the {phase} prefetch lists of these units{needs_torch(m, call)}.",
        code="\n".join(
            [
                MODEL,
                listing("listed", owners),
                "for name in listed:",
                f"    model.get_submodule(name).{call}([])",
            ]
        ),
        memory_cost_bytes=0,
        change={f"{phase}_prefetch_of": dict.fromkeys(owners, 0)},
    )


def host_overlap(m: Measures, phase: str) -> Advice | None:
    """On CPU: all-gathers that return a handle, and an explicit order for them."""
    specs = all_units(m)
    if not has(m, "_set_unshard_async_op"):
        return None
    lists = f"{phase}_prefetch"
    ready = any(spec.unshard_async_op for spec in specs.values())
    listed = any(getattr(spec, lists) for spec in specs.values())
    # FSDP2 prefetches in backward by itself; in forward it needs the lists.
    chain = None if listed or phase == "backward" else prefetch(m, phase)
    if ready and chain is None:
        return None
    lines = [] if ready else [MODEL, "model._set_unshard_async_op(True)"]
    change: dict[str, object] = {} if ready else {"unshard_async_op": True}
    if chain is not None and chain.code is not None:
        lines += chain.code.splitlines()[1 if lines else 0 :]
        change |= chain.change or {}
    return Advice(
        text="On CPU the all-gather blocks the host unless it is asked for a handle"
        + (" and the next unit is prefetched explicitly" if chain else "")
        + needs_torch(m, "_set_unshard_async_op")
        + ".",
        code="\n".join(lines),
        memory_cost_bytes=largest_bytes(m, forward_order(m)),
        change=change,
    )


def keep_unsharded(m: Measures, units: Sequence[str]) -> Advice | None:
    """No second gather: some units stay gathered from forward to backward."""
    specs = all_units(m)
    kept = [
        fqn
        for fqn, spec in specs.items()
        if fqn in units and spec.reshard_after_forward not in (False, None)
    ]
    if not kept or not has(m, "set_reshard_after_forward"):
        return None
    sizes = [specs[fqn].unsharded_bytes for fqn in kept]
    names = [fqn for fqn in kept if fqn != ROOT]
    lines = [MODEL]
    if names:
        lines += [
            listing("keep", names),
            "for name in keep:",
            "    unit = model.get_submodule(name)",
            "    unit.set_reshard_after_forward(False, recurse=False)",
        ]
    if ROOT in kept:
        lines.append("model.set_reshard_after_forward(False, recurse=False)")
    return Advice(
        text="Keep these units gathered from forward to backward: no all-gather in "
        f"backward{needs_torch(m, 'set_reshard_after_forward')}.",
        code="\n".join(lines),
        memory_cost_bytes=None if UNKNOWN in sizes else sum(sizes),
        change={"reshard_after_forward": dict.fromkeys(kept, False)},
    )


def early_unshard(m: Measures) -> Advice | None:
    """The step's first gather under the data loading."""
    if not has(m, "unshard"):
        return None
    return Advice(
        text="Issue the step's first all-gather before fetching the next batch"
        f"{needs_torch(m, 'unshard')}; it gathers the root unit only.",
        code="\n".join(
            [
                f"{MODEL} Before next(batches):",
                "model.unshard(async_op=True)",
            ]
        ),
        memory_cost_bytes=0,
    )


def separate_reduce_group(m: Measures) -> Advice | None:
    """Reduce-scatters on a communicator of their own."""
    if on_cpu(m) or not has(m, "set_separate_reduce_scatter_group"):
        return None
    return Advice(
        text="Try a communicator of its own for the reduce-scatter"
        f"{needs_torch(m, 'set_separate_reduce_scatter_group')}; it costs the memory "
        "of one more communicator, which is not measured here.",
        code=f"{MODEL}\nmodel.set_separate_reduce_scatter_group(True)",
        change={"separate_reduce_scatter_group": True},
    )


def reduce_buffers(m: Measures) -> Advice | None:
    """Two reduce-scatters in flight."""
    if on_cpu(m) or not has(m, "set_reduce_scatter_max_input_buffers"):
        return None
    return Advice(
        text="Let two reduce-scatters be in flight"
        f"{needs_torch(m, 'set_reduce_scatter_max_input_buffers')}.",
        code=f"{MODEL}\nmodel.set_reduce_scatter_max_input_buffers(2)",
        memory_cost_bytes=largest_bytes(m, all_units(m)),
        change={"max_input_buffers": 2},
    )


def present(*advice: Advice | None) -> tuple[Advice, ...]:
    """The advice that applies."""
    return tuple(item for item in advice if item is not None)
