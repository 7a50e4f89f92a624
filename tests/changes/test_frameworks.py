"""A plan for each framework: what it says is done there, and FSDP2 does the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml
from torch.distributed.fsdp import FSDPModule

from fsdpdoctor.changes.frameworks import DIALECTS, snippets
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.snippet import Snippet
from fsdpdoctor.schema import BlockSpec
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import Node, Step
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.plan_code import plan_code, tree_of
from tests.changes.test_code import PLANS
from tests.changes.trainers import TRAINERS, Given, placed
from tests.simulate.real import Net, check, simulated, truth
from tests.simulate.steps import ROOT_PARAMS, layer_params, step

FACTS = RunConstraints(
    blocks=(
        BlockSpec(
            container="layers", module_class="Block", count=4, units=4, numel=512
        ),
    )
)


def made(plan: Plan, *, blocking: bool = False) -> Step:
    """The step of four blocks under a plan."""
    return changed(plan, step(4, blocking=blocking), FACTS).step


def by_place(dialect: str, plan: Plan) -> list[Snippet]:
    """A plan's snippets, for a host without a device."""
    before = tree_of(made(Plan(), blocking=True), FACTS)
    after = tree_of(made(plan, blocking=True), FACTS)
    return snippets(dialect, plan, before, after, FACTS.blocks)


GIVEN = Given(units=[(f"layers.{at}",) for at in range(4)])


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("dialect", DIALECTS[1:])
def test_fsdp2_does_the_plan(
    monkeypatch: pytest.MonkeyPatch, dialect: str, name: str
) -> None:
    """Where it says, beside the framework's own call: as was simulated."""
    plan = PLANS[name]
    model: Any = Net(4)

    TRAINERS[dialect](monkeypatch, model, by_place(dialect, plan), GIVEN)

    check(truth(monkeypatch, model), simulated(made(plan)))


def policies(model: Any) -> set[Any]:
    """Of all sharded modules."""
    return {
        m._get_fsdp_state()._mp_policy
        for m in model.modules()
        if isinstance(m, FSDPModule)
    }


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("reduce", ["float32", "bfloat16"])
@pytest.mark.parametrize("dialect", DIALECTS[1:])
def test_dtypes(monkeypatch: pytest.MonkeyPatch, dialect: str, reduce: str) -> None:
    """Every unit gathers in bfloat16, and torchtitan's inputs are still not cast."""
    plan = Plan(param_dtype="bfloat16", reduce_dtype=reduce)
    model: Any = Net(4)

    TRAINERS[dialect](monkeypatch, model, by_place(dialect, plan), GIVEN)

    (policy,) = policies(model)
    assert policy.param_dtype is torch.bfloat16
    assert policy.reduce_dtype is getattr(torch, reduce)
    assert policy.cast_forward_inputs is (dialect != "torchtitan")


def test_flags_of_torchtitan() -> None:
    """What it has flags for needs no Python."""
    plan = Plan(reshard_after_forward={"*": False}, replicate=2, param_dtype="bfloat16")
    (flags,) = by_place("torchtitan", plan)

    assert flags.text.splitlines() == [
        "--parallelism.fsdp_reshard_after_forward never",
        "--training.mixed_precision_param bfloat16",
        "--parallelism.data_parallel_replicate_degree 2",
        "--parallelism.data_parallel_shard_degree 4",
    ]


def test_keys_of_accelerate() -> None:
    """Only those that change, and no Python."""
    plan = Plan(reshard_after_forward={"*": False}, replicate=2)
    (keys,) = by_place("accelerate", plan)

    assert yaml.safe_load(keys.text) == {
        "fsdp_config": {"fsdp_reshard_after_forward": False},
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": 2,
            "parallelism_config_dp_shard_size": 4,
        },
    }


def test_accelerate_does_not_look_for_what_is_sharded() -> None:
    """A sharded block's class has another name, which ends a run that looks for it."""
    found = by_place("accelerate", Plan(merge=2))

    assert yaml.safe_load(placed(found, "in the file")) == {
        "fsdp_config": {"fsdp_auto_wrap_policy": "NO_WRAP"}
    }


