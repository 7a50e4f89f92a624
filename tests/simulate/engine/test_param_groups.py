"""FSDP2's calls and its memory, one by one, for models that fit on a page.

What is expected is read off torch's `_fsdp_param_group.py`, by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fsdpdoctor.simulate.engine.opcodes import (
    COMPUTE,
    FINALIZE,
    FLUSH,
    GATHER,
    HOST,
    REDUCE,
    RESHARD,
    ROOT,
    SYNC,
    USE,
    WAIT_GATHER,
    WAIT_POST,
    WAIT_SCATTER,
    Held,
    Meta,
    Op,
    Pass,
    Program,
)
from fsdpdoctor.simulate.engine.schedule import bare_program, program
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    CommCosts,
    Mesh,
    MicroBatch,
    Node,
    Param,
    Segment,
    Step,
    Unit,
)
from tests.simulate.steps import MS, checkpointed, nested, prefetching, step, wire
from tests.simulate.steps import with_units as with_layers

OF_UNIT = "copy-in gather small-gather copy-out reduce-copy-in scatter all-reduce clone"
OF_SEGMENT = "forward backward recompute launch-forward launch-backward"
REST = (
    "root pre-forward unshard wait post-forward pre-backward post-backward reduce "
    "final input loss launch-loss before after launch-after"
)
NAMES = {
    GATHER: "gather",
    USE: "use",
    RESHARD: "reshard",
    REDUCE: "reduce",
    WAIT_SCATTER: "wait-scatter",
    WAIT_POST: "wait-post",
    FINALIZE: "finalize",
    WAIT_GATHER: "wait-gather",
    SYNC: "sync",
    FLUSH: "flush",
    ROOT: "root",
}
COMMUNICATORS = "shard reduce replicate post-forward"


def cost(one: Step, index: int) -> str:
    """What an index into the durations stands for."""
    units, segments = 8 * len(one.units), 5 * len(one.segments)
    if index < 0:
        return "-"
    if index < units:
        return f"{OF_UNIT.split()[index % 8]}.{index // 8}"
    if index < units + segments:
        index -= units
        return f"{OF_SEGMENT.split()[index % 5]}.{index // 5}"
    return REST.split()[index - units - segments]


def words(one: Step, op: Op) -> str:
    """An operation, its costs by name."""
    code, *rest = op
    if code in (HOST, COMPUTE):
        return " ".join(cost(one, index) for index in rest)
    said = [NAMES[code]]
    if code == GATHER:
        slot, *costs, comm, async_op, event = rest
        said += [f"#{slot}", *(cost(one, index) for index in costs)]
        said += [COMMUNICATORS.split()[comm], *(["async"] if async_op else [])]
        said += [f"after {event}"] if event >= 0 else []
    elif code == USE:
        slot, *costs, waits, defers = rest
        said += [f"#{slot}", *(cost(one, index) for index in costs)]
        said += ["waits"] * waits + ["defers"] * defers
    elif code == RESHARD:
        said += [f"{rest[0]}", cost(one, rest[1])]
    elif code == REDUCE:
        id_, call, copy, length, comm, more = rest
        said += [f"#{id_}", *(cost(one, index) for index in (call, copy, length))]
        said += [COMMUNICATORS.split()[comm], cost(one, more)]
    elif code == ROOT:
        said = [cost(one, rest[0])]
    elif rest:
        said += [f"#{rest[0]}"]
    return " ".join(said)


def about(meta: Meta) -> str:
    """Phase, micro-batch, unit, and by which unit: `f0 1<0`."""
    unit, phase, micro_batch, by_unit, flags, _ = meta
    who = "-" if unit < 0 else str(unit)
    by = "" if by_unit < 0 else f"<{by_unit}"
    return f"{'ofbs'[phase]}{micro_batch} {who}{by}" + (f" +{flags}" if flags else "")


def listing(one: Step) -> list[str]:
    """Every operation of a step, and what it is about."""
    plan = program(one)
    return [
        f"{about(meta)}: {words(one, op)}"
        for op, meta in zip(plan.ops, plan.meta, strict=True)
    ]


def what(line: str) -> str:
    """The first word of an operation in a listing."""
    return line.split(": ")[1].split()[0]


def lines(text: str) -> list[str]:
    """Of a listing in a test."""
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def brief(plan: Program, *codes: int) -> str:
    """Of some kinds, each operation with its unit: `gather1 use1`."""
    return " ".join(
        f"{NAMES[op[0]]}{meta[0] if meta[0] >= 0 else ''}"
        for op, meta in zip(plan.ops, plan.meta, strict=True)
        if op[0] in codes
    )


def moves(one: Step, *kinds: Held) -> list[str]:
    """What is taken and given back, and the operation that comes after it."""
    plan = program(one)
    after = [words(one, op).split()[0] for op in plan.ops] + ["end"]
    return [
        f"{after[at]}: {Held(held).name.lower()}.{unit} {delta:+d}"
        for at, held, unit, delta in plan.moves
        if not kinds or held in kinds
    ]


def live(plan: Program) -> Iterator[int]:
    """Bytes of FSDP2's own, after each move."""
    total = 0
    for _, _, _, delta in plan.moves:
        total += delta
        yield total


def test_a_step_of_a_root_and_a_layer() -> None:
    """Both are gathered in forward, the layer once more in backward, ahead of it; the
    root takes tokens, so that its post-backward runs in the last callback.
    """
    assert listing(step(1)) == lines("""
        f0 0: root
        f0 0<0: pre-forward
        f0 0<0: gather #0 unshard copy-in.0 gather.0 shard
        f0 0<0: use #0 wait copy-out.0 defers
        f0 0: forward.0 launch-forward.0
        f0 1<1: pre-forward
        f0 1<1: gather #1 unshard copy-in.1 gather.1 shard
        f0 1<1: use #1 wait copy-out.1 waits defers
        f0 1: forward.1 launch-forward.1
        f0 1<1: post-forward
        f0 1<1: reshard 1 -
        f0 0: forward.2 launch-forward.2
        f0 0<0: post-forward
        f0 0: flush
        b0 0<0: pre-backward
        b0 1<0 +2: gather #2 unshard copy-in.1 gather.1 shard
        b0 0: backward.2 launch-backward.2
        b0 1<1: pre-backward
        b0 1<1: use #2 wait copy-out.1
        b0 1: backward.1 launch-backward.1
        b0 1<1: post-backward
        b0 1<1: reshard 1 -
        b0 1<1: reduce #0 reduce reduce-copy-in.1 scatter.1 shard -
        b0 0: backward.0 launch-backward.0
        b0 0<0: final
        b0 0<0: post-backward
        b0 0<0: reshard 0 -
        b0 1: wait-scatter #0
        b0 0<0: reduce #1 reduce reduce-copy-in.0 scatter.0 shard -
        b0 0<0: finalize #-1
        b0 0: wait-scatter #1
    """)


