"""Roots, passes, and what segments of a model allocate.

What is expected is read off torch's `_fsdp_param_group.py`, by hand.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.simulate.engine.opcodes import (
    Held,
    Pass,
)
from fsdpdoctor.simulate.engine.schedule import bare_program, program
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    CommCosts,
    Mesh,
    Node,
    Param,
    Segment,
    Step,
    Unit,
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
from tests.simulate.steps import MS, checkpointed, nested, step, wire


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
