"""FD504: FSDP2's hooks did not run where they had to."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import by_model
from fsdpdoctor.changes.quoting import name_list, quoted
from fsdpdoctor.changes.unit_tree import first_path
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.broken_off import broken_off
from fsdpdoctor.detectors.judged_steps import all_counter_rows, all_units, unit_sums
from fsdpdoctor.detectors.old_weights import old_weights
from fsdpdoctor.detectors.reentrant import without_gradient
from fsdpdoctor.detectors.remedies import model_comment, model_that
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, size
from fsdpdoctor.schema import (
    COUNTER_DIRECT_METHODS,
    COUNTER_EXCEPTIONS,
    UNKNOWN,
    Evidence,
    IdleParentSpec,
    OptimizerSpec,
    Phase,
    UnitSpec,
)


@detector(
    "FD504", "hooks-not-run", needs_any={Evidence.OPTIMIZER_CONFIG, Evidence.UNITS}
)
def hooks_not_run(m: Measures) -> Iterator[Finding]:
    """The optimizer, or a call, goes past FSDP2's parameters and hooks.

    *Why it costs*: an optimizer built before `fully_shard` holds tensors that are
    no parameters of the model any more: it steps over nothing, without an error,
    and the model never learns. FSDP2 gathers and frees in hooks around `forward`
    and backward: a method other than `forward`, or a weight read by its parent,
    meets sharded parameters; a unit whose backward hook is lost computes with
    freed ones; a sharded module whose parts are called one by one leaves each of
    them a root, which prefetches nothing and stays gathered after forward.

    *What to try*: build the optimizer from `model.parameters()` after
    `fully_shard(model)` and before the first forward, which leaves the root gathered
    where no backward follows; call the module, or register its other methods with
    `register_fsdp_forward_method`; clone outputs that are changed in place.

    A backward that an exception broke off leaves FSDP2 in it: where the script
    catches that and goes on, the modules that had been in it run no hooks any more,
    stay gathered, and their gradients are neither reduced nor seen by the optimizer.
    A forward that was broken off leaves units gathered: they compute with the old
    weights where the optimizer stepped before the next forward. So do units that a
    pass without gradients, or a backward that was told not to reshard, left gathered:
    a unit that is gathered is not gathered again.

    Inside a reentrant checkpoint nothing gets a gradient where no input needs one:
    `use_reentrant=False`.

    *When it is wrong*: a unit without a forward may be meant for other steps
    (an auxiliary head). Parameters outside every unit are plain tensors in the
    optimizer by right.
    """
    specs = all_units(m)
    model = m.ranks[0].header.model if m.ranks else None
    if model is not None:
        for optimizer in model.optimizers:
            yield from _optimizer(m, optimizer)
        for parent in model.idle_parents:
            yield _idle_parent(m, parent)
    yield from broken_off(m)
    yield from _bypassed(m)
    if not specs and model is None:
        raise CannotTell("neither units nor optimizers were recorded", Evidence.UNITS)
    if Evidence.UNITS in m.evidence and len(m.step_ns):
        yield from old_weights(m)
        yield from _never_forwarded(m, specs)
        yield from _no_backward(m, specs)


def _optimizer(m: Measures, optimizer: OptimizerSpec) -> Iterator[Finding]:
    name, lost = optimizer.optimizer_class, optimizer.stale + optimizer.gathered
    stuck = optimizer.params > 0 and optimizer.without_grad == optimizer.params
    if not lost and not stuck:
        return
    if lost:
        tensors = f"{lost} of the {count(optimizer.params, 'tensor')} of {name}"
        says = f"{tensors} {_not_of_the_model(optimizer)}, and never changes them"
    else:
        says = (
            f"none of the {count(optimizer.params, 'tensor')} of "
            f"{name} had a gradient at its first step"
        )
    yield Finding(
        severity=Severity.CRITICAL if lost else Severity.WARNING,
        confidence=Confidence.HIGH if lost else Confidence.MEDIUM,
        summary=says,
        phase=None,
        evidence={
            "optimizer": optimizer.optimizer_class,
            "tensors": optimizer.params,
            "dtensors": optimizer.dtensors,
            "stale": optimizer.stale,
            "gathered": optimizer.gathered,
            "without_grad": optimizer.without_grad,
        },
        advice=(_after_reshard(m) if optimizer.gathered else _after_sharding(),),
    )


def _not_of_the_model(optimizer: OptimizerSpec) -> str:
    lost = optimizer.stale + optimizer.gathered
    if not optimizer.gathered:
        are = "is no parameter" if lost == 1 else "are no parameters"
        return f"{are} of the model: it was built before fully_shard"
    are = "is what a unit" if lost == 1 else "are what units"
    return (
        f"{are} had gathered and not the model's own parameters: it was built after a "
        "forward that left them gathered"
    )


_ANEW = (
    "known = inspect.signature(type(optimizer)).parameters",
    "given = {",
    "    name: value",
    "    for name, value in optimizer.defaults.items()",
    "    if name in known",
    "}",
    "optimizer = type(optimizer)(model.parameters(), **given)",
)
"""The optimizer once more; several groups likewise."""


def _after_sharding() -> Advice:
    return Advice(
        text="Build the optimizer after sharding, from the sharded parameters.",
        code="\n".join(
            [
                "import inspect",
                "",
                "# After the last fully_shard call; several groups likewise.",
                *_ANEW,
            ]
        ),
        memory_cost_bytes=0,
    )


def _after_reshard(m: Measures) -> Advice:
    return Advice(
        text="Build the optimizer before the first forward, or reshard() before it.",
        code="\n".join(
            [
                "import inspect",
                "",
                "from torch.distributed.fsdp import FSDPModule",
                "",
                model_that(m, "it steps"),
                "for module in model.modules():",
                "    if isinstance(module, FSDPModule):",
                "        module.reshard()",
                "# Several groups likewise.",
                *_ANEW,
            ]
        ),
        memory_cost_bytes=0,
    )


def _idle_parent(m: Measures, parent: IdleParentSpec) -> Finding:
    """A sharded module whose parts were called one by one."""
    units = [m.units[at] for at in parent.units if at < len(m.units)]
    where = f" ({parent.fqn})" if parent.fqn else ""
    held = sum(
        max(spec.unsharded_bytes, 0)
        for spec in units
        if spec.reshard_after_forward is False
    )
    roots = f"each of the {count(len(units), 'unit')} that ran inside it is a root"
    says = [f"{roots} of its own, and no backward prefetches the next one"]
    if held:
        says.append(f"{size(held)} stay gathered after forward")
    if parent.params:
        says.append(f"its own {count(parent.params, 'parameter')} never gathered")
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        summary=f"the forward of {parent.module_class}{where}, which is sharded, never "
        f"ran: {'; '.join(says)}",
        units=tuple(spec.fqn for spec in units),
        phase="forward",
        cost_bytes=held or None,
        evidence={
            "module": parent.fqn,
            "module_class": parent.module_class,
            "own_parameters": parent.params,
            "units": [spec.fqn for spec in units],
        },
        advice=(
            Advice(
                text=f"Call {parent.module_class} itself, and its parts from its "
                "forward; or register the method that calls them with "
                "register_fsdp_forward_method.",
                memory_cost_bytes=-held,
            ),
        ),
    )


def _bypassed(m: Measures) -> Iterator[Finding]:
    """Methods of sharded modules that ran without the hooks."""
    counts: dict[str, int] = {}
    for rank in m.ranks:
        for name, value in zip(rank.counters.name, rank.counters.value, strict=True):
            text = rank.name(int(name)) or ""
            if text.startswith(COUNTER_DIRECT_METHODS) and value > 0:
                method = text[len(COUNTER_DIRECT_METHODS) :].lstrip(".: ")
                counts[method] = max(counts.get(method, 0), int(value))
    if not counts:
        return
    methods = [method for method in counts if method]
    names = f" ({', '.join(methods[:3])})" if methods else ""
    yield Finding(
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        summary=f"methods of sharded modules{names} were called past FSDP2's hooks, "
        f"{max(counts.values())} times",
        evidence={"methods": list(methods), "calls": max(counts.values())},
        advice=(
            Advice(
                text="Register the method, so that it gathers and frees like forward.",
                code="\n".join(
                    [
                        "import torch.distributed.fsdp as fsdp",
                        "",
                        model_that(m, "has the method"),
                        *(
                            "fsdp.register_fsdp_forward_method(model, "
                            f"{quoted(method.rpartition('.')[2])})"
                            for method in methods or ["generate"]
                        ),
                    ]
                ),
                memory_cost_bytes=0,
            ),
        ),
    )


def _forwarded(m: Measures) -> set[str]:
    """Units that a training forward ran, in whatever recorded step."""
    found: set[str] = set()
    for rank in m.ranks:
        times = rank.unit_times
        forward = times.unit[(times.phase == Phase.FORWARD) & (times.calls > 0)]
        units = {*forward.tolist(), *rank.first_forward}
        found |= {rank.units[at].fqn for at in units if at < len(rank.units)}
    return found


def _begun(m: Measures) -> set[str]:
    """Units of the last events, where they are of a step that was cut off."""
    found = set()
    for rank in m.ranks:
        whole = rank.steps.step[rank.steps.complete == 1].max(initial=UNKNOWN)
        found |= {
            rank.units[beat.unit].fqn
            for beat in rank.beats
            if 0 <= beat.unit < len(rank.units) and beat.step > whole
        }
    return found


def _never_forwarded(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Trainable units that no training forward ran, while others did.

    Of a model that only ran in steps that were not recorded nothing is known.
    """
    ran = _forwarded(m) | _begun(m)
    if not ran or not unit_sums(m, "calls", Phase.FORWARD):
        return
    whole = not any(len(rank.unrecorded.step) for rank in m.ranks)
    models = {specs[fqn].model for fqn in ran if fqn in specs}
    idle = [
        fqn
        for fqn, spec in specs.items()
        if fqn not in ran and spec.trainable_numel > 0
        if whole or spec.model in models
    ]
    if not idle:
        return
    advice = Advice(
        text="Call the module itself; or shard it with the parent that reads its "
        "weights.",
    )
    when = "" if whole else " in a recorded step"
    what = f"{count(len(idle), 'trainable unit')} never ran a forward{when}"
    yield _never_ran(m, what, idle, "forward", advice)