def test_the_memory_of_a_root_and_a_layer() -> None:
    """4160 and 2048 bytes over 8 ranks: of which 520 and 256 are this rank's.

    Gradients of the root come in two halves, from what it computes after the layer and
    before it.
    """
    one = step(1, resident_bytes=1000)

    assert moves(one) == lines("""
        gather: gather_output.0 +4160
        use: gathered.0 +4160
        gather: gather_output.1 +2048
        use: gather_output.0 -4160
        use: gathered.1 +2048
        forward.2: gathered.1 -2048
        pre-backward: gather_output.1 -2048
        gather: gather_output.1 +2048
        backward.2: grads.0 +2080
        use: gathered.1 +2048
        backward.1: gather_output.1 -2048
        backward.1: grads.1 +2048
        reduce: gathered.1 -2048
        reduce: reduce_input.1 +2048
        backward.0: grads.1 -2048
        backward.0: reduce_output.1 +256
        backward.0: reduce_output.1 -256
        backward.0: sharded_grads.1 +256
        backward.0: grads.0 +2080
        wait-scatter: gathered.0 -4160
        reduce: reduce_input.1 -2048
        reduce: reduce_input.0 +4160
        finalize: grads.0 -4160
        finalize: reduce_output.0 +520
        finalize: reduce_output.0 -520
        finalize: sharded_grads.0 +520
        end: reduce_input.0 -4160
        end: sharded_grads.0 -520
        end: sharded_grads.1 -256
    """)
    for plan in (program(one), bare_program(one)):
        assert plan.peak_bytes == 1000 + 4160 + 4160 + 2048 + 256  # as backward.0 runs
        assert plan.gathered_peak_bytes == 4160 + 2048


def test_what_lies_around_the_passes() -> None:
    """Each at its place, and counted with its micro-batch; the optimizer's at the end.

    The passes are between the loader and the last callback of each.
    """
    around: dict[str, Any] = {
        "before_ns": MS,
        "input_ns": MS,
        "loss_ns": MS,
        "after_ns": MS,
        "sync_after_forward": True,
        "sync_at_end": True,
        "micro_batches": (MicroBatch(), MicroBatch()),
    }
    names = {"before", "input", "root", "loss", "sync", "final", "after"}
    found = [x for x in listing(step(1, **around)) if what(x) in names]
    assert found == lines("""
        o0 -: before -
        o0 -: input
        f0 0: root
        o0 -: loss launch-loss
        o0 -: sync
        b0 0<0: final
        o1 -: input
        f1 0: root
        o1 -: loss launch-loss
        o1 -: sync
        b1 0<0: final
        s1 -: after launch-after
        o1 -: sync
    """)
    said = [what(x) for x in listing(step(1, **around))]
    (first, last), (second, end) = program(step(1, **around)).micro_batches
    assert (said[first], said[last]) == ("root", "wait-scatter")
    assert (second, said[second], said[second - 1]) == (last + 2, "root", "input")
    assert (end, said[end + 1]) == (len(said) - 3, "after")


@pytest.mark.parametrize(
    ("costs", "found"),
    [
        ({"loss_ns": MS}, ["loss"]),
        ({"host_loss_ns": MS}, ["loss"]),
        ({"after_ns": MS}, ["after"]),
        ({"host_after_ns": MS}, ["after"]),
        ({"before_ns": 1}, ["before"]),
        ({"input_ns": 1}, ["input"]),
        ({"loss_ns": 1, "after_ns": 1}, ["loss", "after"]),
        ({}, []),
    ],
)
def test_what_costs_nothing_is_no_operation(
    costs: dict[str, int], found: list[str]
) -> None:
    """Either of lane and host is enough to be one."""
    names = [what(x) for x in listing(step(1, **costs))]

    assert [n for n in names if n in ("before", "input", "loss", "after")] == found


def backward_of(one: Step) -> list[str]:
    """A listing, from the root's pre-backward to the last callback."""
    found = listing(one)
    first = next(i for i, line in enumerate(found) if line.endswith("pre-backward"))
    return found[first : found.index("b0 0<0: final")]


def test_a_block_is_recomputed_inside_its_own_backward() -> None:
    """With its inner unit, which becomes the root of that forward: it waits for the
    compute before it, and its output is freed as it ends.

    The block's own gather was issued by the root, the inner one's by the block.
    """
    assert backward_of(nested(1, Checkpoint.NON_REENTRANT)) == lines("""
        b0 0<0: pre-backward
        b0 1<0 +2: gather #3 unshard copy-in.1 gather.1 shard
        b0 0: backward.3 launch-backward.3
        b0 1<1: pre-backward
        b0 1<1: use #3 wait copy-out.1
        b0 2<1 +2: gather #4 unshard copy-in.2 gather.2 shard
        b0 1 +4: recompute.1 launch-forward.1
        b0 2: root
        b0 2<2 +4: pre-forward
        b0 2<2 +4: use #4 wait copy-out.2 defers
        b0 2 +4: recompute.2 launch-forward.2
        b0 2<2: post-forward
        b0 2: flush
        b0 2<2: pre-backward
        b0 2: backward.2 launch-backward.2
        b0 2<2: post-backward
        b0 2<2: reshard 2 -
        b0 2<2: reduce #0 reduce reduce-copy-in.2 scatter.2 shard -
        b0 1: backward.1 launch-backward.1
        b0 1<1: post-backward
        b0 1<1: reshard 1 -
        b0 2: wait-scatter #0
        b0 1<1: reduce #1 reduce reduce-copy-in.1 scatter.1 shard -
        b0 0: backward.0 launch-backward.0
    """)


