"""What units keep: shards, gradients that are not reduced yet, reductions in flight.

What is expected is read off torch's `_fsdp_param_group.py`, by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fsdpdoctor.simulate.engine.opcodes import (
    FINALIZE,
    FLUSH,
    GATHER,
    REDUCE,
    RESHARD,
    WAIT_POST,
    WAIT_SCATTER,
    Held,
)
from fsdpdoctor.simulate.engine.schedule import program
from fsdpdoctor.simulate.engine.step import (
    CommCosts,
    MicroBatch,
    Node,
    Step,
)
from tests.simulate.engine.program_words import (
    brief,
    lines,
    listing,
    moves,
)
from tests.simulate.steps import step, wire
from tests.simulate.steps import with_units as with_layers

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
