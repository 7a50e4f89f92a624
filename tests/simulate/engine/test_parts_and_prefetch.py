"""Units of several modules that are recomputed one by one; prefetch.

What is expected is read off torch's `_fsdp_param_group.py`, by hand.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.simulate.engine.opcodes import (
    Held,
)
from fsdpdoctor.simulate.engine.step import (
    MicroBatch,
    Node,
)
from tests.simulate.engine.program_words import (
    REENTRANT,
    backward_of,
    lines,
    listing,
    moves,
    pieces,
    what,
)
from tests.simulate.steps import checkpointed, prefetching, step
from tests.simulate.steps import with_units as with_layers


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