def test_a_block_is_recomputed_reentrantly_before_its_backward() -> None:
    """Its whole forward runs again, and is the root of it; then its pre-backward."""
    assert backward_of(nested(1, Checkpoint.REENTRANT)) == lines("""
        b0 0<0: pre-backward
        b0 1<0 +2: gather #3 unshard copy-in.1 gather.1 shard
        b0 0: backward.3 launch-backward.3
        b0 1: root
        b0 1<1 +4: pre-forward
        b0 1<1 +4: use #3 wait copy-out.1 defers
        b0 1 +4: recompute.1 launch-forward.1
        b0 2<2 +4: pre-forward
        b0 2<2 +4: gather #4 unshard copy-in.2 gather.2 shard
        b0 2<2 +4: use #4 wait copy-out.2 waits defers
        b0 2 +4: recompute.2 launch-forward.2
        b0 2<2: post-forward
        b0 1<1: post-forward
        b0 1: flush
        b0 1<1: pre-backward
        b0 2<2: pre-backward
        b0 2: backward.2 launch-backward.2
        b0 2<2: post-backward
        b0 2<2: reshard 2 -
        b0 2<2: reduce #0 reduce reduce-copy-in.2 scatter.2 shard -
        b0 1: backward.1 launch-backward.1
        b0 1<1: post-backward
        b0 1<1: reshard 1 -
        b0 2: wait-scatter #0
        b0 1<1: reduce #1 reduce reduce-copy-in.1 scatter.1 shard -
        b0 0: backward.0 launch-backward.0
    """)


def pieces(*, inner: tuple[tuple[int, ...], ...] = ((1,), (2,)), **known: Any) -> Step:
    """A root around one unit of two layers, each recomputed reentrantly by itself."""
    base = step(2)
    params = tuple(p for unit in base.units[1:] for p in unit.params)
    both = replace(base.units[1], fqn="both", params=params, pieces=len(inner))
    last = max(at for each in inner for at in each) + 1
    items = tuple(Node(units=(), items=each) for each in inner)
    given: dict[str, Any] = {
        "units": (base.units[0], replace(both, **known)),
        "segments": base.segments[:1] * (last + 1),
        "root": Node(
            units=(0,),
            items=(0, Node(units=(1,), items=items, checkpoint=REENTRANT), last),
        ),
    }
    return replace(base, **given)


REENTRANT = Checkpoint.REENTRANT


def test_a_unit_of_several_recomputed_modules_is_gathered_and_reduced_for_each() -> (
    None
):
    """The second module's gradients are waited for as they are reduced: FSDP2 runs a
    part of the unit's modules then. The first one's recomputation ends the forward.
    """
    assert backward_of(pieces()) == lines("""
        b0 0<0: pre-backward
        b0 1<0 +2: gather #2 unshard copy-in.1 gather.1 shard
        b0 0: backward.3 launch-backward.3
        b0 1: root
        b0 1<1 +4: pre-forward
        b0 1<1 +4: use #2 wait copy-out.1 defers
        b0 1 +4: recompute.2 launch-forward.2
        b0 1: backward.2 launch-backward.2
        b0 1<1: post-backward
        b0 1<1: reshard 1 -
        b0 1<1: reduce #0 reduce reduce-copy-in.1 scatter.1 shard -
        b0 1: wait-post #0
        b0 1<1 +4: pre-forward
        b0 1<1 +4: gather #3 unshard copy-in.1 gather.1 shard
        b0 1<1 +4: use #3 wait copy-out.1 waits defers
        b0 1 +4: recompute.1 launch-forward.1
        b0 1<1: post-forward
        b0 1: flush
        b0 1<1: pre-backward
        b0 1: backward.1 launch-backward.1
        b0 1<1: post-backward
        b0 1<1: reshard 1 -
        b0 1: wait-scatter #0
        b0 1: wait-post #0
        b0 1<1: reduce #1 reduce reduce-copy-in.1 scatter.1 shard -
        b0 0: backward.0 launch-backward.0
    """)


def test_each_forward_and_each_backward_of_such_a_unit_begins_with_a_root() -> None:
    """The unit is the root of its recomputation until that of its first module ends;
    only then is a copy-out of its own waited for.
    """
    one = replace(pieces(), micro_batches=(MicroBatch(), MicroBatch()))
    found = [x for x in listing(one) if what(x) in ("root", "flush")]

    assert found == lines("""
        f0 0: root
        f0 0: flush
        b0 1: root
        b0 1: flush
        f1 0: root
        f1 0: flush
        b1 1: root
        b1 1: flush
    """)


@pytest.mark.parametrize(
    ("inner", "last", "first"),
    [
        (((1,), (2,)), 2048, 2048),  # each has half the parameters
        (((1,), (2, 3)), 2732, 2048),  # two thirds of its compute, as far as one knows
        (((1, 2), (3,)), 2048, 2732),
    ],
)
def test_gradients_of_a_module_of_several(
    inner: tuple[tuple[int, ...], ...], last: int, first: int
) -> None:
    """4096 bytes by part of the compute, rounded up; at least half for either."""
    found = [m for m in moves(pieces(inner=inner), Held.GRADS) if "grads.1" in m]
    taken = [int(m.split()[-1]) for m in found]
    given_back = [-delta for delta in taken if delta < 0]

    assert given_back == [last, first]
    assert sum(taken) == 0


def test_a_module_of_several_gives_its_part_of_the_gradients() -> None:
    """2048 bytes are reduced for each; the rank's 512 come in two halves."""
    kinds = Held.REDUCE_INPUT, Held.REDUCE_OUTPUT, Held.SHARDED_GRADS
    found = [m for m in moves(pieces(), *kinds) if ".1 " in m]

    assert found == lines("""
        reduce: reduce_input.1 +2048
        wait-post: reduce_output.1 +256
        wait-post: reduce_output.1 -256
        wait-post: sharded_grads.1 +256
        wait-post: reduce_input.1 -2048
        reduce: reduce_input.1 +2048
        backward.0: reduce_output.1 +256
        backward.0: reduce_output.1 -256
        backward.0: sharded_grads.1 +256
        reduce: reduce_input.1 -2048
        end: sharded_grads.1 -512
    """)


def test_a_unit_of_several_prefetches_as_its_first_module_begins() -> None:
    """Once in the forward, and once in backward: then its FSDPState is in a forward
    until all of its modules ran again.
    """
    base = pieces(forward_prefetch=(2,))
    layer = replace(base.units[1], fqn="after", pieces=1, forward_prefetch=())
    items = (*base.root.items[:2], Node(units=(2,), items=(3,)))
    three = replace(
        base, units=(*base.units, layer), root=replace(base.root, items=items)
    )
    found = [x for x in listing(three) if "2<1" in x]

    assert found == lines("""
        f0 2<1 +1: gather #2 unshard copy-in.2 gather.2 shard
        b0 2<1 +5: gather #5 unshard copy-in.2 gather.2 shard
    """)