CLONE_OUTPUTS = (
    "for name in units:",
    "    model.get_submodule(name).register_forward_hook(",
    "        lambda module, args, output: output.clone()",
    "    )",
)


def _no_backward(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Resharded trainable units with forwards and no backward, while others had."""
    if any(len(all_counter_rows(rank, COUNTER_EXCEPTIONS)) for rank in m.ranks):
        return  # a forward that was broken off has no backward
    forwards = unit_sums(m, "calls", Phase.FORWARD)
    backwards = unit_sums(m, "calls", Phase.BACKWARD)
    if not any(backwards.values()):
        return
    lost = [
        fqn
        for fqn, spec in specs.items()
        if forwards.get(fqn)
        and not backwards.get(fqn)
        and spec.trainable_numel > 0
        and spec.reshard_after_forward not in (False, None)
    ]
    checkpointed = without_gradient(m, lost)
    if checkpointed is not None:
        yield checkpointed
        lost = [fqn for fqn in lost if fqn not in checkpointed.units]
    for names in by_model(m, lost):
        units = f"units = {name_list([first_path(fqn) for fqn in names])}"
        advice = Advice(
            text="Clone these units' outputs: an output that is changed in place, or "
            "is a view, loses its hook.",
            code="\n".join([model_comment(m, names[0]), units, *CLONE_OUTPUTS]),
            memory_cost_bytes=None,
        )
        what = f"the backward hook of {count(len(names), 'unit')} never ran"
        yield _never_ran(m, what, names, "backward", advice)


def _never_ran(
    m: Measures, what: str, units: list[str], phase: str, advice: Advice
) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{what}: {', '.join(units[:3])}{', ...' if len(units) > 3 else ''}",
        units=tuple(units),
        phase=phase,
        evidence={"units": list(units)},
        advice=(advice,),
    )
