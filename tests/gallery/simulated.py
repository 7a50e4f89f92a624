"""Cases of the gallery that need a device: FSDP2's schedule there, simulated.

Times come from the simulator, for a model of six blocks with 100 MiB each. What it
does not know (the allocator's counters, where parameters live) is set by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fsdpdoctor.quantities import MS, US
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COUNTER_ALLOC_RETRIES,
    Counters,
    Evidence,
)
from fsdpdoctor.simulate.engine.step import (
    CommCost,
    CommCosts,
    HostCosts,
    Mesh,
    Node,
    Param,
    Segment,
    Step,
    Unit,
)
from fsdpdoctor.simulate.engine.synthetic_record import record

LAYERS = 6
ROWS, ROW = 8192, 6400  # 52 million parameters, 100 MiB in bfloat16
FORWARD_NS, BACKWARD_NS = 2 * MS, 4 * MS

HOST = HostCosts(
    root_pre_forward_ns=100 * US,
    pre_forward_ns=20 * US,
    unshard_ns=40 * US,
    wait_ns=30 * US,
    post_forward_ns=20 * US,
    pre_backward_ns=20 * US,
    post_backward_ns=40 * US,
    reduce_ns=60 * US,
    final_callback_ns=50 * US,
)
"""About what FSDP2's hooks take on a server's core."""


def wire(gigabytes_per_second: float) -> CommCost:
    """A link with 20 us of latency."""
    return CommCost(latency_ns=20 * US, bytes_per_second=gigabytes_per_second * 1e9)


def unit(fqn: str, rows: int = ROWS, row: int = ROW, **known: Any) -> Unit:
    """A unit in bfloat16, reduced in float32."""
    return Unit(
        fqn=fqn,
        params=(Param(fqn=f"{fqn.strip('<>')}.weight", rows=rows, row=row),),
        param_dtype="bfloat16",
        reduce_dtype="float32",
        copy_in_ns=30 * US,
        copy_out_ns=50 * US,
        reduce_copy_in_ns=50 * US,
        **known,
    )


def step(gather: float = 200, reduce: float = 200, **known: Any) -> Step:
    """Six blocks on 64 ranks whose links carry so many GB/s.

    At 200 a block's gather takes 0.55 ms and its float32 reduction 1.1 ms, under
    2 ms of forward and 4 ms of backward.
    """
    block = known.pop("block", Segment(forward_ns=FORWARD_NS, backward_ns=BACKWARD_NS))
    first = Segment(forward_ns=MS // 2, backward_ns=2 * BACKWARD_NS)
    last = Segment(forward_ns=MS // 2, backward_ns=MS)
    root = unit("<root>", 4096, 1024, reshard_after_forward=False)
    nodes = (Node(units=(i + 1,), items=(i + 1,)) for i in range(LAYERS))
    given: dict[str, Any] = {
        "units": (root, *(unit(f"layers.{i}") for i in range(LAYERS))),
        "segments": (first, *(block for _ in range(LAYERS)), last),
        "root": Node(units=(0,), items=(0, *nodes, LAYERS + 1)),
        "mesh": Mesh(shard=64),
        "wires": CommCosts(all_gather=wire(gather), reduce_scatter=wire(reduce)),
        "host": HOST,
        "after_ns": MS,
        "host_after_ns": MS // 2,
    }
    return Step(**(given | known))


def healthy() -> RankData:
    """Everything hides."""
    return record(step())


def slow_wire() -> RankData:
    """Gathers and reductions take longer than what they could hide under."""
    return record(step(gather=30, reduce=30))


def syncs() -> RankData:
    """Each block reads a number from the device in its forward."""
    block = Segment(
        forward_ns=FORWARD_NS,
        backward_ns=BACKWARD_NS,
        host_forward_ns=FORWARD_NS // 2,
        sync=True,
    )
    return record(step(block=block))


def busy_host() -> RankData:
    """Launching a block takes longer than computing it: the device runs dry."""
    return record(step(block=_launched_in(3 * MS, 6 * MS)))


def host_ahead() -> RankData:
    """Launching takes nine tenths of what computing takes: the host stays ahead."""
    return record(step(block=_launched_in(FORWARD_NS * 9 // 10, BACKWARD_NS * 9 // 10)))


def _launched_in(forward_ns: int, backward_ns: int) -> Segment:
    return Segment(
        forward_ns=FORWARD_NS,
        backward_ns=BACKWARD_NS,
        host_forward_ns=forward_ns,
        host_backward_ns=backward_ns,
    )


def sync_at_end() -> RankData:
    """The loss is read once, after the optimizer."""
    return record(step(sync_at_end=True))


def one_communicator() -> RankData:
    """Two reductions may be in flight: each gather queues behind them in backward."""
    return record(step(reduce=40, max_input_buffers=2))


def two_communicators() -> RankData:
    """The same with a communicator of its own for reduce-scatters."""
    changed = step(reduce=40, max_input_buffers=2, separate_reduce_scatter_group=True)
    return record(changed)


def retries() -> RankData:
    """The allocator retries once in each step. The counter is set by hand."""
    return _with_retries(range(1, 5))


def early_retries() -> RankData:
    """The allocator retried in the first steps only. The counter is set by hand."""
    return _with_retries([3, 3, 3, 3])


def _with_retries(counted: Any) -> RankData:
    data = healthy()
    steps = tuple(
        replace(
            one,
            counters=Counters.build(1, name=len(data.names), time_ns=at, value=value),
        )
        for one, at, value in zip(
            data.steps, [s.end_ns for s in data.steps], counted, strict=True
        )
    )
    evidence = (*data.header.evidence, Evidence.ALLOCATOR)
    return replace(
        data,
        header=replace(data.header, evidence=evidence),
        steps=steps,
        names=(*data.names, COUNTER_ALLOC_RETRIES),
    )


def offloaded() -> RankData:
    """Parameters in pageable host memory, the optimizer on the host. Where they live
    is set by hand.
    """
    return _offloaded("cpu", after_ns=20 * MS)


def offloaded_pinned() -> RankData:
    """The same in pinned memory, with an optimizer that is quick."""
    return _offloaded("cpu-pinned", after_ns=MS)


def _offloaded(where: str, after_ns: int) -> RankData:
    data = record(step(after_ns=after_ns))
    units = tuple(replace(spec, offload=where) for spec in data.header.units)
    return replace(data, header=replace(data.header, units=units))


CASES: dict[str, Callable[[], RankData]] = {
    "device-healthy": healthy,
    "device-slow-wire": slow_wire,
    "device-reads-in-blocks": syncs,
    "device-reads-at-end": sync_at_end,
    "device-busy-host": busy_host,
    "device-host-just-ahead": host_ahead,
    "device-one-communicator": one_communicator,
    "device-two-communicators": two_communicators,
    "device-allocator-retries": retries,
    "device-early-retries": early_retries,
    "device-offload-pageable": offloaded,
    "device-offload-pinned": offloaded_pinned,
}
