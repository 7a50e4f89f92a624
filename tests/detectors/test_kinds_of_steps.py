"""What a step is, in kinds of scripts: counts are as expected, and little is said."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.recorder.steps.steps import OWN_OPTIMIZER
from fsdpdoctor.renderers import RENDERERS
from fsdpdoctor.report import diagnose
from fsdpdoctor.report.value import FindingRow, PhaseCounts, Report
from fsdpdoctor.run import open_run
from tests.recorder.rehearsed import recorded


class Actor(nn.Sequential):
    """One of two models."""


class Critic(nn.Sequential):
    """The other."""


def net(of: type[nn.Sequential] = Actor, frozen: int = 0, **given: Any) -> Any:
    """Three units, the first of them perhaps frozen, and a root without parameters."""
    model: Any = of(*(nn.Linear(8, 8) for _ in range(3)))
    for at, layer in enumerate(model):
        layer.requires_grad_(at >= frozen)
        fully_shard(layer, **given)
    return fully_shard(model, **given)


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    """Of all that trains."""
    every: Iterable[nn.Parameter] = chain(*(m.parameters() for m in models))
    return torch.optim.SGD([p for p in every if p.requires_grad], lr=0.1)


def batch() -> torch.Tensor:
    """Two rows."""
    return torch.ones(2, 8)


def trained(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """One backward, one turn."""
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def in_turn() -> None:
    """A critic and an actor, each with an optimizer and a pass of its own."""
    actor, critic = net(Actor), net(Critic)
    of_actor, of_critic = sgd(actor), sgd(critic)
    for _ in range(7):
        trained(of_critic, critic(actor(batch()).detach()).mean())
        trained(of_actor, critic(actor(batch())).mean())


def one_of_three() -> None:
    """The critic steps three times for each step of the actor."""
    actor, critic = net(Actor), net(Critic)
    of_actor, of_critic = sgd(actor), sgd(critic)
    for at in range(12):
        trained(of_critic, critic(actor(batch()).detach()).mean())
        if at % 3 == 2:
            trained(of_actor, critic(actor(batch())).mean())


def own_optimizer() -> None:
    """A loop over parameters, of the script's own."""
    model = net()
    for _ in range(7):
        model(batch()).mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
                p.grad = None


def one_rank_shards() -> None:
    """Two replicas that shard over one rank each."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = net(mesh=mesh)
    optimizer = sgd(model)
    for _ in range(7):
        trained(optimizer, model(batch()).mean())


def parts_one_by_one() -> None:
    """Past the forward of the module that is sharded around them."""
    model = net()
    optimizer = sgd(model)
    for _ in range(7):
        x = batch()
        for layer in model:
            x = layer(x)
        trained(optimizer, x.mean())


def frozen_tower() -> None:
    """Two blocks that do not train before one that does."""
    model = net(frozen=2)
    optimizer = sgd(model)
    for _ in range(7):
        trained(optimizer, model(batch()).mean())


def evaluated() -> None:
    """After every second step."""
    model = net()
    optimizer = sgd(model)
    for at in range(9):
        if at % 2:
            with torch.no_grad():
                model(batch())
        trained(optimizer, model(batch()).mean())


def models_kept() -> None:
    """Four trainings of two steps; nothing of the earlier ones is let go."""
    kept = []
    for _ in range(4):
        model = net()
        optimizer = sgd(model)
        kept.append((model, optimizer))
        for _ in range(2):
            trained(optimizer, model(batch()).mean())


class Stack(nn.Module):
    """Three blocks of two layers in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        for block in self.blocks:
            x = block(x)
        return x


def stack(*, finely: bool = False) -> Any:
    """Each block is a unit, or each layer."""
    model = Stack()
    for block in model.blocks:
        parts: Iterable[nn.Module] = block.children() if finely else [block]
        for part in parts:
            fully_shard(part)
    return fully_shard(model)


def rebuilt() -> None:
    """The same model once more, while the first one waits for the collector."""
    gc.disable()
    for _ in range(2):
        model = stack()
        optimizer = sgd(model)
        for _ in range(5):
            trained(optimizer, model(batch()).mean())
        del model, optimizer
    gc.enable()


def one_of_two_finely() -> None:
    """Two models whose modules have the same names."""
    coarse, fine = stack(), stack(finely=True)
    optimizer = sgd(coarse, fine)
    for _ in range(7):
        trained(optimizer, fine(coarse(batch())).mean())


