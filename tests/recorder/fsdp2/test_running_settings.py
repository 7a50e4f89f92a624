"""What is set on a running model is what FSDP2's own methods set, and can be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.errors import PlanError
from fsdpdoctor.plan_file import settings_of
from fsdpdoctor.recorder.changes.apply_plan import units_in
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.running_settings import (
    Change,
    Place,
    changes_of,
    fingerprint,
    put,
    settle,
    unlike,
)
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.settings import settings
from tests.simulate.conftest import one_thread, world
from tests.simulate.real import check, logged, sharded, simulated
from tests.simulate.steps import VOCAB, step

__all__ = ["one_thread", "world"]
pytestmark = pytest.mark.usefixtures("world")


OF_A_STATE = ("_states_to_forward_prefetch", "_states_to_backward_prefetch")
OF_A_GROUP = (
    "post_forward_mesh_info",
    "unshard_async_op",
    "reduce_scatter_max_input_buffers",
)


def places(root: Any) -> Iterator[Place]:
    """All that may be told to the units of an initialised root."""
    for state in internals.all_states(root):
        yield from there_is(state, OF_A_STATE)
        for group in internals.groups_of(state):
            yield from there_is(group, OF_A_GROUP)
    yield from there_is(root._comm_ctx, ("reduce_scatter_max_input_buffers",))


def there_is(owner: Any, names: Sequence[str]) -> Iterator[Place]:
    """Those that this torch has."""
    return (Place(owner, name) for name in names if hasattr(owner, name))


def held(changes: Sequence[Change]) -> list[Change]:
    """What is there now, in their places: to put back."""
    return [Change(place, place.value) for place, _ in changes]


def train(model: Any) -> None:
    """One step without an optimizer."""
    model(torch.randint(0, VOCAB, (2, 4))).sum().backward()
    model.zero_grad()


def running() -> tuple[Any, Any]:
    """A model of four layers that has run, and its root's state."""
    model = sharded(4)
    train(model)
    return model, model._get_fsdp_state()


def changes(plan: Plan, root: Any) -> list[Change]:
    """What a plan comes to for the running model."""
    made = changed(plan, step(4, blocking=True), RunConstraints()).step
    return changes_of(
        settings_of(settings(plan, made)), root, units_in(root._modules[0])
    )