def test_forward_prefetch_is_issued_behind_the_unit_s_own() -> None:
    """By the first of three for the other two, nearest first, and not again."""
    found = [
        x
        for x in listing(prefetching(step(3), 2))
        if x.startswith("f0") and ("gather" in x or "use" in x)
    ]
    assert found == lines("""
        f0 0<0: gather #0 unshard copy-in.0 gather.0 shard
        f0 0<0: use #0 wait copy-out.0 defers
        f0 1<1: gather #1 unshard copy-in.1 gather.1 shard
        f0 1<1: use #1 wait copy-out.1 waits defers
        f0 2<1 +1: gather #2 unshard copy-in.2 gather.2 shard
        f0 3<1 +1: gather #3 unshard copy-in.3 gather.3 shard
        f0 2<2: use #2 wait copy-out.2 waits defers
        f0 3<3: use #3 wait copy-out.3 waits defers
    """)


def test_a_recomputation_prefetches_what_its_forward_does() -> None:
    """The last layer's gathers none; that of the one before it, the last one, which
    then is never used, and is waited for in the last callback.
    """
    one = checkpointed(prefetching(step(2), 1), REENTRANT)
    found = [x for x in listing(one) if x.startswith("b0 2") and "#" in x]

    assert found == lines("""
        b0 2<0 +2: gather #3 unshard copy-in.2 gather.2 shard
        b0 2<2 +4: use #3 wait copy-out.2 defers
        b0 2<2: reduce #0 reduce reduce-copy-in.2 scatter.2 shard -
        b0 2<1 +5: gather #5 unshard copy-in.2 gather.2 shard
        b0 2: wait-scatter #0
        b0 2: wait-gather #5
    """)
    assert moves(one, Held.GATHER_OUTPUT)[-1] == "wait-scatter: gather_output.2 -2048"


def test_explicit_backward_prefetch_takes_the_implicit_one_s_place() -> None:
    """The third layer prefetches the first only; the second gathers for itself."""
    base = step(3)
    units = (*base.units[:3], replace(base.units[3], backward_prefetch=(1,)))
    found = [
        x
        for x in listing(replace(base, units=units))
        if x.startswith("b0") and ("gather" in x or "use" in x)
    ]
    assert found == lines("""
        b0 3<0 +2: gather #4 unshard copy-in.3 gather.3 shard
        b0 3<3: use #4 wait copy-out.3
        b0 1<3 +2: gather #5 unshard copy-in.1 gather.1 shard
        b0 2<2: gather #6 unshard copy-in.2 gather.2 shard
        b0 2<2: use #6 wait copy-out.2
        b0 1<1: use #5 wait copy-out.1
    """)


def test_an_async_gather_is_freed_as_it_is_used() -> None:
    """And lets the root's be freed before; nothing is deferred to the next."""
    one = with_layers(step(1), unshard_async_op=True)
    found = [x for x in listing(one) if "gather" in x or "use" in x or "flush" in x]

    assert found == lines("""
        f0 0<0: gather #0 unshard copy-in.0 gather.0 shard
        f0 0<0: use #0 wait copy-out.0 defers
        f0 1<1 +32: gather #1 unshard copy-in.1 gather.1 shard async
        f0 1<1: use #1 wait copy-out.1 waits
        b0 1<0 +34: gather #2 unshard copy-in.1 gather.1 shard async
        b0 1<1: use #2 wait copy-out.1
    """)
    assert moves(one, Held.GATHER_OUTPUT) == lines("""
        gather: gather_output.0 +4160
        gather: gather_output.1 +2048
        use: gather_output.0 -4160
        forward.1: gather_output.1 -2048
        gather: gather_output.1 +2048
        backward.1: gather_output.1 -2048
    """)


TWICE_OVER_TWO: dict[str, Any] = {
    "wires": CommCosts(all_gather=wire(), reduce_scatter=wire(), post_forward=wire()),
    "micro_batches": (MicroBatch(), MicroBatch()),
}


def test_a_unit_that_reshards_to_two_ranks() -> None:
    """Keeps a half, and gathers it among them in backward; whole again after that."""
    one = with_layers(step(1, **TWICE_OVER_TWO), reshard_after_forward=2)
    found = [x for x in listing(one) if "gather" in x or "reshard 1" in x]

    assert found == lines("""
        f0 0<0: gather #0 unshard copy-in.0 gather.0 shard
        f0 1<1: gather #1 unshard copy-in.1 gather.1 shard
        f0 1<1: reshard 1 clone.1
        b0 1<0 +2: gather #2 unshard copy-in.1 small-gather.1 post-forward after 1
        b0 1<1: reshard 1 -
        f1 0<0: gather #3 unshard copy-in.0 gather.0 shard
        f1 1<1: gather #4 unshard copy-in.1 gather.1 shard
        f1 1<1: reshard 1 clone.1
        b1 1<0 +2: gather #5 unshard copy-in.1 small-gather.1 post-forward after 1
        b1 1<1: reshard 1 -
    """)
    assert moves(one, Held.POST_FORWARD) == 2 * lines("""
        reshard: post_forward.1 +1024
        backward.1: post_forward.1 -1024
    """)


def test_a_kept_shard_that_backward_does_not_need() -> None:
    """Its unit is not gathered in backward, and from all ranks in the next forward. The
    shard stays there until that forward has kept another one.
    """
    one = with_layers(
        step(1, **TWICE_OVER_TWO), reshard_after_forward=2, unshard_in_backward=False
    )
    found = [x for x in listing(one) if "gather" in x]

    assert found == lines("""
        f0 0<0: gather #0 unshard copy-in.0 gather.0 shard
        f0 1<1: gather #1 unshard copy-in.1 gather.1 shard
        f1 0<0: gather #2 unshard copy-in.0 gather.0 shard
        f1 1<1: gather #3 unshard copy-in.1 gather.1 shard after 1
    """)
    assert moves(one, Held.POST_FORWARD) == lines("""
        reshard: post_forward.1 +1024
        reshard: post_forward.1 +1024
        reshard: post_forward.1 -1024
        end: post_forward.1 -1024
    """)


