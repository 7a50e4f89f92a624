"""A plan for torchtitan, Accelerate and Lightning: what runs is run, the rest parsed.

Neither Accelerate nor Lightning is installed with the tests: `configure_model` is
called by a stand-in with the same attributes, YAML is read and its keys compared.
"""

from __future__ import annotations

import tomllib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.changes.frameworks import DIALECTS, Snippet, snippets
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.schema import BlockSpec
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.plan_code import plan_code, tree_of
from tests.changes.test_code import PLANS
from tests.simulate.real import Net, check, sharded, simulated, truth
from tests.simulate.steps import step

FACTS = RunConstraints(
    blocks=(
        BlockSpec(
            container="layers", module_class="Block", count=4, units=4, numel=512
        ),
    )
)

ACCELERATE_KEYS = {
    "distributed_type",
    "fsdp_config",
    "fsdp_version",
    "fsdp_auto_wrap_policy",
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_reshard_after_forward",
    "parallelism_config",
    "parallelism_config_dp_replicate_size",
    "parallelism_config_dp_shard_size",
}
"""Those of the files that `accelerate config` writes for FSDP2, as documented."""


def made(plan: Plan, *, blocking: bool = False) -> Step:
    """The step of four blocks under a plan."""
    return changed(plan, step(4, blocking=blocking), FACTS).step


def by_place(dialect: str, plan: Plan) -> list[Snippet]:
    """A plan's snippets, for a host without a device."""
    before = tree_of(made(Plan(), blocking=True), FACTS)
    after = tree_of(made(plan, blocking=True), FACTS)
    return snippets(dialect, plan, before, after, FACTS.blocks)


def mesh_of(plan: Plan) -> Any:
    """What a trainer hands to whoever shards."""
    if plan.replicate is None:
        return init_device_mesh("cpu", (8,))
    shape = (plan.replicate, 8 // plan.replicate)
    return init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", PLANS)
def test_torchtitan(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """`apply_fsdp`, called as torchtitan does, makes FSDP2 do what was simulated."""
    plan = PLANS[name]
    scope: dict[str, Any] = {}
    exec(by_place("torchtitan", plan)[0].text, scope)
    model = Net(4)

    scope["apply_fsdp"](
        model,
        mesh_of(plan),
        param_dtype=None,
        reduce_dtype=None,
        pp_enabled=False,
        cpu_offload=False,
        reshard_after_forward_policy="default",
    )

    check(truth(monkeypatch, model), simulated(made(plan)))


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", PLANS)
def test_lightning(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """`configure_model` shards once, on the strategy's mesh or on one of its own."""
    plan = PLANS[name]
    scope: dict[str, Any] = {}
    exec(by_place("lightning", plan)[0].text, scope)
    module = SimpleNamespace(
        model=Net(4), device_mesh={"data_parallel": init_device_mesh("cpu", (8,))}
    )

    for _ in range(2):
        scope["configure_model"](module)

    check(truth(monkeypatch, module.model), simulated(made(plan)))


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", PLANS)
def test_accelerate(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Python before and after `prepare` runs; what YAML says, Accelerate would do."""
    plan = PLANS[name]
    model: Any = None
    for snippet in by_place("accelerate", plan):
        if "config_file" in snippet.where:
            content = yaml.safe_load(snippet.text)
            model = accelerated(content)
        elif "before" in snippet.where:
            model = Net(4)
            exec(snippet.text, {"model": model})
        else:
            model = model or sharded()
            exec(snippet.text, {"model": model})

    check(truth(monkeypatch, model), simulated(made(plan)))


def accelerated(content: dict[str, Any]) -> Any:
    """What Accelerate does with such keys, in a few lines."""
    given = content["fsdp_config"]
    assert set(content) | set(given) <= ACCELERATE_KEYS
    assert given["fsdp_version"] == 2
    assert given["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"
    reshard = given["fsdp_reshard_after_forward"]
    model = Net(4)
    for block in model.modules():
        if type(block).__name__ == given["fsdp_transformer_layer_cls_to_wrap"]:
            fully_shard(block, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    return model


def test_the_keys_of_accelerate() -> None:
    """A uniform policy over two replicas needs no Python."""
    plan = Plan(reshard_after_forward={"*": False}, replicate=2)
    (snippet,) = by_place("accelerate", plan)

    assert yaml.safe_load(snippet.text) == {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": "Block",
            "fsdp_reshard_after_forward": False,
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": 2,
            "parallelism_config_dp_shard_size": 4,
        },
    }


def test_replicas_in_torchtitans_job_file() -> None:
    """Its degrees are the job's, not `apply_fsdp`'s."""
    _, snippet = by_place("torchtitan", Plan(replicate=2))

    assert tomllib.loads(snippet.text) == {
        "parallelism": {
            "data_parallel_replicate_degree": 2,
            "data_parallel_shard_degree": 4,
        }
    }


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("dialect", DIALECTS[1:])
def test_dtypes(dialect: str) -> None:
    """Every unit gathers in bfloat16 and reduces in float32."""
    plan = Plan(param_dtype="bfloat16", reduce_dtype="float32")
    text = by_place(dialect, plan)[0].text
    model: Any = Net(4)
    scope: dict[str, Any] = {"model": model}
    exec(text, scope)
    mesh = init_device_mesh("cpu", (8,))
    if dialect == "torchtitan":
        scope["apply_fsdp"](model, mesh, torch.float32, torch.float32)
    if dialect == "lightning":
        given = SimpleNamespace(model=model, device_mesh={"data_parallel": mesh})
        scope["configure_model"](given)

    policies = {m._get_fsdp_state()._mp_policy for m in (model, *model.layers)}
    assert {(p.param_dtype, p.reduce_dtype) for p in policies} == {
        (torch.bfloat16, torch.float32)
    }


@pytest.mark.parametrize("dialect", DIALECTS[1:])
def test_accumulation_goes_to_the_training_loop(dialect: str) -> None:
    """The same function in all of them, in a snippet of its own."""
    snippet = by_place(dialect, Plan(accumulation="last"))[-1]

    assert snippet.where == "in the training loop"
    assert snippet.text.splitlines() == [
        "def sync_on_last(model, micro_batch, micro_batches):",
        '    """Call with the root module before each micro-batch\'s forward."""',
        "    model.set_requires_gradient_sync(micro_batch == micro_batches - 1)",
    ]


def test_one_text_says_where_each_part_goes() -> None:
    """Places are comments in Python, YAML and TOML alike."""
    plan = Plan(reshard_after_forward={"*": False}, max_input_buffers=2)

    assert plan_code(
        plan, made(Plan()), made(plan), FACTS, "accelerate"
    ).splitlines() == [
        "# in the file of accelerate launch --config_file:",
        "distributed_type: FSDP",
        "fsdp_config:",
        "  fsdp_version: 2",
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        "  fsdp_transformer_layer_cls_to_wrap: Block",
        "  fsdp_reshard_after_forward: false",
        "",
        "# after model = accelerator.prepare(model):",
        "model.set_reduce_scatter_max_input_buffers(2)",
    ]
