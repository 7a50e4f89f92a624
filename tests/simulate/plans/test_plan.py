"""Plans: what they change, what they refuse, and what a search makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fsdpdoctor.changes.plan import Plan, load_plan, save_plan
from fsdpdoctor.errors import InputError, NewerFormatError, UsageError
from fsdpdoctor.schema import BlockSpec
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    Mesh,
    MicroBatch,
    Node,
    Segment,
    Step,
)
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.predict import Replay, predict, replay
from fsdpdoctor.simulate.plans.regroup import merge_neighbours
from fsdpdoctor.simulate.plans.search import code_cost, search
from tests.simulate.steps import ROOT_PARAMS, checkpointed, layer_params, step


def under(plan: Plan, base: Step | None = None) -> Step:
    """A step under a plan."""
    return changed(plan, base or step(4), RunConstraints()).step


def test_words_name_units_as_they_are_told_to() -> None:
    """A plan for every unit names none."""
    plan = Plan(
        reshard_after_forward={"a": False, "b": 2}, forward_prefetch_of={"a": 1}
    )

    assert str(plan) == (
        "forward prefetch of: a 1, reshard after forward: a False, b 2"
    )
    assert plan.words(str.upper) == (
        "forward prefetch of: A 1, reshard after forward: A False, B 2"
    )
    assert Plan(reshard_after_forward={"*": True}).words(str.upper) == (
        "reshard after forward: True"
    )


def test_depth_makes_lists_in_the_order_of_the_pass() -> None:
    """The root prefetches the first block; backward begins at the last one."""
    units = under(Plan(forward_prefetch=2, backward_prefetch=1)).units

    assert [u.forward_prefetch for u in units] == [(1, 2), (2, 3), (3, 4), (4,), ()]
    assert [u.backward_prefetch for u in units] == [(4,), (), (1,), (2,), (3,)]


def test_no_lists_are_a_change(tmp_path: Path) -> None:
    """A depth of 0 is said, saved and read back: it is not the run's own setting."""
    plan = Plan(forward_prefetch=0, backward_prefetch=0)
    save_plan(plan, tmp_path / "plan.json", {})

    assert plan.changes == {"forward_prefetch": 0, "backward_prefetch": 0}
    assert str(plan) == "forward prefetch 0, backward prefetch 0"
    assert load_plan(tmp_path / "plan.json") == plan
    assert Plan(split_root=False, unshard_async_op=False).changes == {
        "unshard_async_op": False
    }


def test_merged_neighbours_are_one_unit() -> None:
    """Names, parameters and segments go together, in order; a rest stays alone."""
    merged = under(Plan(merge=3))

    assert [u.fqn for u in merged.units] == [
        "<root>",
        "layers.0, layers.1, layers.2",
        "layers.3",
    ]
    assert merged.units[1].numel == 3 * sum(p.numel for p in layer_params("x"))
    assert merged.segments == step(4).segments


def test_a_split_root_keeps_nothing() -> None:
    """The embedding, and norm and head, each with their parameters."""
    split = under(Plan(split_root=True))

    assert split.root.units == ()
    assert {u.fqn: u.params for u in split.units if "layers" not in u.fqn} == {
        "embed": ROOT_PARAMS[:1],
        "norm, head": ROOT_PARAMS[1:],
    }


def test_wrapping_shares_the_compute_out() -> None:
    """A root-only model becomes a unit for each block, with the same total."""
    one = step(0)
    params = (*ROOT_PARAMS, *layer_params("layers.0"), *layer_params("layers.1"))
    root = replace(one.units[0], params=params)
    base = replace(one, units=(root,), root=Node(units=(0,), items=(0, 1)))
    block = BlockSpec(
        container="layers", module_class="Block", count=2, units=0, numel=512
    )
    wrapped = changed(Plan(wrap="Block"), base, RunConstraints(blocks=(block,))).step
    total = sum(s.forward_ns for s in base.segments)

    assert [u.fqn for u in wrapped.units] == ["<root>", "layers.0", "layers.1"]
    assert abs(sum(s.forward_ns for s in wrapped.segments) - total) <= 3


