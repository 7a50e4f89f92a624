"""FSDP2's calls and its memory, one by one, for models that fit on a page.

What is expected is read off torch's `_fsdp_param_group.py`, by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from fsdpdoctor.simulate.engine.schedule import bare_program, program
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    MicroBatch,
)
from tests.simulate.engine.program_words import (
    backward_of,
    lines,
    listing,
    moves,
    what,
)
from tests.simulate.steps import MS, nested, step


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