def of_two_units(blocks: int) -> Step:
    """A root around blocks of two units each: 1 and 2, 3 and 4, ..."""
    base = step(2 * blocks)
    nodes = (Node(units=(2 * i + 1, 2 * i + 2), items=(i + 1,)) for i in range(blocks))
    return replace(base, root=Node(units=(0,), items=(0, *nodes, blocks + 1)))


def test_units_of_one_module_are_prefetched_together() -> None:
    """By the second unit of the module after it, those of one module and no more; the
    root, which has one, prefetches the unit before it alone.

    Gradients are reduced last unit first, and the wait for an earlier reduction's
    buffers is that unit's.
    """
    plan = program(of_two_units(3))
    by = [
        (meta[0], meta[3])
        for op, meta in zip(plan.ops, plan.meta, strict=True)
        if op[0] == GATHER and meta[1] == 2
    ]
    assert by == [(6, 0), (5, 5), (4, 6), (3, 6), (2, 4), (1, 4)]
    assert brief(plan, REDUCE, WAIT_SCATTER) == (
        "reduce6 reduce5 wait-scatter6 wait-scatter5 reduce4 reduce3 "
        "wait-scatter4 wait-scatter3 reduce2 reduce1 "
        "wait-scatter2 wait-scatter1 reduce0 wait-scatter0"
    )


def test_units_of_one_module_in_the_last_callback() -> None:
    """As in backward: the last one first, and it waits."""
    one = of_two_units(1)
    tokens = (replace(u, post_backward_at_end=True) for u in one.units)
    found = listing(replace(one, units=tuple(tokens)))
    last = found[found.index("b0 0<0: final") :]

    assert [x for x in last if "post-backward" in x or "reduce" in x] == lines("""
        b0 0<0: post-backward
        b0 0<0: reduce #0 reduce reduce-copy-in.0 scatter.0 shard -
        b0 2<2: post-backward
        b0 2<2: reduce #1 reduce reduce-copy-in.2 scatter.2 shard -
        b0 1<1: post-backward
        b0 1<1: reduce #2 reduce reduce-copy-in.1 scatter.1 shard -
    """)


@pytest.mark.parametrize(
    ("cap", "found", "most"),
    [
        (
            1,
            (
                "reduce3 wait-scatter3 reduce2 wait-scatter2 reduce1 wait-scatter1 "
                "reduce0 finalize0 wait-scatter0"
            ),
            4160,
        ),
        (
            2,
            (
                "reduce3 reduce2 wait-scatter3 reduce1 wait-scatter2 reduce0 finalize0 "
                "wait-scatter1 wait-scatter0"
            ),
            4160 + 2048,
        ),
        (
            9,
            (
                "reduce3 reduce2 reduce1 reduce0 finalize0 wait-scatter3 wait-scatter2 "
                "wait-scatter1 wait-scatter0"
            ),
            4160 + 3 * 2048,
        ),
    ],
)
def test_reduce_inputs_in_flight(cap: int, found: str, most: int) -> None:
    """The oldest is waited for where there are as many as there may be."""
    one = step(3, max_input_buffers=cap)
    held = peak = 0
    for _, kind, _, delta in program(one).moves:
        held += delta if kind == Held.REDUCE_INPUT else 0
        peak = max(peak, held)

    assert brief(program(one), REDUCE, WAIT_SCATTER, FINALIZE) == found
    assert (held, peak) == (0, most)


ONLY_LAST = (MicroBatch(sync=False), MicroBatch())


def test_without_a_reduction_gradients_stay() -> None:
    """The second micro-batch adds to them; nothing is waited for after the first."""
    one = step(1, micro_batches=ONLY_LAST)

    assert brief(program(one), REDUCE, WAIT_SCATTER, WAIT_POST, FINALIZE) == (
        "reduce1 wait-scatter1 reduce0 finalize0 wait-scatter0"
    )
    assert moves(one, Held.GRADS) == lines("""
        backward.2: grads.0 +2080
        backward.1: grads.1 +2048
        backward.0: grads.0 +2080
        backward.0: grads.1 -2048
        finalize: grads.0 -4160
    """)


MIXED: dict[str, Any] = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}


def test_gradients_that_stay_are_cast_to_the_dtype_they_are_reduced_in() -> None:
    """1024 bytes become 2048: made, and then the others freed. Later ones are added."""
    one = with_layers(step(1, micro_batches=ONLY_LAST), **MIXED)

    assert [m for m in moves(one, Held.GRADS) if ".1 " in m] == lines("""
        backward.1: grads.1 +1024
        backward.0: grads.1 +2048
        backward.0: grads.1 -1024
        backward.1: grads.1 +1024
        reshard: grads.1 -1024
        backward.0: grads.1 -2048
    """)


def test_gradients_in_bfloat16_are_reduced_as_float32() -> None:
    """Half the bytes are gathered; the buffers of the reduction have all of them."""
    one = with_layers(step(1), **MIXED)
    found = [m for m in moves(one) if ".1 " in m]

    assert found[:2] == ["gather: gather_output.1 +1024", "use: gathered.1 +1024"]
    assert found[-8:] == lines("""
        reduce: gathered.1 -1024
        reduce: reduce_input.1 +2048
        backward.0: grads.1 -1024
        backward.0: reduce_output.1 +256
        backward.0: reduce_output.1 -256
        backward.0: sharded_grads.1 +256
        reduce: reduce_input.1 -2048
        end: sharded_grads.1 -256
    """)


def test_nothing_is_resharded_that_stays_through_micro_batches() -> None:
    """One gather for both; the root's copy-out is deferred in neither again."""
    keep = MicroBatch(sync=False, reshard_after_backward=False, is_last_backward=False)
    one = with_layers(
        step(1, micro_batches=(keep, MicroBatch())), reshard_after_forward=False
    )
    plan = program(one)

    assert brief(plan, GATHER, RESHARD, FLUSH, REDUCE) == (
        "gather0 gather1 flush0 reshard1 reduce1 reshard0 reduce0"
    )
    assert (plan.slots, plan.reductions) == (2, 2)


