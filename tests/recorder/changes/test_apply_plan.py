"""A plan applied to a script makes FSDP2 do what was simulated, or nothing at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from fsdpdoctor.changes.plan import Plan, load_plan, save_plan
from fsdpdoctor.errors import InputError, NewerFormatError, PlanError
from fsdpdoctor.plan_file import KNOWN_PLAN, Settings, read_settings
from fsdpdoctor.recorder.changes.apply_plan import applying
from fsdpdoctor.schema import UnitSpec
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.settings import settings
from tests.changes.test_code import PLANS
from tests.simulate.real import Net, check, logged, sharded, simulated, truth
from tests.simulate.steps import VOCAB, step

pytestmark = pytest.mark.usefixtures("world")


def planned(plan: Plan, layers: int = 4) -> Step:
    """The small model's step under a plan."""
    return changed(plan, step(layers, blocking=True), RunConstraints()).step


def saved(folder: Path, plan: Plan, layers: int = 4) -> Settings:
    """A plan for the small model, through its file."""
    path = folder / "plan.json"
    save_plan(plan, path, settings(plan, planned(plan, layers)))
    assert load_plan(path) == plan
    return read_settings(path)


@contextmanager
def job(folder: Path, plan: Plan, layers: int = 4) -> Iterator[Path]:
    """A recorded job to which a plan is applied; the run's header."""
    header = folder / "run.json"
    header.write_text('{"run_id": "a", "applied": []}')
    with applying(saved(folder, plan, layers), folder):
        yield header


def tokens() -> torch.Tensor:
    """A batch."""
    return torch.randint(0, VOCAB, (2, 4))


def train(model: Any, micro_batches: int = 1) -> None:
    """One step that changes every parameter."""
    # Collectives do nothing here and gradients are zero: decay changes parameters.
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.1)
    for _ in range(micro_batches):
        model(tokens()).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", PLANS)
def test_an_applied_plan_does_what_was_simulated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Order, bytes and policies are those of the step that was predicted."""
    plan = PLANS[name]
    with job(tmp_path, plan):
        found = truth(monkeypatch, sharded(4))

    check(found, simulated(planned(plan)))


@pytest.mark.parametrize("how", ["last", "keep"])
def test_accumulation_is_told_by_counting_backwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    """The third of three micro-batches reduces; what the script itself said is moot."""
    plan = Plan(accumulation=how)
    three = changed(
        Plan(micro_batches=3), step(4, blocking=True), RunConstraints()
    ).step
    made = changed(plan, three, RunConstraints()).step
    path = tmp_path / "plan.json"
    (tmp_path / "run.json").write_text("{}")
    save_plan(plan, path, settings(plan, made))
    with applying(read_settings(path), tmp_path):
        model = sharded(4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def train_it() -> None:
            for _ in range(3):
                model.set_requires_gradient_sync(True)
                model(tokens()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        train_it()
        with logged(monkeypatch, model) as found:
            train_it()

    check(found, simulated(made))


def test_dtypes_reach_every_call(tmp_path: Path) -> None:
    """What else the script's own policy says stays as it is."""
    theirs = MixedPrecisionPolicy(param_dtype=torch.float16, cast_forward_inputs=False)
    with job(tmp_path, Plan(param_dtype="bfloat16"), 2):
        model = sharded(2, mp_policy=theirs)
        model(tokens())
        policies = [
            m._get_fsdp_state()._mp_policy for m in model.modules() if is_unit(m)
        ]

    assert policies == [replace(theirs, param_dtype=torch.bfloat16)] * 3


def is_unit(module: torch.nn.Module) -> bool:
    """Whether `fully_shard` was called for it."""
    return isinstance(module, FSDPModule)


def test_the_script_is_left_alone_afterwards(tmp_path: Path) -> None:
    """FSDP2's own functions are back, and models are what they would be."""
    originals = (torch.distributed.fsdp.fully_shard, state_methods())
    with job(tmp_path, Plan(merge=2, accumulation="last")):
        assert torch.distributed.fsdp.fully_shard is not originals[0]
        sharded(4)(tokens())

    assert (torch.distributed.fsdp.fully_shard, state_methods()) == originals


