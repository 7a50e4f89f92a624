"""The code of a plan runs as pasted, and makes FSDP2 do what was simulated."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.sharding_code import INSERTS, REPLACES
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import MicroBatch
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.plan_code import plan_code
from fsdpdoctor.simulate.plans.settings import settings
from tests.simulate.real import Net, check, simulated, truth
from tests.simulate.steps import step

PLANS = {
    "forward 1": Plan(forward_prefetch=1),
    "both 2": Plan(forward_prefetch=2, backward_prefetch=2),
    "async": Plan(forward_prefetch=1, unshard_async_op=True),
    "of units": Plan(forward_prefetch_of={"layers.1": 2}),
    "of all but one": Plan(backward_prefetch=1, backward_prefetch_of={"layers.2": 2}),
    "reshard False": Plan(reshard_after_forward={"*": False}),
    "reshard last": Plan(reshard_after_forward={"layers.3": False}),
    "reshard most": Plan(reshard_after_forward={"*": False, "layers.0": True}),
    "reshard root": Plan(reshard_after_forward={"<root>": True}),
    "reshard 2": Plan(reshard_after_forward={"*": 2}),
    "merge 2": Plan(merge=2),
    "merge 3": Plan(merge=3),
    "split": Plan(split_root=True),
    "split and merge": Plan(split_root=True, merge=2, forward_prefetch=1),
    "merge, reshard False": Plan(merge=2, reshard_after_forward={"*": False}),
    "buffers": Plan(max_input_buffers=2),
    "separate": Plan(separate_reduce_scatter_group=True),
    "HSDP": Plan(replicate=2),
}


def pasted(plan: Plan) -> tuple[Any, str]:
    """A model with the plan's code run after its own sharding, or in its place."""
    base = step(4, blocking=True)
    made = changed(plan, base, RunConstraints()).step
    lines = plan_code(plan, base, made, RunConstraints())
    model: Any = Net(4)
    if REPLACES in lines:
        exec(lines, {"model": model})
        return model, lines
    for block in model.layers:
        fully_shard(block)
    if INSERTS in lines:
        exec(lines, {"model": model})
        fully_shard(model)
    else:
        fully_shard(model)
        exec(lines, {"model": model})
    return model, lines


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", PLANS)
def test_pasted_code_does_what_was_simulated(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Order, bytes and policies of real FSDP2 are those of the changed step."""
    plan = PLANS[name]
    model, _ = pasted(plan)
    check(
        truth(monkeypatch, model),
        simulated(changed(plan, step(4), RunConstraints()).step),
    )


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("how", ["last", "keep"])
def test_pasted_accumulation(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """`sync_on_last` sets the flags that were simulated."""
    plan = Plan(accumulation=how, micro_batches=3)
    base = changed(plan, step(4), RunConstraints()).step
    model, lines = pasted(plan)
    scope: dict[str, Any] = {"model": model}
    exec(lines, scope)
    seen: list[MicroBatch] = []
    for last in (False, True):
        scope["sync_on_last"](model, int(last), 2)
        group = model.layers[0]._get_fsdp_state()._fsdp_param_group
        context = model._get_fsdp_state()._state_ctx
        seen.append(
            MicroBatch(
                sync=group.reduce_grads,
                reshard_after_backward=group.reshard_after_backward,
                is_last_backward=context.is_last_backward,
            )
        )

    assert seen == [base.micro_batches[0], base.micro_batches[-1]]
    check(truth(monkeypatch, model, base.micro_batches), simulated(base))


def test_code_is_short_and_names_the_users_modules() -> None:
    """Many blocks that count up are a range; nothing is repeated per block."""
    plan = Plan(forward_prefetch=1, unshard_async_op=True)
    base = step(13)
    made = changed(plan, base, RunConstraints()).step

    assert plan_code(plan, base, made, RunConstraints()).splitlines() == [
        "# `model` is your root module, the one that fully_shard() was called on last.",
        "model._set_unshard_async_op(True)",
        "# Units in the order in which their forwards ran.",
        'order = [f"layers.{i}" for i in range(0, 13)]',
        "units = [model] + [model.get_submodule(name) for name in order]",
        "for unit, following in zip(units, units[1:]):",
        "    unit.set_modules_to_forward_prefetch([following])",
    ]


def test_settings_name_every_unit_and_list() -> None:
    """What `run --apply` reads is explicit: no depth, no stars."""
    plan = Plan(forward_prefetch=1, reshard_after_forward={"*": False})

    assert settings(plan, changed(plan, step(2), RunConstraints()).step) == {
        "units": {
            "<root>": {
                "reshard_after_forward": False,
                "forward_prefetch": ["layers.0"],
            },
            "layers.0": {
                "reshard_after_forward": False,
                "forward_prefetch": ["layers.1"],
            },
            "layers.1": {"reshard_after_forward": False, "forward_prefetch": []},
        }
    }
