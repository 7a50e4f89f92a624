"""The simulator's order of calls and its bytes are those of the installed FSDP2."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from fsdpdoctor.simulate.engine.opcodes import FINALIZE, REDUCE, WAIT_POST, Held
from fsdpdoctor.simulate.engine.schedule import bare_program, program
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    CommCosts,
    Mesh,
    MicroBatch,
    Node,
    Segment,
)
from fsdpdoctor.simulate.plans.regroup import merge_neighbours
from tests.simulate.real import Net, check, sharded, simulated, truth
from tests.simulate.steps import (
    DIM,
    MS,
    ROOT_PARAMS,
    ROOT_UNIT,
    VOCAB,
    checkpointed,
    layer_params,
    nested,
    prefetching,
    step,
    wire,
    with_units,
)

Event = tuple[str, str, int]

fsdp2: Any = _fsdp_param_group  # its names are private


pytestmark = pytest.mark.usefixtures("world")


@pytest.mark.parametrize("reshard", [True, False, 2, 4])
def test_reshard_policies(monkeypatch: pytest.MonkeyPatch, reshard: bool | int) -> None:
    """Gathers, copies, frees and reductions come in FSDP2's order for each policy."""
    model = sharded(reshard_after_forward=reshard)
    base = step(
        wires=CommCosts(all_gather=wire(), reduce_scatter=wire(), post_forward=wire())
    )
    check(
        truth(monkeypatch, model),
        simulated(with_units(base, reshard_after_forward=reshard)),
    )


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("backward", [False, True])
def test_explicit_prefetch(
    monkeypatch: pytest.MonkeyPatch, depth: int, backward: bool
) -> None:
    """Prefetch lists issue the same gathers at the same place."""
    model = sharded()
    blocks: Any = list(model.layers)
    for i, block in enumerate(blocks):
        if backward:
            block.set_modules_to_backward_prefetch(
                [blocks[t] for t in range(i - 1, max(i - 1 - depth, -1), -1)]
            )
        else:
            block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + depth])
    check(
        truth(monkeypatch, model),
        simulated(prefetching(step(), depth, backward=backward)),
    )


FIRST = MicroBatch(sync=False)
LAST = MicroBatch()
KEEP = MicroBatch(sync=False, reshard_after_backward=False, is_last_backward=False)


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize(
    "flags",
    [
        (LAST, LAST),
        (FIRST, FIRST, LAST),
        (KEEP, KEEP, LAST),
        (MicroBatch(is_last_backward=False), LAST),
    ],
    ids=["default", "sync-last", "keep", "not-last"],
)
def test_accumulation(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[MicroBatch, ...], reshard: bool
) -> None:
    """Accumulation flags change what is gathered and reduced as FSDP2 does."""
    model = sharded(reshard_after_forward=reshard)
    base = with_units(step(micro_batches=flags), reshard_after_forward=reshard)
    check(truth(monkeypatch, model, flags), simulated(base))


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_blocks(monkeypatch: pytest.MonkeyPatch, reentrant: bool) -> None:
    """A checkpointed block gathers once more, and who issues it depends on how."""
    model = sharded(reentrant=reentrant)
    how = Checkpoint.REENTRANT if reentrant else Checkpoint.NON_REENTRANT
    check(truth(monkeypatch, model), simulated(checkpointed(step(), how)))


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_units_inside_blocks(
    monkeypatch: pytest.MonkeyPatch, reentrant: bool | None
) -> None:
    """A unit within a unit, also within a recomputed one."""
    model: Any = Net(3, reentrant)
    for block in model.layers:
        fully_shard(block.b)
        fully_shard(block)
    fully_shard(model)
    how = {
        None: Checkpoint.NONE,
        False: Checkpoint.NON_REENTRANT,
        True: Checkpoint.REENTRANT,
    }
    check(truth(monkeypatch, model), simulated(nested(3, how[reentrant])))