class Fails(torch.autograd.Function):
    """Its backward raises."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """As it is."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Amid that of the model."""
        raise MemoryError


def broken_off(*, reset: bool = False) -> None:
    """The third backward breaks off within the model; the script goes on."""
    model = net()
    optimizer = sgd(model)
    fails: Any = Fails
    for at in range(8):
        hook = None
        if at == 2:
            hook = model[0].register_forward_hook(lambda *given: fails.apply(given[2]))
        loss = model(batch()).mean()
        if hook is not None:
            hook.remove()
        try:
            loss.backward()
            optimizer.step()
        except MemoryError:
            if reset:
                model.reset_iter_state()
        optimizer.zero_grad()


def broken_off_and_reset() -> None:
    """FSDP2 is told."""
    broken_off(reset=True)


Diagnosed = Callable[[Callable[[], None]], Report]
"""The report of a script."""


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    """Each script runs once."""

    @cache
    def of(script: Callable[[], None]) -> Report:
        folder = tmp_path_factory.mktemp(script.__name__) / "run"
        with recorded(folder):
            torch.manual_seed(0)
            script()
        return diagnose(open_run(folder))

    return of


def said(report: Report, *codes: str) -> list[FindingRow]:
    """Findings of some codes."""
    return [finding for finding in report.findings if finding.code in codes]


def gathers(report: Report) -> dict[str, tuple[PhaseCounts, PhaseCounts]]:
    """By unit, what was counted and what is expected, per micro-batch."""
    return {u.unit: (u.all_gathers, u.expected_all_gathers) for u in report.units}


COUNTED_WRONGLY = ("FD105", "FD107", "FD108", "FD504")
"""What a step that is cut or counted wrongly brings."""


@pytest.mark.parametrize(
    ("script", "steps", "micro_batches", "backward"),
    [(in_turn, 7, 2.0, 0.5), (one_of_three, 12, 4 / 3, 0.25)],
)
def test_models_in_turn_make_steps_together(
    script: Callable[[], None],
    steps: int,
    micro_batches: float,
    backward: float,
    diagnosed: Diagnosed,
) -> None:
    """The actor has a backward in one of two micro-batches, or of four: it is expected
    that often, and so it is counted, but for the unit that ran last in a forward
    without a backward.
    """
    report = diagnosed(script)
    seldom = PhaseCounts(forward=1.0, backward=backward)
    always = PhaseCounts(forward=1.0, backward=1.0)
    dropped = PhaseCounts(forward=1.0, backward=2 * backward)

    assert report.health.judged_steps == tuple(range(3, steps))
    assert report.run.micro_batches == pytest.approx(micro_batches)
    assert gathers(report) == {
        "0": (seldom, seldom),
        "1": (seldom, seldom),
        "2": (dropped, seldom),
        **{f"{at} [tree=1]": (always, always) for at in range(3)},
    }
    assert said(report, *COUNTED_WRONGLY) == []


def test_a_forward_that_no_backward_follows_is_named(diagnosed: Diagnosed) -> None:
    """Its output is detached; there is no list whose fault it could be."""
    report = diagnosed(in_turn)
    (finding,) = said(report, "FD303")

    assert finding.summary.endswith(
        "the backward of 0 prefetches what ran before it in a forward with gradients "
        "that no backward followed"
    )
    assert finding.summary.startswith("Actor, trained: 1 unit")
    assert "torch.no_grad()" in finding.advice[0].text


def test_models_are_sections_by_class_and_role(diagnosed: Diagnosed) -> None:
    """Of their own in each renderer, and no number of a tree is left."""
    report = diagnosed(in_turn)

    for renderer in ("text", "markdown", "html"):
        text = RENDERERS[renderer](report)
        assert "Units of Actor, trained" in text
        assert "Units of Critic, trained" in text
        assert "[tree=" not in text


def test_an_optimizer_of_ones_own_ends_steps(
    diagnosed: Diagnosed,
) -> None:
    """With the root's backward, and the report says where they end."""
    report = diagnosed(own_optimizer)
    once = PhaseCounts(forward=1.0, backward=1.0)

    assert report.health.judged_steps == (3, 4, 5, 6)
    assert report.run.micro_batches == 1.0
    assert gathers(report) == {str(at): (once, once) for at in range(3)}
    assert report.health.warnings == (f"rank 0: {OWN_OPTIMIZER}",)
    assert said(report, *COUNTED_WRONGLY, "FD303") == []


