"""The simulator's order of calls and its bytes are those of the installed FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from fsdpdoctor.simulate.model import (
    Checkpoint,
    Mesh,
    MicroBatch,
    Node,
    Segment,
    Step,
    Wires,
)
from fsdpdoctor.simulate.program import (
    GATHER,
    POST_FORWARD_COMM,
    REDUCE,
    RESHARD,
    USE,
    Held,
    program,
)
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


class Block(nn.Module):
    """Two square matrices, the second one perhaps a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(DIM, DIM, bias=False)
        self.b = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through both."""
        return torch.relu(self.b(self.a(x)))


class Net(nn.Module):
    """Embedding, blocks, norm and head."""

    def __init__(self, layers: int, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.reentrant = reentrant

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(tokens)
        for block in self.layers:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


@dataclass
class Log:
    """What FSDP2 did: events in host order, and bytes by unit."""

    events: list[Event] = field(default_factory=list)
    gathered: dict[str, int] = field(default_factory=dict)
    reduced: dict[str, int] = field(default_factory=dict)


def name(group: Any) -> str:
    """Of a unit, as fsdpdoctor prints it."""
    return group._module_fqn or "<root>"


@contextmanager
def logged(monkeypatch: pytest.MonkeyPatch, modules: nn.Module) -> Iterator[Log]:
    """Write down every collective, copy-out and reshard of a model's units."""
    log = Log()
    wrapped_modules: list[Any] = [
        m for m in modules.modules() if isinstance(m, FSDPModule)
    ]
    groups = [
        g for m in wrapped_modules for g in m._get_fsdp_state()._fsdp_param_groups
    ]
    of_param = {id(p): g for g in groups for p in g.fsdp_params}
    gather, copy_out = fsdp2.foreach_all_gather, fsdp2.foreach_all_gather_copy_out
    reduce, to_sharded = fsdp2.foreach_reduce, fsdp2.FSDPParamGroup._to_sharded
    to_small = fsdp2.FSDPParamGroup._to_sharded_post_forward

    def on_gather(params: Any, group: Any, *args: Any) -> Any:
        unit = name(of_param[id(params[0])])
        log.events.append(("gather", unit, group.size()))
        result = gather(params, group, *args)
        log.gathered[unit] = result.all_gather_output.nbytes
        return result

    def on_copy_out(result: Any, params: Any, group: Any) -> Any:
        log.events.append(("use", name(of_param[id(params[0])]), 0))
        return copy_out(result, params, group)

    def on_reduce(params: Any, *args: Any) -> Any:
        unit = name(of_param[id(params[0])])
        log.events.append(("reduce", unit, 0))
        result = reduce(params, *args)
        log.reduced[unit] = result[0].nbytes
        return result

    def on_reshard(call: Callable[[Any], None]) -> Callable[[Any], None]:
        def wrapped(group: Any) -> None:
            if group.is_unsharded:
                log.events.append(("reshard", name(group), 0))
            call(group)

        return wrapped

    monkeypatch.setattr(fsdp2, "foreach_all_gather", on_gather)
    monkeypatch.setattr(fsdp2, "foreach_all_gather_copy_out", on_copy_out)
    monkeypatch.setattr(fsdp2, "foreach_reduce", on_reduce)
    monkeypatch.setattr(fsdp2.FSDPParamGroup, "_to_sharded", on_reshard(to_sharded))
    monkeypatch.setattr(
        fsdp2.FSDPParamGroup, "_to_sharded_post_forward", on_reshard(to_small)
    )
    yield log


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def world() -> Iterator[None]:
    """Rank 0 of 8, whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


def truth(
    monkeypatch: pytest.MonkeyPatch,
    model: nn.Module,
    flags: tuple[MicroBatch, ...] = (MicroBatch(),),
) -> Log:
    """One step of real FSDP2, after one that initialises it lazily."""
    tokens = torch.randint(0, VOCAB, (2, 4))

    def train() -> None:
        root: Any = model
        for f in flags:
            root.set_requires_gradient_sync(f.sync)
            root.set_requires_all_reduce(f.all_reduce)
            root.set_reshard_after_backward(f.reshard_after_backward)
            root.set_is_last_backward(f.is_last_backward)
            model(tokens).sum().backward()
        model.zero_grad()

    train()
    with logged(monkeypatch, model) as log:
        train()
    return log


def simulated(simulated_step: Step) -> Log:
    """The same, as the simulator has it."""
    log, plan = Log(), program(simulated_step)
    shards = simulated_step.mesh.shard
    for op, meta in zip(plan.ops, plan.meta, strict=True):
        unit = simulated_step.units[meta[0]] if meta[0] >= 0 else None
        if unit is None:
            continue
        if op[0] == GATHER:
            small = op[5] == POST_FORWARD_COMM
            size = int(unit.reshard_after_forward) if small else shards
            log.events.append(("gather", unit.fqn, size))
            log.gathered[unit.fqn] = unit.gathered_bytes(shards)
        elif op[0] == USE:
            log.events.append(("use", unit.fqn, 0))
        elif op[0] == RESHARD:
            log.events.append(("reshard", unit.fqn, 0))
        elif op[0] == REDUCE:
            log.events.append(("reduce", unit.fqn, 0))
            log.reduced[unit.fqn] = unit.reduced_bytes(shards)
    return log


def sharded(layers: int = 4, reentrant: bool | None = None, **known: Any) -> Any:
    """A Net, block-wrapped."""
    model = Net(layers, reentrant)
    for block in model.layers:
        fully_shard(block, **known)
    root = {k: v for k, v in known.items() if k != "reshard_after_forward"}
    fully_shard(model, **root)
    return model


def check(real: Log, expected: Log) -> None:
    """The same events in the same order, the same bytes."""
    assert real.events == expected.events
    assert real.gathered == expected.gathered
    assert real.reduced == expected.reduced


pytestmark = pytest.mark.usefixtures("world")


@pytest.mark.parametrize("reshard", [True, False, 2, 4])
def test_reshard_policies(monkeypatch: pytest.MonkeyPatch, reshard: bool | int) -> None:
    """Gathers, copies, frees and reductions come in FSDP2's order for each policy."""
    model = sharded(reshard_after_forward=reshard)
    base = step(
        wires=Wires(all_gather=wire(), reduce_scatter=wire(), post_forward=wire())
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
        wires=Wires(all_gather=wire(), reduce_scatter=wire(), all_reduce=wire()),
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