def test_a_backward_that_is_not_the_last_leaves_its_waits_to_the_next() -> None:
    """Each unit waits for its own reduction before the next one of it; prefetch goes
    by the order of both forwards.
    """
    flags = MicroBatch(is_last_backward=False), MicroBatch()
    one = step(2, micro_batches=flags)
    plan = program(one)

    assert brief(plan, REDUCE, WAIT_SCATTER, WAIT_POST, FINALIZE) == (
        "reduce2 wait-scatter2 reduce1 wait-scatter1 reduce0 "
        "wait-scatter0 wait-post2 reduce2 wait-scatter2 wait-post1 reduce1 "
        "wait-scatter1 wait-post0 reduce0 finalize0 wait-scatter0"
    )
    waits = [op[1] for op in plan.ops if op[0] == WAIT_POST]
    assert waits == [0, 1, 2]
    found = [x for x in listing(one) if x.startswith("b") and "gather" in x]
    assert [x.split(":")[0] for x in found] == lines("""
        b0 2<0 +2
        b0 1<2 +2
        b1 2<0 +2
        b1 1<2 +2
    """)


def test_the_order_of_forwards_begins_anew_after_the_last_backward() -> None:
    """So that the first unit, which nothing comes before, prefetches nothing: not a
    unit of the forward before.
    """
    one = step(1, micro_batches=(MicroBatch(), MicroBatch()))
    split = replace(
        one,
        root=Node(units=(), items=(Node(units=(0,), items=(0,)), one.root.items[1], 2)),
        units=(replace(one.units[0], reshard_after_forward=True), one.units[1]),
    )
    found = [x.split(":")[0] for x in listing(split) if "gather" in x]

    assert found == lines("""
        f0 0<0
        f0 1<1
        b0 1<1
        b0 0<1 +2
        f1 0<0
        f1 1<1
        b1 1<1
        b1 0<1 +2
    """)


HYBRID: dict[str, Any] = {
    "mesh": Mesh(shard=4, replicate=2),
    "wires": CommCosts(all_gather=wire(), reduce_scatter=wire(), all_reduce=wire()),
}


def test_replicas_reduce_further() -> None:
    """What is scattered is all-reduced where the micro-batch says so."""
    flags = MicroBatch(all_reduce=False), MicroBatch()
    one = step(1, micro_batches=flags, separate_reduce_scatter_group=True, **HYBRID)
    found = [x for x in listing(one) if ": reduce" in x]

    assert found == lines("""
        b0 1<1: reduce #0 reduce reduce-copy-in.1 scatter.1 reduce -
        b0 0<0: reduce #1 reduce reduce-copy-in.0 scatter.0 reduce -
        b1 1<1: reduce #2 reduce reduce-copy-in.1 scatter.1 reduce all-reduce.1
        b1 0<0: reduce #3 reduce reduce-copy-in.0 scatter.0 reduce all-reduce.0
    """)


def outputs(one: Step) -> list[str]:
    """What becomes of the layer's reduced gradients."""
    found = moves(one, Held.REDUCE_OUTPUT, Held.SHARDED_GRADS)
    return [m.split(": ")[1].replace(".1", "") for m in found if ".1 " in m]


SCATTERED = MicroBatch(all_reduce=False)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (
            (MicroBatch(),),
            """
            reduce_output +512
            reduce_output -512
            sharded_grads +512
            """,
        ),
        (  # what was scattered before is added to the output
            (SCATTERED, MicroBatch()),
            """
            reduce_output +512
            reduce_output +512
            reduce_output -512
            sharded_grads +512
            reduce_output -512
            """,
        ),
        (  # the second's output is added to the first's
            (SCATTERED, SCATTERED, MicroBatch()),
            """
            reduce_output +512
            reduce_output +512
            reduce_output -512
            reduce_output +512
            reduce_output -512
            sharded_grads +512
            reduce_output -512
            """,
        ),
    ],
)
def test_reduced_gradients_of_replicas(
    flags: tuple[MicroBatch, ...], found: str
) -> None:
    """512 bytes: in the stored dtype, the first output becomes the gradient itself."""
    one = step(1, micro_batches=flags, **HYBRID)

    assert outputs(one) == [*lines(found), "sharded_grads -512"]


NOT_LAST = MicroBatch(is_last_backward=False)


@pytest.mark.parametrize(
    ("flags", "freed_before"),
    [
        ((MicroBatch(), MicroBatch()), "wait-scatter"),
        ((NOT_LAST, NOT_LAST, MicroBatch()), "reduce"),
    ],
)
def test_what_was_all_reduced_is_held_where_it_is_not_the_gradient(
    flags: tuple[MicroBatch, ...], freed_before: str
) -> None:
    """The second micro-batch's output is added to the gradient, and kept until the last
    callback, or until the unit's next reduction, before whose input it is freed.
    """
    one = step(1, micro_batches=flags, **HYBRID)
    found = [
        m
        for m in moves(one, Held.REDUCE_OUTPUT, Held.REDUCE_INPUT, Held.SHARDED_GRADS)
        if ".1 " in m and "end:" not in m
    ]
    mine = [m for m in found if "reduce_input" not in m]

    assert [m.split(": ")[1] for m in mine[:4]] == lines("""
        reduce_output.1 +512
        reduce_output.1 -512
        sharded_grads.1 +512
        reduce_output.1 +512
    """)
    assert mine[4] == f"{freed_before}: reduce_output.1 -512"
    if freed_before == "reduce":
        assert found[found.index(mine[4]) + 1] == "reduce: reduce_input.1 +2048"
    assert sum(int(m.split()[-1]) for m in mine) == 512


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (
            {},
            """
            reduce_output +128
            sharded_grads +256
            reduce_output -128
            reduce_output +128
            sharded_grads +256
            reduce_output -128
            sharded_grads -256
            """,
        ),
        (
            HYBRID,
            """
            reduce_output +256
            sharded_grads +512
            reduce_output -256
            reduce_output +256
            sharded_grads +512
            sharded_grads -512
            reduce_output -256
            """,
        ),
    ],
)
def test_a_cast_of_reduced_gradients_is_beside_them(
    known: dict[str, Any], found: str
) -> None:
    """Reduced in bfloat16, stored in float32: one becomes the gradient, the next one is
    added to it and freed. What was all-reduced is held until the callback all the same.
    """
    one = step(1, micro_batches=(MicroBatch(), MicroBatch()), **known)
    said = outputs(with_layers(one, reduce_dtype="bfloat16"))

    assert said[:-1] == lines(found)