PLANS = {
    "prefetch": Plan(forward_prefetch=2, backward_prefetch=2, unshard_async_op=True),
    "no lists": Plan(forward_prefetch=0, backward_prefetch=0),
    "single lists": Plan(
        forward_prefetch=1, forward_prefetch_of={"layers.1": 3}, unshard_async_op=True
    ),
    "gathered": Plan(reshard_after_forward={"*": False}),
    "some gathered": Plan(reshard_after_forward={"layers.2": False, "layers.3": False}),
    "buffers": Plan(max_input_buffers=3),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_running_model_does_what_is_simulated(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In the very next step, and the step after it has been put back is as before."""
    plan = PLANS[name]
    model, root = running()
    before = [place.value for place in places(root)]
    wanted = changes(plan, root)
    back = held(wanted)

    put(wanted)
    with monkeypatch.context() as patches, logged(patches, model) as tried:
        train(model)
    assert unlike(wanted) is None
    put(back)
    with logged(monkeypatch, model) as after:
        train(model)

    base = step(4, blocking=True)
    check(tried, simulated(changed(plan, base, RunConstraints()).step))
    check(after, simulated(base))
    assert all(
        there is value
        for there, value in zip(
            (place.value for place in places(root)), before, strict=True
        )
    )


METHODS: dict[str, tuple[Plan, Callable[[Any], None]]] = {
    "forward": (
        Plan(forward_prefetch_of={"layers.0": 2}),
        lambda m: m.layers[0].set_modules_to_forward_prefetch([*m.layers[1:3]]),
    ),
    "backward": (
        Plan(backward_prefetch_of={"layers.3": 1}),
        lambda m: m.layers[3].set_modules_to_backward_prefetch([m.layers[2]]),
    ),
    "gathered": (
        Plan(reshard_after_forward={"layers.1": False}),
        lambda m: m.layers[1].set_reshard_after_forward(False, recurse=False),
    ),
    "async": (Plan(unshard_async_op=True), lambda m: m._set_unshard_async_op(True)),
}


@pytest.mark.parametrize("name", METHODS)
def test_it_is_what_the_methods_set(name: str) -> None:
    """On one place or on all of them."""
    plan, method = METHODS[name]
    model, root = running()
    wanted = changes(plan, root)
    method(model)

    assert wanted
    assert unlike(wanted) is None


@pytest.mark.parametrize("name", PLANS)
def test_it_is_the_same_whatever_is_set_meanwhile(name: str) -> None:
    """Ranks prepare it at different moments: in a trial, or in a pass without
    gradients, under the script's own settings.
    """
    _, root = running()
    before = changes(PLANS[name], root)
    for other in PLANS.values():
        there = changes(other, root)
        back = held(there)
        put(there)
        assert changes(PLANS[name], root) == before
        assert fingerprint(changes(PLANS[name], root), root) == fingerprint(
            before, root
        )
        put(back)


def test_plans_have_fingerprints_of_their_own() -> None:
    """What two ranks would do differently, differs."""
    _, root = running()
    found = {fingerprint(changes(plan, root), root) for plan in PLANS.values()}
    assert len(found) == len(PLANS)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Plan(merge=2), "groups cannot be changed in a running job"),
        (Plan(param_dtype="bfloat16"), "param_dtype cannot be changed"),
        (Plan(separate_reduce_scatter_group=True), "separate_reduce_scatter_group"),
        (Plan(accumulation="last"), "accumulation cannot be changed"),
    ],
)
def test_what_would_change_numbers_is_refused(plan: Plan, why: str) -> None:
    """Or needs a new start."""
    _, root = running()
    with pytest.raises(PlanError, match=why):
        changes(plan, root)


def test_units_of_another_model_are_refused() -> None:
    """By name."""
    _, root = running()
    there = settings_of({"units": {"layers.9": {"reshard_after_forward": False}}})
    with pytest.raises(PlanError, match=r"layers\.9 is no unit of this model"):
        changes_of(there, root, units_in(root._modules[0]))


def test_a_signal_handlers_error_leaves_nothing_half_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it raises comes through when all is set."""
    _, root = running()
    wanted = changes(Plan(forward_prefetch=1), root)
    from fsdpdoctor.recorder.fsdp2 import running_settings

    real, calls = running_settings._put, iter(range(2))

    def interrupted(some: list[Change]) -> None:
        if next(calls) == 0:
            real(some[:1])
            raise KeyboardInterrupt
        real(some)

    monkeypatch.setattr(running_settings, "_put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(wanted)

    assert unlike(wanted) is None


def test_nothing_gathered_outlives_an_optimizer() -> None:
    """A pass without a backward leaves units gathered, and one that was prefetched and
    not used: after `settle` the next forward gathers them anew.
    """
    model, root = running()
    wanted = changes(
        Plan(
            reshard_after_forward={"layers.1": False},
            forward_prefetch=1,
            unshard_async_op=True,
        ),
        root,
    )
    put(wanted)
    with torch.no_grad():
        model(torch.randint(0, VOCAB, (2, 4)))
    group = internals.groups_of(model.layers[1]._get_fsdp_state())[0]
    model.layers[2].unshard(async_op=True)
    other = internals.groups_of(model.layers[2]._get_fsdp_state())[0]
    assert internals.is_unsharded(group)
    assert other._all_gather_result is not None

    settle(wanted)

    assert not internals.is_unsharded(group)
    assert not internals.is_unsharded(other)
    assert other._all_gather_result is None
