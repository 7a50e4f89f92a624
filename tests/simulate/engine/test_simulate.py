"""What must hold of every simulated step, whatever it is made of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpdoctor.analysis.step_budget import divide
from fsdpdoctor.analysis.timeline import of_kinds, timeline_of
from fsdpdoctor.schema import COLLECTIVE_KINDS, UNKNOWN, Kind, Lane, Spans
from fsdpdoctor.simulate.engine.opcodes import durations
from fsdpdoctor.simulate.engine.schedule import program
from fsdpdoctor.simulate.engine.simulate import simulate, walk
from fsdpdoctor.simulate.engine.step import (
    CommCost,
    CommCosts,
    Mesh,
    Node,
    Segment,
    Step,
)
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.engine.timing import Exposed
from tests.simulate.random_steps import steps
from tests.simulate.steps import step, wire

ON_COMPUTE = (
    Kind.COPY_OUT,
    Kind.REDUCE_COPY_IN,
    Kind.OPTIMIZER,
    Kind.ALL_GATHER_WAIT,
    Kind.REDUCE_SCATTER_WAIT,
    Kind.ALL_REDUCE_WAIT,
)
"""What occupies the compute lane by itself; units' passes contain it."""

examples = settings(max_examples=40)


def overlap_ns(spans: Spans) -> int:
    """How much of one span the next one, by start, overlaps."""
    order = np.lexsort((spans.end_ns, spans.start_ns))
    start, end = spans.start_ns[order], spans.end_ns[order]
    if len(start) < 2:
        return 0
    return int(np.maximum(np.maximum.accumulate(end)[:-1] - start[1:], 0).max())


@examples
@given(step=steps())
def test_no_lane_overlaps_itself(step: Step) -> None:
    """Compute, copy-in and every communicator do one thing at a time."""
    spans = Spans.concat([r.spans for r in record(step, 2).steps])
    lanes = {
        "compute": of_kinds(spans, *ON_COMPUTE),
        "copy-in": of_kinds(spans, Kind.COPY_IN),
    }
    for group in np.unique(spans.group):
        if group != UNKNOWN:
            collectives = of_kinds(spans, *COLLECTIVE_KINDS)
            lanes[f"group {group}"] = collectives.rows(collectives.group == group)

    assert {name: overlap_ns(rows) for name, rows in lanes.items()} == dict.fromkeys(
        lanes, 0
    )


@examples
@given(step=steps())
def test_nothing_happens_before_its_cause(step: Step) -> None:
    """Copied in, issued, gathered, copied out, in that order, for every unshard."""
    spans = record(step, 1).steps[0].spans
    ends: dict[tuple[int, int], int] = {}
    starts: dict[tuple[int, int], int] = {}
    for op, kind, start, end in zip(
        spans.op, spans.kind, spans.start_ns, spans.end_ns, strict=True
    ):
        key = int(op), int(kind)
        starts[key] = min(starts.get(key, int(start)), int(start))
        ends[key] = max(ends.get(key, int(end)), int(end))
    late = []
    for before, after in (
        (Kind.COPY_IN, Kind.ALL_GATHER),
        (Kind.ALL_GATHER, Kind.COPY_OUT),
        (Kind.ALL_GATHER, Kind.UNSHARDED),
        (Kind.REDUCE_COPY_IN, Kind.REDUCE_SCATTER),
        (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE),
    ):
        for (op, kind), end in ends.items():
            if op != UNKNOWN and kind == before and (op, after) in starts:
                late.append(starts[op, int(after)] - end)
    collectives = of_kinds(spans, *COLLECTIVE_KINDS)

    assert min(late, default=0) >= 0
    assert ((collectives.start_ns - collectives.issued_ns) >= 0).all()
    assert (spans.end_ns >= spans.start_ns).all()


@examples
@given(step=steps())
def test_the_analyzer_finds_the_exposure_that_was_simulated(step: Step) -> None:
    """By kind, to the nanosecond, in every step."""
    data = record(step, 2)
    plan, ns = program(step), durations(step)
    simulated = [w.exposed for _, w in walk(step, plan, ns, 2)]

    found = []
    for one in data.steps:
        stalls = timeline_of(data, one).stalls
        each = [
            int(stalls.duration_ns[stalls.kind == k].sum()) for k in COLLECTIVE_KINDS
        ]
        found.append(Exposed(*each))

    assert found == simulated


@examples
@given(step=steps())
def test_the_budget_adds_up(step: Step) -> None:
    """The analyzer's partition of a simulated step is the step."""
    data = record(step, 1)
    line = timeline_of(data, data.steps[0])

    assert sum(divide(line).ns.values()) == line.duration_ns
    assert simulate(step).step_ns == line.duration_ns


