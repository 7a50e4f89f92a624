"""What replicas reduce, and what they hold of it.

What is expected is read off torch's `_fsdp_param_group.py`, by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fsdpdoctor.simulate.engine.opcodes import (
    REDUCE,
    USE,
    WAIT_GATHER,
    WAIT_SCATTER,
    Held,
)
from fsdpdoctor.simulate.engine.schedule import program
from fsdpdoctor.simulate.engine.step import (
    CommCosts,
    Mesh,
    MicroBatch,
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