def test_replicas_that_do_not_shard() -> None:
    """Nothing is gathered nor scattered: a copy each way, and an all-reduce."""
    one = step(1, mesh=Mesh(shard=1, replicate=2), wires=HYBRID["wires"])
    found = [x for x in listing(one) if "gather" in x or "use" in x or ": red" in x]

    assert found == lines("""
        f0 0<0: use #-2 wait copy-out.0
        f0 1<1: use #-2 wait copy-out.1
        b0 1<1: use #-2 wait copy-out.1
        b0 1<1: reduce #0 reduce reduce-copy-in.1 - shard all-reduce.1
        b0 0<0: reduce #1 reduce reduce-copy-in.0 - shard all-reduce.0
    """)
    assert "flush" not in str(listing(one))
    assert moves(one, Held.GATHER_OUTPUT) == []
    assert moves(one, Held.GATHERED)[:2] == [
        "use: gathered.0 +4160",
        "use: gathered.1 +2048",
    ]
    assert outputs(one) == lines("""
        reduce_output +2048
        reduce_output -2048
        sharded_grads +2048
        sharded_grads -2048
    """)


def test_two_ranks_and_two_of_each_make_a_scatter_and_no_more() -> None:
    """Without replicas there is no all-reduce, and nothing partial is kept."""
    one = step(1, mesh=Mesh(shard=2), micro_batches=(SCATTERED,))

    assert ": reduce #0 reduce reduce-copy-in.1 scatter.1 shard -" in str(listing(one))
    assert outputs(one)[:3] == lines("""
        reduce_output +1024
        reduce_output -1024
        sharded_grads +1024
    """)


def test_a_prefetch_that_nothing_uses_where_one_rank_gathers() -> None:
    """There is nothing to wait for, and the next forward is as the first one: the
    second layer, which asks for the first in forward, and the first for the second in
    backward, have each what is done with already.
    """
    base = step(2, mesh=Mesh(shard=1), micro_batches=(MicroBatch(), MicroBatch()))
    first, second = base.units[1:]
    one = replace(
        base,
        units=(
            base.units[0],
            replace(first, backward_prefetch=(2,)),
            replace(second, forward_prefetch=(1,)),
        ),
    )
    assert brief(program(one), USE, WAIT_GATHER) == (
        "use0 use1 use2 use2 use1 use0 use1 use2 use2 use1"
    )


def test_a_frozen_unit_has_nothing_to_reduce() -> None:
    """But its post-backward waits for buffers all the same."""
    base = step(2)
    frozen = tuple(replace(p, trainable=False) for p in base.units[1].params)
    units = base.units[0], replace(base.units[1], params=frozen), base.units[2]
    one = replace(base, units=units)

    assert brief(program(one), REDUCE, WAIT_SCATTER) == (
        "reduce2 wait-scatter2 reduce0 wait-scatter0"
    )
    found = [x for x in listing(one) if "wait-scatter #0" in x or "1<1: reshard" in x]
    assert [x.split()[0] for x in found] == ["f0", "b0", "b0"]
    assert moves(one, Held.GRADS, Held.SHARDED_GRADS)[0] == "backward.3: grads.0 +2080"
    assert ".1 " not in str(moves(one, Held.GRADS, Held.SHARDED_GRADS))


def bare_root() -> Step:
    """A root all of whose parameters are in units below, and compute of its own."""
    base = step(1)
    units = (replace(base.units[1], fqn="layers.0"),)
    return replace(
        base,
        units=units,
        root=Node(units=(), items=(0, Node(units=(0,), items=(1,)), 2)),
    )


def test_a_root_without_parameters_is_a_root() -> None:
    """What it does is no unit's."""
    assert listing(bare_root()) == lines("""
        f0 -: root
        f0 -: forward.0 launch-forward.0
        f0 0<0: pre-forward
        f0 0<0: gather #0 unshard copy-in.0 gather.0 shard
        f0 0<0: use #0 wait copy-out.0 defers
        f0 0: forward.1 launch-forward.1
        f0 0<0: post-forward
        f0 0<0: reshard 0 -
        f0 -: forward.2 launch-forward.2
        f0 -: flush
        b0 -: backward.2 launch-backward.2
        b0 0<0: pre-backward
        b0 0<0: gather #1 unshard copy-in.0 gather.0 shard
        b0 0<0: use #1 wait copy-out.0
        b0 0: backward.1 launch-backward.1
        b0 0<0: post-backward
        b0 0<0: reshard 0 -
        b0 0<0: reduce #0 reduce reduce-copy-in.0 scatter.0 shard -
        b0 -: backward.0 launch-backward.0
        b0 -: final
        b0 0<0: finalize #-1
        b0 0: wait-scatter #0
    """)


def test_a_checkpoint_around_a_unit_is_no_root() -> None:
    """The module that is recomputed has no state; the unit in it has."""
    base = step(1)
    inner = Node(units=(1,), items=(1,))
    around = Node(units=(), items=(inner,), checkpoint=REENTRANT)
    one = replace(base, root=Node(units=(0,), items=(0, around, 2)))

    assert [x for x in backward_of(one) if "root" in x or "flush" in x] == lines("""
        b0 1: root
        b0 1: flush
    """)


@pytest.mark.parametrize("how", [Checkpoint.NONE, Checkpoint.NON_REENTRANT])
def test_a_child_s_pre_backward_comes_first_where_it_puts_out_the_same(
    how: Checkpoint,
) -> None:
    """And once: what is recomputed has no hooks of its own."""
    base = nested(1, how)
    block = base.root.items[1]
    assert isinstance(block, Node)
    passing = replace(block, passes_output_on=True)
    one = replace(base, root=Node(units=(0,), items=(0, passing, 3)))
    hooks = [
        x for x in backward_of(one) if what(x) in ("pre-backward", "post-backward")
    ]

    assert hooks == lines("""
        b0 0<0: pre-backward
        b0 2<2: pre-backward
        b0 1<1: pre-backward
        b0 2<2: post-backward
        b0 1<1: post-backward
    """)


def test_a_module_that_ends_with_compute_of_its_own_puts_out_that() -> None:
    """Its own pre-backward is first, whatever it says; so it is where it is empty."""
    base = nested(1)
    block = base.root.items[1]
    assert isinstance(block, Node)
    child = block.items[1]
    turned = replace(block, items=(child, 1), passes_output_on=True)
    one = replace(base, root=Node(units=(0,), items=(0, turned, 3)))
    found = [x.split(":")[0] for x in backward_of(one) if "pre-backward" in x]
    assert found == ["b0 0<0", "b0 1<1", "b0 2<2"]

    empty = Node(units=(1,), items=(), passes_output_on=True)
    one = replace(step(1), root=Node(units=(0,), items=(0, empty, 1)))
    found = [x.split(":")[0] for x in backward_of(one) if "pre-backward" in x]
    assert found == ["b0 0<0", "b0 1<1"]


