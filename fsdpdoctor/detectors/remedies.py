"""Advice that several detectors give: which change, and in what words.

Each function answers None (or nothing) where its advice does not apply: the torch
that ran has no such call, or recomputation forbids it. The code is `changes.code`'s,
made from the `change` that is simulated: what is predicted is what is pasted.

Of several models in one process the advice is for the one that a finding's units are
of, and the code says which `model` is. None of it is predicted: a step of several
models is not simulated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.code import MODEL, code, on_roots, what_model_is
from fsdpdoctor.changes.plan import Plan, plan_of
from fsdpdoctor.changes.unit_tree import UnitTree
from fsdpdoctor.detectors.judged_steps import all_units, on_cpu, recompute_seen
from fsdpdoctor.detectors.reentrant import reentrant
from fsdpdoctor.detectors.unit_order import (
    that_ran,
    tree_of_one,
    unit_tree_of,
)
from fsdpdoctor.finding import Advice
from fsdpdoctor.schema import UNKNOWN

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


def plan_advice(
    m: Measures,
    text: str,
    change: Mapping[str, object],
    *,
    after: UnitTree | None = None,
    memory_cost_bytes: int | None = None,
    simulated: bool = True,
    told: Plan | None = None,
    of: UnitTree | None = None,
) -> Advice:
    """Advice to make a plan true. `after` are the units where it makes other ones.

    What a detector groups in a way that no plan has is not `simulated`; what the
    code says beyond the change is `told`. `of` is one model of several.
    """
    plan = told or plan_of(change)
    tree = unit_tree_of(m) if of is None else of
    simulated = simulated and not several_models(m)
    ran = that_ran(m, tree)
    chained = {"forward_prefetch", "backward_prefetch"} & set(change)
    before = ran if chained and ran.units else tree
    if after is None:
        after = _settled(before, plan)
    return Advice(
        text=text,
        code=code(plan, before, after),
        memory_cost_bytes=memory_cost_bytes,
        change=change if simulated else None,
    )


def _settled(tree: UnitTree, plan: Plan) -> UnitTree:
    """The same units with a plan's policies."""
    policies = plan.reshard_after_forward
    units = tuple(
        replace(
            unit,
            reshard_after_forward=policies.get(unit.fqn, unit.reshard_after_forward),
            param_dtype=plan.param_dtype or unit.param_dtype,
            reduce_dtype=plan.reduce_dtype or unit.reduce_dtype,
        )
        for unit in tree.units
    )
    return replace(tree, units=units)


def largest_bytes(m: Measures, fqns: Iterable[str]) -> int | None:
    """The largest gathered unit among some, None where sizes are not known."""
    specs = all_units(m)
    sizes = [specs[fqn].unsharded_bytes for fqn in fqns if fqn in specs]
    return max((s for s in sizes if s != UNKNOWN), default=None)


def prefetch(m: Measures, phase: str, names: Collection[str] = ()) -> Advice | None:
    """Explicit prefetch of the next unit in one phase."""
    call = f"set_modules_to_{phase}_prefetch"
    if not has(m, call) or (phase == "forward" and recompute_seen(m)):
        return None
    tree = tree_of_one(m, names)
    if tree is None or not chainable(m, tree):
        return None
    return plan_advice(
        m,
        f"Prefetch the next unit explicitly in {phase}{needs_torch(m, call)}; one "
        "more gathered unit is alive at a time.",
        {f"{phase}_prefetch": 1},
        memory_cost_bytes=_largest_that_ran(m, tree),
        of=tree,
    )


def _largest_that_ran(m: Measures, tree: UnitTree) -> int | None:
    return largest_bytes(m, [unit.fqn for unit in that_ran(m, tree).units])


def without_reentrant(m: Measures) -> Advice | None:
    """The cure where reentrant checkpointing runs prefetch lists in backward too."""
    if not reentrant(m):
        return None
    return Advice(
        text="Pass use_reentrant=False to checkpoint(): a reentrant one runs the whole "
        "forward again in backward, prefetch lists included; your lists can stay.",
        memory_cost_bytes=0,
    )


def several_models(m: Measures) -> bool:
    """Whether no single `model` holds all units: then no code can be pasted."""
    return len(unit_tree_of(m).models) > 1


def model_comment(m: Measures, unit: str) -> str:
    """What `model` is in code for the model of one unit."""
    tree = tree_of_one(m, (unit,))
    return MODEL if tree is None or tree.called is None else what_model_is(tree)


def model_that(m: Measures, did: str) -> str:
    """The same where no unit says which of several models it is."""
    if not several_models(m):
        return MODEL
    return f"# `model` is the root module of the model that {did}."


def chainable(m: Measures, tree: UnitTree) -> bool:
    """Whether some root has units that follow each other."""
    return any(len(one.units) > 1 for one in that_ran(m, tree).trees)