def state_methods() -> list[Any]:
    """What an applied plan stands in front of."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    state: Any = FSDPState
    return [state._lazy_init, state._register_root_post_backward_final_callback]


def test_the_run_says_what_was_applied(tmp_path: Path) -> None:
    """In words, only once it was."""
    with job(tmp_path, Plan(forward_prefetch=2, unshard_async_op=True)) as header:
        model = sharded(4)
        assert json.loads(header.read_bytes())["applied"] == []
        model(tokens())

    assert json.loads(header.read_bytes()) == {
        "run_id": "a",
        "applied": [
            "forward prefetch lists of 5 units, up to 2 ahead",
            "unshard_async_op True",
        ],
    }


def test_a_teacher_without_gradients_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A model that does not fit may run first, as long as it is not trained."""
    plan = Plan(forward_prefetch=1)
    with job(tmp_path, plan):
        with torch.no_grad():
            sharded(2)(tokens())
        found = truth(monkeypatch, sharded(4))

    check(found, simulated(planned(plan)))


# -- refusals: one line, before a parameter has changed

OTHER_MODEL = (
    "it names layers.4; layers.5, no unit of this model, whose units are <root>; "
    "layers.0; layers.1; layers.2; layers.3"
)


@pytest.mark.parametrize(
    ("plan", "layers", "said"),
    [
        (Plan(forward_prefetch=1), 6, OTHER_MODEL),
        (
            Plan(backward_prefetch=1),
            3,
            "this model's layers.3 are no units of the plan",
        ),
        (Plan(merge=2), 6, "no model was sharded with fully_shard and run"),
    ],
)
def test_a_plan_for_another_model_is_refused(
    tmp_path: Path, plan: Plan, layers: int, said: str
) -> None:
    """It says which units there are; no parameter has changed."""
    with job(tmp_path, plan, layers):
        model = sharded(4)
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(PlanError) as refused:
            train(model)
        after = list(model.parameters())

    assert all(map(torch.equal, before, after))
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path}/plan.json was not applied: ")
    assert json.loads((tmp_path / "run.json").read_bytes())["applied"] == []


def test_a_script_that_only_ran_another_model_is_refused(tmp_path: Path) -> None:
    """Without gradients it might have been a teacher; at the end it was not."""
    (tmp_path / "run.json").write_text("{}")
    plan = saved(tmp_path, Plan(forward_prefetch=1), 6)
    with applying(plan, tmp_path) as applied:
        with torch.no_grad():
            sharded(4)(tokens())
        with pytest.raises(PlanError, match=r"it names layers\.4; layers\.5"):
            applied.script_ended()


def test_other_micro_batches_are_refused_before_the_optimizer(tmp_path: Path) -> None:
    """Gradients that were not reduced are never applied."""
    with job(tmp_path, Plan(accumulation="last")):
        model = sharded(4)
        with pytest.raises(PlanError, match="and this step had 2"):
            train(model, micro_batches=2)


def test_modules_that_differ_are_not_put_together(tmp_path: Path) -> None:
    """A unit has one policy."""
    with job(tmp_path, Plan(merge=2)):
        shard: Any = torch.distributed.fsdp.fully_shard
        model = Net(4)
        for at, layer in enumerate(model.layers):
            shard(layer, reshard_after_forward=at > 0)
        with pytest.raises(PlanError, match="the script shards differently"):
            shard(model)