def test_a_link_costs_what_rehearse_would_take() -> None:
    """Bytes that each rank must send, over the link's bus bandwidth."""
    wires = under(Plan(bandwidth="1GB/s@10us", world_size=16, replicate=4)).wires
    all_reduce = wires.all_reduce

    assert all_reduce is not None
    assert wires.all_gather.ns(4_000_000) == 10_000 + 3_000_000
    assert all_reduce.ns(4_000_000) == 10_000 + 6_000_000


def test_accumulation_sets_the_flags_of_all_but_the_last() -> None:
    """`keep` is ZeRO-1's recipe."""
    kept = MicroBatch(sync=False, reshard_after_backward=False, is_last_backward=False)
    flags = under(Plan(accumulation="keep", micro_batches=3)).micro_batches

    assert flags == (kept, kept, MicroBatch())


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(reshard_after_forward={"*": 3}), "does not divide"),
        (Plan(reshard_after_forward={"layers.9": False}), "layers.9 is no unit"),
        (Plan(forward_prefetch_of={"nothing": 1}), "nothing is no unit"),
        (Plan(wrap="Block"), "no class that repeats"),
        (Plan(replicate=3), "cannot be 3 replicas"),
        (Plan(bandwidth="fast"), "is no link"),
    ],
)
def test_what_does_not_fit_is_refused(plan: Plan, said: str) -> None:
    """In one sentence."""
    with pytest.raises(UsageError, match=said):
        under(plan)


def test_a_step_of_too_many_micro_batches_is_refused() -> None:
    """Each takes memory and time: a billion of them ended the process."""
    said = "micro_batches is 1025; a step of more than 1,024 is not simulated"

    assert len(under(Plan(micro_batches=1024)).micro_batches) == 1024
    with pytest.raises(UsageError) as told:
        under(Plan(micro_batches=1025))

    assert str(told.value) == said


def test_tied_weights_are_not_split() -> None:
    """FSDP2 wants a shared weight in one unit."""
    constraints = RunConstraints(tied=(("embed.weight", "head.weight"),))
    with pytest.raises(UsageError, match="share a weight"):
        changed(Plan(split_root=True), step(4), constraints)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """Saved, loaded, the same; a newer format and no plan at all are refused."""
    plan = Plan(
        forward_prefetch=1,
        reshard_after_forward={"*": False, "layers.0": 2},
        unshard_async_op=False,
    )
    path = tmp_path / "plan.json"
    save_plan(plan, path, {"units": {}})
    assert load_plan(path) == plan

    path.write_text(path.read_text().replace('plan_version": 1', 'plan_version": 9'))
    with pytest.raises(NewerFormatError, match="plan format 9"):
        load_plan(path)
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is no plan: maximum recursion depth"):
        load_plan(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"plan.json is a device: expected a file"):
        load_plan(path)
    path.unlink()
    path.write_text("{}")
    with pytest.raises(InputError, match="is no plan"):
        load_plan(path)
    path.write_text('{"plan_version": 1, "plan": {"merge": "two"}}')
    with pytest.raises(InputError, match="is damaged"):
        load_plan(path)


def base_of(one: Step) -> Replay:
    """A simulated run, replayed."""
    return replay(calibrate(record(one)))


def test_the_front_is_cheapest_first_and_beats_itself_nowhere() -> None:
    """No plan on it is as good as another in time, memory and code at once."""
    found = search(base_of(step(6, blocking=True)))
    costs = [code_cost(p.plan) for p in found]

    assert found
    assert costs == sorted(costs)
    for one in found:
        for other in found:
            if one is not other:
                assert not (
                    one.step_ns <= other.step_ns
                    and one.memory_cost_bytes <= other.memory_cost_bytes
                    and code_cost(one.plan) <= code_cost(other.plan)
                )