@pytest.mark.parametrize("in_backward", [True, False])
def test_split_root(monkeypatch: pytest.MonkeyPatch, in_backward: bool) -> None:
    """Embedding and `[norm, head]` as units of their own; the root is left empty.

    The embedding's weight is not needed in backward, and need not be gathered.
    """
    model: Any = Net(3)
    fully_shard(model.embed).set_unshard_in_backward(in_backward)
    for block in model.layers:
        fully_shard(block)
    fully_shard([model.norm, model.head], reshard_after_forward=False)
    fully_shard(model)
    embed, norm, head = ROOT_PARAMS
    units = (
        replace(
            ROOT_UNIT,
            fqn="embed",
            params=(embed,),
            reshard_after_forward=True,
            unshard_in_backward=in_backward,
        ),
        *step(3).units[1:],
        replace(
            ROOT_UNIT,
            fqn="norm, head",
            params=(norm, head),
            post_backward_at_end=False,
        ),
    )
    segment = Segment(forward_ns=MS, backward_ns=MS)
    items = tuple(Node(units=(i,), items=(i,)) for i in range(5))
    expected = step(
        units=units, segments=(segment,) * 5, root=Node(units=(), items=items)
    )
    check(truth(monkeypatch, model), simulated(expected))


def test_merged_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fully_shard([a, b])` gathers once for both, and reduces once."""
    model: Any = Net(4)
    for i in (0, 2):
        fully_shard(list(model.layers[i : i + 2]))
    fully_shard(model)
    units = [ROOT_UNIT]
    items: list[int | Node] = [0]
    for i in (0, 2):
        fqns = f"layers.{i}", f"layers.{i + 1}"
        params = (*layer_params(fqns[0]), *layer_params(fqns[1]))
        units.append(replace(step().units[1], fqn=", ".join(fqns), params=params))
        items.append(Node(units=(len(units) - 1,), items=(i + 1, i + 2)))
    expected = step(units=tuple(units), root=Node(units=(0,), items=(*items, 5)))
    check(truth(monkeypatch, model), simulated(expected))


@pytest.mark.parametrize("sync_all_reduce", [True, False])
def test_hybrid_mesh(monkeypatch: pytest.MonkeyPatch, sync_all_reduce: bool) -> None:
    """On (2, 4) gathers run over 4 ranks; a skipped all-reduce skips nothing else."""
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh=mesh)
    flags = (MicroBatch(all_reduce=sync_all_reduce), MicroBatch())
    expected = step(
        mesh=Mesh(shard=4, replicate=2),
        wires=CommCosts(all_gather=wire(), reduce_scatter=wire(), all_reduce=wire()),
        micro_batches=flags,
    )
    check(truth(monkeypatch, model, flags), simulated(expected))


def test_mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 gathers and float32 reductions have their own bytes."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    model = sharded(mp_policy=policy)
    dtypes: dict[str, Any] = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
    base = with_units(step(), **dtypes)
    units = (replace(base.units[0], **dtypes), *base.units[1:])
    check(truth(monkeypatch, model), simulated(replace(base, units=units)))


def test_frozen_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen block is gathered and never reduced."""
    model = sharded()
    model.layers[1].requires_grad_(False)
    base = step()
    units = list(base.units)
    frozen = tuple(replace(p, trainable=False) for p in units[2].params)
    units[2] = replace(units[2], params=frozen)
    check(truth(monkeypatch, model), simulated(replace(base, units=tuple(units))))


def test_gathered_peak_is_the_allocators() -> None:
    """The peak of unsharded parameters counts each live unit once."""
    plan = program(step())
    live = peak = 0
    for _, held, _, delta in plan.moves:
        if held == Held.GATHERED:
            live += delta
            peak = max(peak, live)
    layer_bytes = 2 * DIM * DIM * 4
    root_bytes = (2 * VOCAB * DIM + DIM) * 4
    assert (plan.gathered_peak_bytes, peak, live) == (
        root_bytes + layer_bytes,
        root_bytes + layer_bytes,
        0,
    )


def test_a_bare_program_is_the_program_without_its_words() -> None:
    """The same operations and peaks."""
    whole, bare = program(step(3)), bare_program(step(3))

    assert bare.ops == whole.ops
    assert (bare.peak_bytes, bare.gathered_peak_bytes) == (
        whole.peak_bytes,
        whole.gathered_peak_bytes,
    )
    assert len(whole.meta) == len(whole.ops)
    assert (bare.meta, bare.moves) == ((), ())


def test_modules_of_one_unit_that_are_recomputed_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reentrant checkpoints of grouped blocks: the group is gathered for each, and
    each one's gradients are reduced alone.
    """
    model: Any = Net(4, reentrant=True)
    fully_shard([model.layers[0], model.layers[1]])
    fully_shard([model.layers[2], model.layers[3]])
    fully_shard(model)
    merged = merge_neighbours(checkpointed(step(), Checkpoint.REENTRANT), 2)
    real, expected = truth(monkeypatch, model), simulated(merged)

    assert [what for what, _, _ in real.events] == [w for w, _, _ in expected.events]
    assert sum(what == "reduce" for what, _, _ in real.events) == 5


def test_a_part_of_a_unit_waits_for_its_reduction_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compute stream does, before the next part's backward; not for the last part
    of a unit, nor for the root.
    """
    model: Any = Net(4, reentrant=True)
    fully_shard([model.layers[0], model.layers[1]])
    fully_shard([model.layers[2], model.layers[3]])
    fully_shard(model)
    tokens = torch.randint(0, VOCAB, (2, 4))
    model(tokens).sum().backward()
    real: list[str] = []
    reduce = fsdp2.foreach_reduce

    def on_wait(stream: object, event: object) -> None:
        if sys._getframe(1).f_code.co_name == "post_backward":
            real.append("wait")

    def on_reduce(*args: Any) -> Any:
        real.append("reduce")
        return reduce(*args)

    monkeypatch.setattr(torch.cpu.Stream, "wait_event", on_wait)
    monkeypatch.setattr(fsdp2, "foreach_reduce", on_reduce)
    model(tokens).sum().backward()

    merged = merge_neighbours(checkpointed(step(), Checkpoint.REENTRANT), 2)
    ops = [op for op in program(merged).ops if op[0] in (REDUCE, WAIT_POST)]
    expected = [
        "reduce" if op[0] == REDUCE else "wait"
        for op, before in zip(ops, [(), *ops], strict=False)
        if op[0] == REDUCE or before[0] == REDUCE
    ]
    assert real == ["reduce", "wait", "reduce", "reduce", "wait", "reduce", "reduce"]
    assert real == expected


@pytest.mark.parametrize(("micro_batches", "apart"), [(1, 0), (2, 1040 + 512)])
def test_what_replicas_reduced_is_held_beside_the_gradient_it_is_added_to(
    monkeypatch: pytest.MonkeyPatch, micro_batches: int, apart: int
) -> None:
    """The first time it is the gradient; 4160 and 2048 bytes over 4 ranks."""
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    model = sharded(1, mesh=mesh)
    held: list[int] = []
    finalize = fsdp2.FSDPParamGroup.finalize_backward

    def on_finalize(group: Any) -> None:
        kept = group._all_reduce_state.all_reduce_input
        of_grads = {
            p.sharded_param.grad._local_tensor.untyped_storage().data_ptr()
            for p in group.fsdp_params
        }
        is_grad = kept.untyped_storage().data_ptr() in of_grads
        held.append(0 if is_grad else kept.nbytes)
        finalize(group)

    monkeypatch.setattr(fsdp2.FSDPParamGroup, "finalize_backward", on_finalize)
    for _ in range(micro_batches):
        model(torch.randint(0, VOCAB, (2, 4))).sum().backward()

    plan = program(
        step(
            1,
            mesh=Mesh(shard=4, replicate=2),
            wires=CommCosts(
                all_gather=wire(), reduce_scatter=wire(), all_reduce=wire()
            ),
            micro_batches=(MicroBatch(),) * micro_batches,
        )
    )
    last = max(at for at, op in enumerate(plan.ops) if op[0] == FINALIZE)
    outputs = (
        delta
        for at, kind, _, delta in plan.moves
        if kind == Held.REDUCE_OUTPUT and at <= last
    )
    assert sum(held[-2:]) == apart
    assert sum(outputs) == apart


class Passing(nn.Module):
    """A block whose output is its inner unit's."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(DIM, DIM, bias=False)
        self.b = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through both, and nothing after the second."""
        y: torch.Tensor = self.b(self.a(x))
        return y


def test_a_unit_whose_output_is_its_childs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks on one tensor run as they were registered: the child's come first."""
    model: Any = Net(3)
    model.layers = nn.ModuleList(Passing() for _ in range(3))
    for block in model.layers:
        fully_shard(block.b)
        fully_shard(block)
    fully_shard(model)
    base = nested()
    items = [
        replace(item, passes_output_on=True) if isinstance(item, Node) else item
        for item in base.root.items
    ]
    check(
        truth(monkeypatch, model),
        simulated(replace(base, root=replace(base.root, items=tuple(items)))),
    )


def test_a_frozen_trunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hook in backward where no gradient comes by, but one gather ahead of it."""
    model: Any = Net(4)
    model.embed.requires_grad_(False)
    for block in model.layers[:2]:
        block.requires_grad_(False)
    for block in model.layers:
        fully_shard(block)
    fully_shard(model)
    base = step()
    units = [
        replace(
            unit,
            params=tuple(replace(p, trainable=False) for p in unit.params),
        )
        if unit.fqn in ("layers.0", "layers.1")
        else unit
        for unit in base.units
    ]
    root = tuple(
        replace(p, trainable=p.fqn != "embed.weight") for p in base.units[0].params
    )
    units[0] = replace(units[0], params=root)
    units[3] = replace(units[3], post_backward_at_end=True)
    items = [
        replace(item, runs_backward=item.units[0] > 2)
        if isinstance(item, Node)
        else item
        for item in base.root.items
    ]
    frozen = replace(
        base, units=tuple(units), root=replace(base.root, items=tuple(items))
    )
    check(truth(monkeypatch, model), simulated(frozen))


def test_a_kept_shard_that_nothing_gathers_stays() -> None:
    """That of a frozen trunk: half of 1024 bytes twice, through the backward."""
    model = sharded(2, reshard_after_forward=2)
    model.embed.requires_grad_(False)
    model.layers[0].requires_grad_(False)
    model(torch.randint(0, VOCAB, (2, 4))).sum().backward()
    kept = [
        param._sharded_post_forward_param_data
        for block in model.layers
        for group in block._get_fsdp_state()._fsdp_param_groups
        for param in group.fsdp_params
    ]
    wires = CommCosts(all_gather=wire(), reduce_scatter=wire(), post_forward=wire())
    base = with_units(step(2, wires=wires, after_ns=1), reshard_after_forward=2)
    trunk, layer = base.root.items[1:3]
    assert isinstance(trunk, Node)
    items = (0, replace(trunk, runs_backward=False), layer, 3)
    plan = program(replace(base, root=replace(base.root, items=items)))
    held = [
        (unit, delta)
        for at, kind, unit, delta in plan.moves
        if kind == Held.POST_FORWARD and at < len(plan.ops)
    ]
    assert [0 if each is None else each.nbytes for each in kept] == [512, 512, 0, 0]
    assert held == [(1, 1024), (2, 1024), (2, -1024)]