def test_shards_of_one_rank_are_gathered_by_nobody(diagnosed: Diagnosed) -> None:
    """None is expected, and none counted."""
    report = diagnosed(one_rank_shards)
    none = PhaseCounts(forward=0.0, backward=0.0)

    assert gathers(report) == {str(at): (none, none) for at in range(3)}
    assert said(report, *COUNTED_WRONGLY, "FD101", "FD303") == []


def test_a_parent_without_parameters_never_runs(
    diagnosed: Diagnosed,
) -> None:
    """FD504 names it by its class: each part is a root of its own."""
    report = diagnosed(parts_one_by_one)
    (finding,) = said(report, "FD504")

    assert finding.summary.startswith(
        "the forward of Actor, which is sharded, never ran: each of the 3 units"
    )
    assert finding.evidence["own_parameters"] == 0


def test_a_frozen_tower_is_gathered_for_nothing(
    diagnosed: Diagnosed,
) -> None:
    """The last frozen block, by the first one that trains; in every step."""
    report = diagnosed(frozen_tower)
    (finding,) = said(report, "FD303")

    assert (finding.units, finding.phase) == (("1",), "backward")
    assert finding.evidence["frozen"] is True
    assert finding.evidence["gathers_per_step"] == {"1": 1.0}
    assert said(report, *COUNTED_WRONGLY) == []


def test_the_gather_after_an_evaluation_is_named(diagnosed: Diagnosed) -> None:
    """One unit, in steps that begin with one: it may stay."""
    report = diagnosed(evaluated)
    (finding,) = said(report, "FD303")

    assert finding.units == ("2",)
    assert "is of the pass without gradients that ran before" in finding.summary
    assert finding.advice[0].text.startswith("One gather after such passes")
    assert said(report, *COUNTED_WRONGLY) == []


def test_a_training_after_another_ends_its_steps_alone(tmp_path: Path) -> None:
    """Optimizers that are kept, and step no more, take no turns with the last."""
    with recorded(tmp_path / "run"):
        models_kept()
    data = open_run(tmp_path / "run").sources[0].load()

    assert [s.complete for s in data.steps] == [True] * 8
    assert [s.micro_batches for s in data.steps] == [1] * 8


def test_a_model_s_blocks_hold_its_own_units(diagnosed: Diagnosed) -> None:
    """Units of one name in another model are not counted with them."""
    assert said(diagnosed(rebuilt), "FD202") == []
    found = said(diagnosed(one_of_two_finely), "FD202")
    assert [finding.evidence["units_per_block"] for finding in found] == [2.0]
    assert len(found[0].units) == 6


def test_a_backward_that_breaks_off_leaves_its_modules_untrained(
    diagnosed: Diagnosed,
) -> None:
    """Steps are counted on by the optimizer's, and what is said first is that."""
    report = diagnosed(broken_off)

    (finding,) = said(report, "FD504")
    assert (finding.severity, finding.ranks) == ("critical", (0,))
    assert finding.evidence == {"from_step": 2}
    assert report.health.judged_steps[-1] == 6
    assert report.verdict.text.startswith("An exception broke off a backward")
    assert said(report, "FD107") == []


def test_forwards_after_a_backward_that_broke_off_recompute_nothing(
    tmp_path: Path,
) -> None:
    """FSDP2 takes them for that."""
    with recorded(tmp_path / "run"):
        broken_off()
    (data,) = open_run(tmp_path / "run").load()

    assert [unit.checkpointed for unit in data.header.units] == [False] * 3


def test_a_backward_that_breaks_off_is_no_harm_where_fsdp2_is_told(
    diagnosed: Diagnosed,
) -> None:
    """Each step is one forward and backward, the third a forward more."""
    report = diagnosed(broken_off_and_reset)

    assert said(report, "FD504") == []
    assert report.health.judged_steps[-1] == 6


def test_an_optimizer_that_takes_another_s_parameters_replaces_it(
    tmp_path: Path,
) -> None:
    """What is advised is for the one that steps."""
    with recorded(tmp_path / "run"):
        model, head = net(), net(Critic)
        of_head = sgd(head)
        for at in range(4):
            if at in (0, 2):
                kind: Any = torch.optim.AdamW if at else torch.optim.SGD
                optimizer = kind(model.parameters(), lr=0.1)
            head(model(batch())).mean().backward()
            of_head.step()
            optimizer.step()
    (data,) = open_run(tmp_path / "run").load()

    assert data.header.model is not None
    names = [one.optimizer_class for one in data.header.model.optimizers]
    assert names == ["SGD", "AdamW"]