LAST = {
    "torchtitan": [
        "def sync_on_last(model, micro_batch, micro_batches=3):",
        '    """Call with the root module before each micro-batch\'s forward."""',
        "    model.set_requires_gradient_sync(micro_batch == micro_batches - 1)",
    ],
    "accelerate": [
        "accelerator = Accelerator(gradient_accumulation_steps=3)",
        "# accelerator.backward(loss) divides the loss by their number.",
        "with accelerator.accumulate(model):",
        "    ...  # forward, backward, optimizer.step(), zero_grad()",
    ],
    "lightning": [
        "def on_train_batch_start(self, batch, batch_idx):",
        '    names = {"layers.0", "layers.3"}',
        "    model = next(",
        "        m for m in self.modules() if names <= dict(m.named_modules()).keys()",
        "    )",
        "    count = self.trainer.accumulate_grad_batches",
        "    last = (batch_idx + 1) % count == 0 or self.trainer.is_last_batch",
        "    model.set_requires_gradient_sync(last)",
    ],
    "fabric": [
        "with fabric.no_backward_sync(model, enabled=micro_batch < 3 - 1):",
        "    ...  # forward and fabric.backward(loss)",
    ],
}
"""One reduction for three micro-batches, in each one's own words."""


@pytest.mark.parametrize("dialect", LAST)
def test_accumulation(dialect: str) -> None:
    """What sets FSDP2's flags by itself is used; else they are set in a hook."""
    found = by_place(dialect, Plan(accumulation="last", micro_batches=3))

    assert "\n".join(s.text for s in found).splitlines() == LAST[dialect]


AFTER = (
    "after model = accelerator.prepare(model); with a Trainer, in on_train_begin of a "
    "TrainerCallback"
)


def test_one_text_says_where_each_part_goes() -> None:
    """Places are comments in Python and YAML alike."""
    plan = Plan(reshard_after_forward={"*": False}, max_input_buffers=2)

    assert plan_code(
        plan, made(Plan()), made(plan), FACTS, "accelerate"
    ).splitlines() == [
        "# in the file of accelerate launch --config_file (Accelerate 1.15):",
        "fsdp_config:",
        "  fsdp_reshard_after_forward: false",
        "",
        f"# {AFTER}:",
        "model.set_reduce_scatter_max_input_buffers(2)",
    ]


def test_accelerate_wraps_by_the_classes_name() -> None:
    """A model that is one unit gets one for each block, and no Python."""
    one = step(0)
    params = (*ROOT_PARAMS, *layer_params("layers.0"), *layer_params("layers.1"))
    root = replace(one.units[0], params=params)
    base = replace(one, units=(root,), root=Node(units=(0,), items=(0, 1)))
    block = replace(FACTS.blocks[0], count=2, units=0)
    facts = RunConstraints(blocks=(block,))
    plan = Plan(wrap="Block")
    after = changed(plan, base, facts).step
    found = snippets(
        "accelerate", plan, tree_of(base, facts), tree_of(after, facts), facts.blocks
    )

    assert [yaml.safe_load(one.text) for one in found] == [
        {
            "fsdp_config": {
                "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "fsdp_transformer_layer_cls_to_wrap": "Block",
            }
        }
    ]


@pytest.mark.parametrize(
    ("how", "lines"),
    [
        (
            "every",
            [
                "from accelerate.utils import GradientAccumulationPlugin",
                "accumulation = GradientAccumulationPlugin(",
                "    num_steps=3, sync_each_batch=True",
                "accelerator = Accelerator(gradient_accumulation_plugin=accumulation)",
            ],
        ),
        (
            "keep",
            [
                "accelerator = Accelerator(gradient_accumulation_steps=3)",
                "    last = accelerator.sync_gradients",
                "    model.set_reshard_after_backward(last)",
                "    model.set_is_last_backward(last)",
            ],
        ),
    ],
)
def test_accelerate_reduces_when_it_is_told(how: str, lines: list[str]) -> None:
    """In each micro-batch, or once with everything kept until then."""
    found = by_place("accelerate", Plan(accumulation=how, micro_batches=3))
    text = "\n".join(one.text for one in found).splitlines()

    assert [line for line in text if line in lines] == lines
    assert "with accelerator.accumulate(model):" in text