def test_a_limit_leaves_out_what_needs_more() -> None:
    """Nothing on the front needs more than the device has."""
    base = base_of(step(6, blocking=True))
    known = replace(
        base,
        calibration=replace(
            base.calibration,
            step=replace(base.calibration.step, resident_bytes=1 << 20),
        ),
    )
    limit = predict(known, Plan()).peak_bytes
    found = search(known, limit)
    assert limit is not None
    assert max(p.memory_cost_bytes for p in search(known)) > 0

    assert all(p.peak_bytes is not None and p.peak_bytes <= limit for p in found)


def test_recomputation_forbids_forward_prefetch() -> None:
    """It can be asked about, is said not to be advised, and is never found."""
    base = base_of(checkpointed(step(4, blocking=True), Checkpoint.REENTRANT))
    asked = predict(base, Plan(forward_prefetch=1, unshard_async_op=True))

    assert asked.forbidden is not None
    assert not [p for p in search(base) if p.plan.forward_prefetch]


def test_methods_that_torch_lacks_are_not_proposed() -> None:
    """An older torch cannot separate the groups."""
    base = base_of(step(6))
    constraints = replace(
        base.calibration.constraints, available=("set_reshard_after_forward",)
    )
    old = replace(base, calibration=replace(base.calibration, constraints=constraints))
    found = search(old)

    assert not [p for p in found if p.plan.separate_reduce_scatter_group]
    assert [p for p in search(base) if p.plan.separate_reduce_scatter_group]


def test_a_replay_that_is_far_off_is_not_used() -> None:
    """Beyond a tenth of the step there is a sentence instead of predictions."""
    base = base_of(step(2))
    off = replace(base, error=0.11)

    assert base.usable
    assert not off.usable
    assert "off by +11.0 %" in off.why_withheld


def test_another_mesh_keeps_the_bus_bandwidth() -> None:
    """Over half as many ranks a gather's output moves by less of itself."""
    base = step(4)
    wires = under(Plan(replicate=2), base).wires
    before, after = base.wires.all_gather, wires.all_gather
    moved = (before.ns(8000) - before.latency_ns) * 8 / 7

    assert after.ns(8000) - after.latency_ns == round(moved * 3 / 4)
    assert under(Plan(replicate=2), base).mesh == Mesh(shard=4, replicate=2)


def test_neighbours_are_merged_with_what_the_root_computes_between_them() -> None:
    """A real loop over blocks takes time of its own, which changes nothing."""
    plain = step(4)
    first, *rest = [item for item in plain.root.items if isinstance(item, Node)]
    begin = plain.root.items.index(first)
    loop = len(plain.segments)
    between: list[int | Node] = [first]
    for at, node in enumerate(rest):
        between += [loop + at, node]
    items = (*plain.root.items[:begin], *between, *plain.root.items[begin + 4 :])
    segments = (*plain.segments, *(Segment(forward_ns=7, backward_ns=9),) * 3)
    looped = replace(plain, root=replace(plain.root, items=items), segments=segments)

    merged = merge_neighbours(looped, 2)
    nodes = [item for item in merged.root.items if isinstance(item, Node)]

    assert len(merged.units) == 3
    assert [len(merged.units[n.units[0]].params) for n in nodes] == [
        2 * len(plain.units[1].params)
    ] * 2
    # The first and third loops are inside a merged unit, the second between the two.
    assert [loop + at in nodes[0].items for at in range(3)] == [True, False, False]
    assert [loop + at in nodes[1].items for at in range(3)] == [False, False, True]
    assert loop + 1 in merged.root.items
    assert nanoseconds(merged) == nanoseconds(looped)


def nanoseconds(step: Step) -> int:
    """The compute of all segments that a step's nodes hold."""
    held = [i for node in step.root.walk() for i in node.items if isinstance(i, int)]
    return sum(step.segments[i].forward_ns for i in held)


def test_a_merge_that_changes_nothing_is_refused() -> None:
    """A single block has no neighbour."""
    with pytest.raises(UsageError, match="no two units right below the root"):
        merge_neighbours(step(1), 2)
