"""Links of groups that a run had not: told by a rehearsal, or covered by the error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import noted_wire, parse_network, wire_note
from fsdpdoctor.rehearsal.rehearsal import Rehearsal
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.simulate import simulate
from fsdpdoctor.simulate.engine.step import CommCost, Mesh
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.links import INSIDE
from fsdpdoctor.simulate.plans.predict import predict, replay
from tests.simulate.steps import step, with_units

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


def test_groups_that_leave_their_host_have_no_price() -> None:
    """A run inside one host shows no link between hosts; `--bandwidth` names it."""
    inside = RunConstraints(local_world_size=8)
    with pytest.raises(UsageError, match="span hosts of 8, and this run shows links"):
        changed(Plan(world_size=16), step(4), inside)
    made = changed(Plan(world_size=16, bandwidth="1GB/s@10us"), step(4), inside)
    assert made.step.wires.all_gather.bytes_per_second == 1e9 / (15 / 16)


def test_a_run_that_gathered_nothing_shows_no_link() -> None:
    """Of replicas alone: what sharding would cost is not guessed."""
    wires = replace(
        step(4).wires, all_reduce=CommCost(latency_ns=1, bytes_per_second=1)
    )
    alone = step(4, mesh=Mesh(shard=1, replicate=8), wires=wires)
    with pytest.raises(UsageError, match="no all-gather to take a speed from"):
        changed(Plan(replicate=2), alone, RunConstraints())


def test_more_replicas_keep_the_bus_bandwidth_of_those_there_are() -> None:
    """An all-reduce over four ranks moves 2 * 3/4 of a tensor, over two 2 * 1/2."""
    wires = replace(
        step(4).wires, all_reduce=CommCost(latency_ns=5, bytes_per_second=1e9)
    )
    two = step(4, mesh=Mesh(shard=4, replicate=2), wires=wires)
    made = changed(Plan(replicate=4), two, RunConstraints(local_world_size=8))
    assert made.step.wires.all_reduce == CommCost(
        latency_ns=two.wires.reduce_scatter.latency_ns, bytes_per_second=1e9 / 1.5
    )


def test_memory_of_states_and_integer_reshards_follow_the_mesh() -> None:
    """Fewer shards hold more each; a reshard over as many as shard is a plain one."""
    wires = step(2).wires
    wires = replace(wires, post_forward=wires.all_gather, post_forward_ranks=2)
    resharded = step(2, resident_bytes=1 << 30, wires=wires)
    base = with_units(resharded, reshard_after_forward=2)
    made = changed(Plan(replicate=4), base, RunConstraints(local_world_size=8)).step
    assert {u.reshard_after_forward for u in made.units[1:]} == {True}
    assert made.resident_bytes > base.resident_bytes


def test_a_rehearsal_s_link_is_that_of_an_integer_reshard_too() -> None:
    """Four of eight ranks lie in a host of four, two hosts away from the others."""
    known = RunConstraints(
        local_world_size=4, network="intra=4GB/s@1us,inter=1GB/s@9us"
    )
    plan = Plan(reshard_after_forward={"layers.0": 4})
    wires = changed(plan, step(4), known).step.wires
    assert wires.post_forward == CommCost(
        latency_ns=1_000, bytes_per_second=4e9 / (3 / 4)
    )
    moved = changed(Plan(replicate=2), changed(plan, step(4), known).step, known).step
    assert moved.wires.post_forward == wires.post_forward