def test_the_host_waits_after_a_segment_s_forward() -> None:
    """In forward, and where it is computed anew; not in backward."""
    base = checkpointed(step(1), Checkpoint.NON_REENTRANT)
    edge, segment, _ = base.segments
    one = replace(base, segments=(edge, replace(segment, sync=True), edge))

    found = listing(one)
    at = [i for i, x in enumerate(found) if what(x) == "sync"]
    assert [found[j] for i in at for j in (i - 1, i)] == lines("""
        f0 1: forward.1 launch-forward.1
        f0 1: sync
        b0 1 +4: recompute.1 launch-forward.1
        b0 1: sync
    """)


def test_a_frozen_trunk_has_no_backward() -> None:
    """Its unit's post-backward is the last callback's; what holds it goes on."""
    base = step(2)
    first, second = base.root.items[1:3]
    assert isinstance(first, Node)
    trunk = replace(first, runs_backward=False)
    one = replace(base, root=Node(units=(0,), items=(0, trunk, second, 3)))
    found = [x for x in listing(one) if x.startswith("b0 1")]

    assert found == lines("""
        b0 1<2 +2: gather #4 unshard copy-in.1 gather.1 shard
        b0 1<1: post-backward
        b0 1: wait-gather #4
    """)


def test_passes_are_between_hooks() -> None:
    """From a unit's copy-out to its post-hook; the operations of the listing above."""
    plan = program(step(1))

    assert plan.passes == (
        Pass(unit=1, phase=1, micro_batch=0, first=8, last=8, flags=0),
        Pass(unit=0, phase=1, micro_batch=0, first=4, last=11, flags=0),
        Pass(unit=1, phase=2, micro_batch=0, first=19, last=19, flags=0),
        Pass(unit=0, phase=2, micro_batch=0, first=16, last=23, flags=0),
    )
    assert (plan.slots, plan.reductions, plan.rest) == (3, 2, 2 * 8 + 3 * 5)


def test_passes_of_what_is_recomputed() -> None:
    """Its forward lies in backward, and says so; the block's own one is not recorded.

    A unit of several has one pass for each module, from its pre-forward on.
    """
    plan = program(nested(1, Checkpoint.NON_REENTRANT))
    again = [one for one in plan.passes if one.flags]
    names = [what(x) for x in listing(nested(1, Checkpoint.NON_REENTRANT))]
    assert [(one.unit, one.phase, one.flags) for one in again] == [(2, 2, 4)]
    assert [names[i] for i in again[0][3:5]] == ["recompute.2", "recompute.2"]

    plan = program(pieces())
    names = [what(x) for x in listing(pieces())]
    of_both = [one for one in plan.passes if one.unit == 1 and one.phase == 2]
    assert [(names[one.first], names[one.last], one.flags) for one in of_both] == [
        ("root", "backward.2", 0),
        ("pre-forward", "backward.1", 0),
    ]


@pytest.mark.parametrize(
    ("at", "forward", "backward", "peak"),
    [
        # the root's and the layer's parameters, and the root's or the layer's output
        (1, 9000, 0, 4160 + 2048 + 2048 + 9000),
        # both units' parameters, half of the root's gradients and all of the layer's
        (1, 0, 9000, 4160 + 2048 + 2080 + 2048 + 9000),
        # the root's parameters and gradients, the layer's gradient and reduction
        (0, 0, 9000, 4160 + 4160 + 2048 + 256 + 9000),
        (0, 9000, 0, 4160 + 4160 + 9000),
        (2, 1, 1, 4160 + 4160 + 2048 + 256),  # less than what is the peak anyway
    ],
)
def test_what_a_segment_allocates_lies_on_top(
    at: int, forward: int, backward: int, peak: int
) -> None:
    """While it runs, in either direction."""
    base = step(1, resident_bytes=100)
    segments = list(base.segments)
    segments[at] = replace(
        segments[at], other_forward_bytes=forward, other_backward_bytes=backward
    )
    one = replace(base, segments=tuple(segments))

    assert program(one).peak_bytes == bare_program(one).peak_bytes == 100 + peak


def test_gradients_come_with_the_compute_that_makes_them() -> None:
    """A unit's 2048 bytes from three segments: 683, 683, and what is left."""
    base = step(1)
    segment = base.segments[1]
    one = replace(
        base,
        segments=(segment,) * 5,
        root=Node(units=(0,), items=(0, Node(units=(1,), items=(1, 2, 3)), 4)),
    )
    assert [m for m in moves(one, Held.GRADS) if ".1 " in m] == lines("""
        backward.3: grads.1 +683
        backward.2: grads.1 +683
        backward.1: grads.1 +682
        backward.0: grads.1 -2048
    """)


def test_a_unit_without_compute_has_its_gradients_as_its_backward_ends() -> None:
    """All of them, and they are reduced."""
    one = replace(
        step(1), root=Node(units=(0,), items=(0, Node(units=(1,), items=()), 1))
    )
    assert [m for m in moves(one, Held.GRADS) if ".1 " in m] == lines("""
        post-backward: grads.1 +2048
        backward.0: grads.1 -2048
    """)


def test_padding_is_gathered_and_reduced_but_is_no_gradient() -> None:
    """Three rows over two ranks: four are moved, of which two are kept by each."""
    odd = Unit(fqn="odd", params=(Param(fqn="odd.weight", rows=3, row=1),))
    one = Step(
        units=(odd,),
        segments=(Segment(forward_ns=MS, backward_ns=MS),),
        root=Node(units=(0,), items=(0,)),
        mesh=Mesh(shard=2),
        wires=CommCosts(all_gather=wire(), reduce_scatter=wire()),
    )
    most = {
        kind: max(int(m.split()[-1]) for m in moves(one, kind))
        for kind in Held
        if moves(one, kind)
    }
    assert most == {
        Held.GATHERED: 16,
        Held.GATHER_OUTPUT: 16,
        Held.GRADS: 12,
        Held.REDUCE_INPUT: 16,
        Held.REDUCE_OUTPUT: 8,
        Held.SHARDED_GRADS: 8,
    }