@examples
@given(step=steps(), kind=st.sampled_from(["all_gather", "reduce_scatter"]))
def test_more_bandwidth_is_never_slower(step: Step, kind: str) -> None:
    """A faster wire ends no operation later."""
    wire: CommCost = getattr(step.wires, kind)
    faster = replace(wire, bytes_per_second=2 * wire.bytes_per_second)
    changes: Any = {kind: faster}
    wires: CommCosts = replace(step.wires, **changes)
    plan = program(step)
    run = walk(step, plan, durations(step), 1)[0][1].end
    quick = walk(step, plan, durations(replace(step, wires=wires)), 1)[0][1].end

    assert quick.compute_ns <= run.compute_ns
    assert quick.host_ns <= run.host_ns


@examples
@given(step=steps())
def test_what_a_step_takes_it_gives_back(step: Step) -> None:
    """No memory is left over, none is given back twice, and peaks are true."""
    plan = program(step)
    held: dict[int, int] = defaultdict(int)
    lowest = 0
    for _, kind, _, delta in plan.moves:
        held[kind] += delta
        lowest = min(lowest, held[kind])

    assert lowest == 0
    assert set(held.values()) <= {0}
    assert plan.gathered_peak_bytes <= plan.peak_bytes


@examples
@given(step=steps())
def test_lanes_are_those_of_the_schema(step: Step) -> None:
    """Collectives run on their own lanes, stalls on the compute lane."""
    spans = record(step, 1).steps[0].spans
    lane_of = {
        Kind.ALL_GATHER: Lane.ALL_GATHER,
        Kind.REDUCE_SCATTER: Lane.REDUCE_SCATTER,
        Kind.ALL_REDUCE: Lane.ALL_REDUCE,
        Kind.ALL_GATHER_WAIT: Lane.COMPUTE,
        Kind.COPY_IN: Lane.COPY_IN,
        Kind.UNSHARDED: Lane.UNSHARDED,
    }

    for kind, lane in lane_of.items():
        assert set(of_kinds(spans, kind).lane.tolist()) <= {int(lane)}


def test_exposed_time_is_the_sum_of_its_kinds() -> None:
    """All three, in nanoseconds."""
    found = Exposed(all_gather_ns=1, reduce_scatter_ns=20, all_reduce_ns=300)

    assert found.total_ns == 321


def on_the_host(before: int, forward: int, backward: int, **known: Any) -> Step:
    """A model that FSDP2 does nothing with, and a loader that the host waits for."""
    return Step(
        units=(),
        segments=(Segment(forward_ns=forward, backward_ns=backward),),
        root=Node(units=(), items=(0,)),
        mesh=Mesh(shard=2),
        wires=CommCosts(all_gather=wire(), reduce_scatter=wire()),
        input_ns=before,
        **known,
    )


@pytest.mark.parametrize(
    ("known", "ns", "starts"),
    [
        # From 0 it takes 17; then the loader runs beside the step before.
        ({}, 10, [(10, 17), (20, 27), (30, 37)]),
        ({"sync_at_end": True}, 17, [(17, 17), (34, 34), (51, 51)]),
        ({"blocking": True}, 17, [(0, 0), (17, 17), (34, 34)]),
    ],
)
def test_a_step_is_taken_once_the_host_has_its_lead(
    known: dict[str, Any], ns: int, starts: list[tuple[int, int]]
) -> None:
    """10 ns for data, 3 and 4 of compute: a host that does not wait is ahead by 7."""
    one = on_the_host(10, 3, 4, **known)
    walks = walk(one, program(one), durations(one), 3)

    assert [clock for clock, _ in walks] == starts
    assert [w.end for _, w in walks[:2]] == starts[1:]
    assert simulate(one).step_ns == simulate(one, program(one)).step_ns == ns


def test_a_device_that_has_enough_to_do_sets_the_pace() -> None:
    """3 ns for data, under 7 of compute."""
    assert simulate(on_the_host(3, 3, 4)).step_ns == 7


def test_an_outcome_is_of_the_plan_that_is_given() -> None:
    """Not of one made anew."""
    one = step(1)
    found = simulate(one, replace(program(one), peak_bytes=7, gathered_peak_bytes=5))

    assert (found.peak_bytes, found.gathered_peak_bytes) == (7, 5)
    assert simulate(one).peak_bytes == 10624  # counted in `test_param_groups`
    assert simulate(one).gathered_peak_bytes == 4160 + 2048