def clear_prefetch(m: Measures, phase: str, owners: Sequence[str]) -> Advice | None:
    """No prefetch lists any more on some units."""
    call = f"set_modules_to_{phase}_prefetch"
    tree = tree_of_one(m, owners)
    if not owners or not has(m, call) or tree is None:
        return None
    return plan_advice(
        m,
        f"Clear the {phase} prefetch lists of these units{needs_torch(m, call)}.",
        {f"{phase}_prefetch_of": dict.fromkeys(owners, 0)},
        memory_cost_bytes=0,
        of=tree,
    )


def host_overlap(m: Measures, phase: str, names: Collection[str]) -> Advice | None:
    """On CPU: all-gathers that return a handle, and an explicit order for them."""
    tree = tree_of_one(m, names)
    if not has(m, "_set_unshard_async_op") or tree is None:
        return None
    specs = all_units(m)
    mine = [specs[unit.fqn] for unit in tree.units]
    lists = f"{phase}_prefetch"
    ready = any(spec.unshard_async_op for spec in mine)
    listed = any(getattr(spec, lists) for spec in mine)
    # FSDP2 prefetches in backward by itself; in forward it needs the lists.
    chain = None if listed or phase == "backward" else prefetch(m, phase, names)
    if ready and chain is None:
        return None
    change: dict[str, object] = {} if ready else {"unshard_async_op": True}
    if chain is not None:
        change[lists] = 1
    return plan_advice(
        m,
        "On CPU the all-gather blocks the host unless it is asked for a handle"
        + (" and the next unit is prefetched explicitly" if chain else "")
        + needs_torch(m, "_set_unshard_async_op")
        + ".",
        change,
        memory_cost_bytes=_largest_that_ran(m, tree),
        of=tree,
    )


def keep_unsharded(m: Measures, units: Sequence[str]) -> Advice | None:
    """No second gather: some units stay gathered from forward to backward."""
    specs, tree = all_units(m), tree_of_one(m, units)
    if tree is None or not has(m, "set_reshard_after_forward"):
        return None
    kept = [
        unit.fqn
        for unit in tree.units
        if unit.fqn in units and unit.reshard_after_forward not in (False, None)
    ]
    if not kept:
        return None
    sizes = [specs[fqn].unsharded_bytes for fqn in kept]
    return plan_advice(
        m,
        "Keep these units gathered from forward to backward: no all-gather in "
        f"backward{needs_torch(m, 'set_reshard_after_forward')}.",
        {"reshard_after_forward": dict.fromkeys(kept, False)},
        memory_cost_bytes=None if UNKNOWN in sizes else sum(sizes),
        of=tree,
    )


def early_unshard(m: Measures, names: Collection[str]) -> Advice | None:
    """The step's first gather under the data loading."""
    tree = tree_of_one(m, names)
    if not has(m, "unshard") or tree is None:
        return None
    return Advice(
        text="Issue the step's first all-gather before fetching the next batch"
        f"{needs_torch(m, 'unshard')}; it gathers the root unit only.",
        code=called_on_roots(tree, "Before next(batches):", "unshard(async_op=True)"),
        memory_cost_bytes=0,
    )


def called_on_roots(tree: UnitTree, when: str, call: str) -> str:
    """A method call on the root, and when to make it."""
    return "\n".join([f"{what_model_is(tree)} {when}", *on_roots(tree, call)])


def separate_reduce_group(m: Measures, names: Collection[str]) -> Advice | None:
    """Reduce-scatters on a communicator of their own."""
    call = "set_separate_reduce_scatter_group"
    tree = tree_of_one(m, names)
    if on_cpu(m) or not has(m, call) or tree is None:
        return None
    return plan_advice(
        m,
        "Try a communicator of its own for the reduce-scatter"
        f"{needs_torch(m, 'set_separate_reduce_scatter_group')}; it costs the memory "
        "of one more communicator, which is not measured here.",
        {"separate_reduce_scatter_group": True},
        of=tree,
    )


def reduce_buffers(m: Measures, names: Collection[str]) -> Advice | None:
    """Two reduce-scatters in flight."""
    call = "set_reduce_scatter_max_input_buffers"
    tree = tree_of_one(m, names)
    if on_cpu(m) or not has(m, call) or tree is None:
        return None
    return plan_advice(
        m,
        "Let two reduce-scatters be in flight"
        f"{needs_torch(m, 'set_reduce_scatter_max_input_buffers')}.",
        {"max_input_buffers": 2},
        memory_cost_bytes=largest_bytes(m, [unit.fqn for unit in tree.units]),
        of=tree,
    )


def compile_blocks(text: str) -> Advice:
    """Compiled regions inside units, so that no hook breaks a graph."""
    lines = ["def compile_blocks(blocks):"]
    lines += ['    """Your repeated blocks, before fully_shard(block)."""']
    lines += ["    for block in blocks:", "        block.compile()"]
    return Advice(text=text, code="\n".join(lines))


def present(*advice: Advice | None) -> tuple[Advice, ...]:
    """The advice that applies."""
    return tuple(item for item in advice if item is not None)