def test_a_torch_without_the_call_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It names what is missing, before the script runs."""
    monkeypatch.delattr(FSDPModule, "set_separate_reduce_scatter_group")
    plan = Plan(separate_reduce_scatter_group=True)

    with (
        pytest.raises(
            PlanError, match=r"needs FSDPModule\.set_separate_reduce_scatter_group"
        ),
        job(tmp_path, plan),
    ):
        pass


def test_a_plan_for_another_world_is_refused(tmp_path: Path) -> None:
    """A mesh, or a world size, that this job does not have."""
    with pytest.raises(PlanError, match="is for 64 ranks, this job has 8"):
        applying(saved(tmp_path, Plan(world_size=64)), tmp_path).__enter__()


def damage(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change a plan file's content."""

    def damaged(path: Path) -> None:
        content = json.loads(path.read_bytes())
        change(content)
        path.write_text(json.dumps(content))

    return damaged


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        (lambda path: path.unlink(), InputError, "cannot read"),
        (lambda path: path.write_text("{"), InputError, "is no plan"),
        (lambda path: path.write_text("[]"), InputError, "has no plan_version"),
        (
            damage(lambda c: c.update(plan_version=99)),
            NewerFormatError,
            "has plan format 99",
        ),
        (damage(lambda c: c.pop("apply")), InputError, "is damaged: KeyError 'apply'"),
        (
            damage(lambda c: c["apply"].update(unshard_async_op="yes")),
            InputError,
            "unshard_async_op is 'yes', expected bool",
        ),
        (
            damage(lambda c: c["apply"]["units"].update({"layers.0": []})),
            InputError,
            "is damaged",
        ),
        (
            damage(lambda c: c["plan"].update(bandwidth="ib400")),
            InputError,
            "asks for other links (bandwidth), which cannot be applied",
        ),
    ],
)
def test_a_file_that_is_no_plan_is_refused(
    tmp_path: Path,
    how: Callable[[Path], None],
    error: type[Exception],
    said: str,
) -> None:
    """What was found, what was expected."""
    saved(tmp_path, Plan(forward_prefetch=1))
    how(tmp_path / "plan.json")

    with pytest.raises(error) as refused:
        read_settings(tmp_path / "plan.json")

    assert said in str(refused.value)


def test_a_list_of_unknown_units_is_refused(tmp_path: Path) -> None:
    """A plan file that was written by hand may name anything."""
    path = tmp_path / "plan.json"
    saved(tmp_path, Plan(forward_prefetch=1))
    damage(
        lambda c: c["apply"]["units"]["layers.0"].update(forward_prefetch=["layers.9"])
    )(path)

    with pytest.raises(PlanError, match=r"layers\.0 prefetch layers\.9, which is none"):
        applying(read_settings(path), tmp_path).__enter__()


@pytest.mark.parametrize("known", [1, None])
def test_a_model_of_another_size_is_another_model(
    tmp_path: Path, known: int | None
) -> None:
    """Units of the same names, other parameters: refused before anything is set."""
    plan, path = Plan(unshard_async_op=True), tmp_path / "plan.json"
    constraints = RunConstraints(parameters=known)
    save_plan(plan, path, settings(plan, planned(plan, 2), constraints))
    (tmp_path / "run.json").write_text("{}")
    with applying(read_settings(path), tmp_path):
        model = sharded(2)
        if known is None:
            model(tokens())
        else:
            with pytest.raises(PlanError, match="for a model of 1 parameters, this"):
                model(tokens())


def test_a_unit_that_never_ran_stays_one(tmp_path: Path) -> None:
    """A plan that groups the others names it, and leaves it as the script has it."""
    plan, path = Plan(merge=2), tmp_path / "plan.json"
    idle = UnitSpec(fqn="spare", module_class="Linear")
    constraints = RunConstraints(idle=(idle,))
    save_plan(plan, path, settings(plan, planned(plan), constraints))
    (tmp_path / "run.json").write_text("{}")
    with applying(read_settings(path), tmp_path):
        model: Any = Net(4)
        model.spare = torch.nn.Linear(4, 4)
        for part in (*model.layers, model.spare):
            torch.distributed.fsdp.fully_shard(part)
        torch.distributed.fsdp.fully_shard(model)
        model(tokens())

    states = [m._get_fsdp_state() for m in model.modules() if is_unit(m)]
    assert len({id(state) for state in states}) == 4  # root, two pairs, the spare one


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("plan.zero", {"plan": {"zero": 3}}),
        ("apply.offload", {"apply": {"units": {}, "offload": "cpu"}}),
        ("apply.units.a.shard", {"apply": {"units": {"a": {"shard": 2}}}}),
    ],
)
def test_what_a_plan_says_and_nobody_knows(
    tmp_path: Path, where: str, said: dict[str, Any]
) -> None:
    """A file of a later version is refused whole, by `run --apply` and by whatif."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"plan_version": 1, "plan": {}, **said}))
    for read in (read_settings, load_plan):
        with pytest.raises(InputError, match=f"says {where}, which this fsdpdoctor"):
            read(path)


def test_the_recorder_knows_every_setting_of_a_plan() -> None:
    """The names stand twice: the recorder carries no module of plans."""
    assert {field.name for field in fields(Plan)} == KNOWN_PLAN
