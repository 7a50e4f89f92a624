"""Links of groups that a run had not: told by a rehearsal, or covered by the error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.network import noted_wire, parse_network, wire_note
from fsdpdoctor.rehearsal.rehearsal import Rehearsal
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.simulate import simulate
from fsdpdoctor.simulate.engine.step import CommCost
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.links import INSIDE
from fsdpdoctor.simulate.plans.predict import predict, replay
from tests.simulate.steps import step

HOSTS = RunConstraints(local_world_size=4)
"""Eight ranks on two hosts."""


def test_links_inside_a_host_are_not_those_between_hosts() -> None:
    """A run over two hosts shows none of them: they are taken to be faster, it is said,
    and the error reaches from as fast as between hosts to links that cost nothing.
    """
    base = step(4)
    same = changed(Plan(replicate=2), base, RunConstraints()).step.wires.all_gather
    made = changed(Plan(replicate=2), base, HOSTS)
    inside = made.step.wires.all_gather

    assert inside.bytes_per_second == INSIDE * same.bytes_per_second
    assert made.unseen == {"all_gather": INSIDE, "reduce_scatter": INSIDE}
    assert any("does not show links inside a host" in said for said in made.assumptions)
    small = changed(Plan(reshard_after_forward={"layers.0": 4}), base, HOSTS)
    assert small.unseen == {"post_forward": INSIDE}


def test_a_rehearsal_s_links_are_known() -> None:
    """Its notes name them: nothing is guessed."""
    note = Rehearsal(
        world_size=8, node_size=4, wire=parse_network("intra=4GB/s@1us,inter=1GB/s@9us")
    ).note
    known = RunConstraints(local_world_size=4, network=noted_wire([note]))
    made = changed(Plan(replicate=2), step(4), known)

    assert made.unseen == {}
    assert made.step.wires.all_gather == CommCost(
        latency_ns=1_000, bytes_per_second=4e9 / (3 / 4)
    )
    assert made.step.wires.all_reduce == CommCost(
        latency_ns=9_000, bytes_per_second=1e9 / (2 * 1 / 2)
    )


@pytest.mark.parametrize(
    "text",
    [
        "ib400",
        "8xib400",
        "25GB/s@10us",
        "intra=nvlink4,inter=eth100",
        "40MB/s@100us,reduce-scatter=1GB/s@100us",
        "ib400,shard:all-gather=30GB/s",
    ],
)
def test_a_rehearsal_s_note_gives_its_links_back(text: str) -> None:
    """As `--bandwidth` had them; other notes have none."""
    wire = parse_network(text)
    found = noted_wire(["time is virtual", f"losses: {wire_note(wire)}"])
    assert found is not None
    assert parse_network(found) == wire
    assert noted_wire(["time is virtual"]) is None


def test_the_error_covers_links_that_were_not_seen() -> None:
    """From as fast as between hosts, to free: both ends lie within the bar."""
    base = replay(calibrate(record(step(4))))
    plan = Plan(replicate=2)
    hosts = replace(
        base,
        calibration=replace(base.calibration, constraints=HOSTS),
    )
    found = predict(hosts, plan)
    unseen = changed(plan, base.calibration.step, RunConstraints()).step
    as_fast = simulate(unseen).step_ns
    wires = replace(
        unseen.wires,
        all_gather=replace(unseen.wires.all_gather, bytes_per_second=1e15),
        reduce_scatter=replace(unseen.wires.reduce_scatter, bytes_per_second=1e15),
    )
    free = simulate(replace(unseen, wires=wires)).step_ns

    assert free < found.step_ns < as_fast
    assert found.step_ns - found.error_ns <= free
    assert found.step_ns + found.error_ns >= as_fast
