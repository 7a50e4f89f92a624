"""Random steps for property tests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    CommCost,
    CommCosts,
    HostCosts,
    Mesh,
    MicroBatch,
    Segment,
    Step,
)
from tests.simulate.steps import (
    checkpointed,
    nested,
    prefetching,
    step,
    wire,
    with_units,
)

US = 1_000


def times(most_us: int = 3_000) -> st.SearchStrategy[int]:
    """Nanoseconds, whole microseconds."""
    return st.integers(0, most_us).map(lambda us: us * US)


@st.composite
def wires(draw: st.DrawFn) -> CommCost:
    """Latency up to 1 ms; a layer's 2 KiB take 20 us to 20 ms."""
    rate = draw(st.sampled_from([1e5, 5e5, 1e6, 5e6, 1e8]))
    return CommCost(latency_ns=draw(times(1_000)), bytes_per_second=rate)


@st.composite
def hosts(draw: st.DrawFn) -> HostCosts:
    """Each call up to 300 us."""
    few = times(300)
    return HostCosts(
        pre_forward_ns=draw(few),
        unshard_ns=draw(few),
        wait_ns=draw(few),
        post_forward_ns=draw(few),
        pre_backward_ns=draw(few),
        post_backward_ns=draw(few),
        reduce_ns=draw(few),
        final_callback_ns=draw(few),
    )


@st.composite
def segments(draw: st.DrawFn, *, launches: bool) -> Segment:
    """Compute, and with streams what launching it costs."""
    return Segment(
        forward_ns=draw(times()),
        backward_ns=draw(times()),
        host_forward_ns=draw(times(500)) if launches else 0,
        host_backward_ns=draw(times(500)) if launches else 0,
    )


FLAGS = (
    (MicroBatch(),),
    (MicroBatch(), MicroBatch()),
    (MicroBatch(sync=False), MicroBatch()),
    (MicroBatch(sync=False, reshard_after_backward=False), MicroBatch()),
    (MicroBatch(all_reduce=False), MicroBatch()),
)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """A model of a few layers with any settings, on a host with or without streams."""
    blocking = draw(st.booleans())
    layers = draw(st.integers(1, 4))
    base = nested(layers) if draw(st.integers(0, 3)) == 0 else step(layers)
    depth = draw(st.integers(0, 3))
    if depth:
        base = prefetching(base, depth, backward=draw(st.booleans()))
    base = replace(base, wires=replace(base.wires, post_forward=wire()))
    base = with_units(
        base,
        reshard_after_forward=draw(st.sampled_from([True, True, False, 2])),
        unshard_async_op=draw(st.booleans()),
        copy_in_ns=draw(times(200)),
        copy_out_ns=draw(times(200)),
        reduce_copy_in_ns=draw(times(200)),
    )
    how = draw(st.sampled_from([Checkpoint.NONE, Checkpoint.NONE, *Checkpoint]))
    if how is not Checkpoint.NONE:
        base = checkpointed(base, how)
    mesh = draw(st.sampled_from([Mesh(shard=8), Mesh(shard=4, replicate=2)]))
    gather, scatter = draw(wires()), draw(wires())
    return replace(
        base,
        blocking=blocking,
        segments=tuple(draw(segments(launches=not blocking)) for _ in base.segments),
        mesh=mesh,
        wires=CommCosts(
            all_gather=gather,
            reduce_scatter=scatter,
            all_reduce=draw(wires()),
            post_forward=draw(wires()),
        ),
        host=draw(hosts()),
        micro_batches=draw(st.sampled_from(FLAGS)),
        separate_reduce_scatter_group=draw(st.booleans()),
        max_input_buffers=draw(st.integers(1, 3)),
        loss_ns=draw(times(500)),
        before_ns=draw(times(500)),
        after_ns=draw(times()),
        sync_after_forward=not blocking and draw(st.booleans()),
        sync_at_end=not blocking and draw(st.booleans()),
    )
