"""Groups on a modelled wire: a collective takes as long as it costs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fsdpdoctor.network import parse_network
from fsdpdoctor.quantities import MS
from fsdpdoctor.rehearsal import modelled_work
from fsdpdoctor.rehearsal.modelled_group import World
from fsdpdoctor.rehearsal.modelled_work import Transfer, sleep_until
from fsdpdoctor.schema import Kind
from tests.networks import modelled_world, uniform
from tests.rig.virtual_device import Job, rehearsed

GB = 10**9

# Renamed in torch 2.13, where the earlier names warn.
names = vars(dist)
all_gather = names.get("all_gather_single") or names["all_gather_into_tensor"]
reduce_scatter = names.get("reduce_scatter_single") or names["reduce_scatter_tensor"]


def test_sleeps_to_the_deadline_and_never_short_of_it() -> None:
    """Waking late is the machine's doing; waking early would be ours."""
    deadline_ns = time.perf_counter_ns() + 2 * MS
    sleep_until(deadline_ns)
    assert time.perf_counter_ns() >= deadline_ns


@pytest.fixture
def log() -> Iterator[list[Transfer]]:
    """A job of 8 ranks as 2 replicas of 4, on nodes of 4, and what it did."""
    seen: list[Transfer] = []
    wire = parse_network("shard=1GB/s@1ms,replicate=1GB/s@2ms,3GB/s@3ms")
    world = World(wire=wire, size=8, shard_size=4, node_size=4, log=seen)
    with modelled_world(world):
        yield seen


def planned_ms(transfer: Transfer) -> int:
    """How long a transfer has the communicator, to the millisecond."""
    return round((transfer.end_ns - transfer.start_ns) / MS)


def test_groups_know_their_links(log: list[Transfer]) -> None:
    """By the mesh's names, and by the ranks where no name says it."""
    named = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_replicate", "dp_shard"))
    plain = init_device_mesh("cpu", (2, 4))
    world = init_device_mesh("cpu", (8,))
    for mesh, dim in ((named, 0), (named, 1), (plain, 0), (plain, 1), (world, 0)):
        dist.barrier(group=mesh.get_group(dim))

    assert [planned_ms(t) for t in log] == [2, 1, 2, 1, 3]
    assert [t.blocking for t in log] == [True] * 5


def test_one_communicator_runs_one_collective_at_a_time(log: list[Transfer]) -> None:
    """Two at once on one group queue; on two groups they do not."""
    mesh = init_device_mesh("cpu", (2, 4))
    shard, replicate = mesh.get_group(1), mesh.get_group(0)
    x = torch.ones(8)
    works = [dist.all_reduce(x, group=g, async_op=True) for g in (shard, shard)]
    works.append(dist.all_reduce(x, group=replicate, async_op=True))
    first, second, other = log
    for work in works:
        assert work is not None
        work.wait()

    assert second.start_ns == first.end_ns
    assert other.start_ns == other.issue_ns
    assert [work.fsdpdoctor_end_ns for work in works] == [t.end_ns for t in log]
    assert [t.seq for t in log] == [0, 1, 0]


def test_only_the_first_wait_costs(
    log: list[Transfer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait ends no earlier than the collective; a second one finds it done."""
    work = dist.all_reduce(torch.ones(8), async_op=True)
    assert work is not None
    (transfer,) = log
    # A busy machine may come back here when it is over.
    assert not work.is_completed() or time.perf_counter_ns() >= transfer.end_ns
    work.wait()
    assert work.is_completed()
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it slept"))
    work.wait()

    (_, first_end), (second_start, _) = transfer.waits
    assert transfer.end_ns <= first_end <= second_start


def test_a_blocking_call_is_exposed_from_its_start_to_its_end(
    log: list[Transfer],
) -> None:
    """What the log says lies inside what the caller saw, and lasts the whole time."""
    x, out = torch.ones(4), torch.empty(32)
    before_ns = time.perf_counter_ns()
    all_gather(out, x)
    after_ns = time.perf_counter_ns()

    (transfer,) = log
    assert transfer.waits[0][0] == transfer.issue_ns
    assert before_ns <= transfer.issue_ns
    assert transfer.end_ns <= transfer.waits[0][1] <= after_ns
    assert transfer.payload_bytes == 128
    assert transfer.exposed_ns >= 3 * MS


def test_every_other_rank_is_a_copy_of_this_one(log: list[Transfer]) -> None:
    """Gathers repeat, sums multiply by the ranks, means stay, and nothing is random."""
    x = torch.tensor([1.0, 2.0])
    gathered, listed = torch.empty(16), [torch.empty(2) for _ in range(8)]
    all_gather(gathered, x)
    dist.all_gather(listed, x)
    scattered = torch.empty(1)
    reduce_scatter(scattered, torch.arange(8.0) + 1)
    total, largest = x.clone(), x.clone()
    dist.all_reduce(total)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    swapped = torch.empty(8)
    dist.all_to_all_single(swapped, torch.arange(8.0))
    received = torch.full((2,), float("nan"))
    dist.recv(received, src=3)

    assert gathered.tolist() == [1.0, 2.0] * 8
    assert [t.tolist() for t in listed] == [[1.0, 2.0]] * 8
    assert scattered.tolist() == [8.0]
    assert total.tolist() == [8.0, 16.0]
    assert largest.tolist() == [1.0, 2.0]
    assert swapped.tolist() == list(range(8))
    assert received.tolist() == [0.0, 0.0]
    assert {t.group for t in log} == {"0"}


def test_object_collectives_give_this_ranks_object(log: list[Transfer]) -> None:
    """Scripts gather metrics and broadcast settings; both must go on."""
    gathered: list[object] = [None] * 8
    dist.all_gather_object(gathered, {"loss": 1.5})
    collected: list[object] = [None] * 8
    dist.gather_object("rank", collected)
    shared: list[object] = [{"seed": 3}]
    dist.broadcast_object_list(shared, src=0)
    mine: list[object] = [None]
    dist.scatter_object_list(mine, list(range(8)), src=0)

    assert gathered == [{"loss": 1.5}] * 8
    assert collected == ["rank"] * 8
    assert shared == [{"seed": 3}]
    assert mine == [0]
    assert len(log) > 0


def test_ddp_trains_on_the_wire(log: list[Transfer]) -> None:
    """Its reducer waits on futures: the mean of equal gradients is the gradient."""
    model = torch.nn.Linear(2, 1, bias=False)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped(torch.tensor([[3.0, 4.0]])).sum().backward()

    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[3.0, 4.0]]
    assert log[-1].kind is Kind.ALL_REDUCE


def test_lists_are_filled_as_their_methods_nest_them(log: list[Transfer]) -> None:
    """This rank's chunk of a list, its own part from everyone, nothing of a root's."""
    ranks = range(8)
    chunk = torch.empty(2)
    dist.reduce_scatter(chunk, [torch.full((2,), float(r) + 1) for r in ranks])
    swapped = [torch.empty(2) for _ in ranks]
    dist.all_to_all(swapped, [torch.full((2,), float(r) + 5) for r in ranks])
    given = torch.full((2,), float("nan"))
    dist.scatter(given, src=3)
    mine = torch.empty(2)
    dist.scatter(mine, [torch.full((2,), float(r) + 7) for r in ranks], src=0)
    group = dist.group.WORLD
    rows = [[torch.empty(1), torch.empty(2)] for _ in ranks]
    work = group.allgather_coalesced(rows, [torch.ones(1), torch.full((2,), 2.0)])  # type: ignore[union-attr]
    work.wait()

    assert chunk.tolist() == [8.0, 8.0]
    assert [t.tolist() for t in swapped] == [[5.0, 5.0]] * 8
    assert given.tolist() == [0.0, 0.0]
    assert mine.tolist() == [7.0, 7.0]
    assert [[t.tolist() for t in row] for row in rows] == [[[1.0], [2.0, 2.0]]] * 8
    assert [t.name for t in log] == [
        "reduce_scatter",
        "alltoall",
        "scatter",
        "scatter",
        "allgather_coalesced",
    ]


def test_nothing_to_move_takes_a_latency(log: list[Transfer]) -> None:
    """Ranks that have no tokens for an expert still call; what is expected is zero."""
    nothing, expected = torch.empty(0), torch.full((3,), float("nan"))
    all_gather(torch.empty(0), nothing)
    reduce_scatter(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(expected, nothing, [3, 0, 0, 0, 0, 0, 0, 0], [0] * 8)

    assert expected.tolist() == [0.0] * 3
    assert [t.payload_bytes for t in log] == [0, 0, 12]
    assert [planned_ms(t) for t in log] == [3, 3, 3]


def test_a_work_is_asked_as_any_other(log: list[Transfer]) -> None:
    """Whether it went well, what it wrote; `synchronize` is a wait."""
    x = torch.ones(8)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    assert work.is_success()
    assert [t.tolist() for t in work.result()] == [[8.0] * 8]
    work.synchronize()
    assert len(log[0].waits) == 1
    assert work.is_completed()


def test_on_a_modelled_device_a_stream_waits() -> None:
    """The host goes on; a future is there at once, as NCCL's are on their stream."""
    with rehearsed(Job()) as job:
        dist.init_process_group("nccl")
        x = torch.ones(8, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        (transfer,) = job.transfers
        assert not work.is_completed()
        before = len(job.device.waits)
        (result,) = work.get_future().wait()
        (wait,) = job.device.waits[before:]
        assert result is x
        assert (wait.stream, wait.end_ns) == (0, transfer.end_ns)
        torch.cuda.synchronize()
        assert work.is_completed()


def test_the_rate_of_a_spinning_kernel_is_measured_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cycles of a known number by the events around them; the first one warms up."""
    with rehearsed(Job()) as job:  # a cycle is a nanosecond there
        monkeypatch.setattr(modelled_work, "_cycles", {})
        device = torch.device("cuda", 0)
        rates = [modelled_work.cycles_per_ns(device) for _ in range(2)]
        spun = [k.end_ns - k.start_ns for k in job.device.kernels]
    assert rates == pytest.approx([1.0, 1.0], rel=1e-3)
    assert spun == [20_000_000, 20_000_000]


def test_the_backend_cannot_be_asked_for_by_a_script() -> None:
    """Outside a rehearsal the name says what it is for."""
    with modelled_world(World(wire=uniform(1 * GB), size=2, shard_size=2, node_size=2)):
        pass
    with pytest.raises(RuntimeError, match="belongs to fsdpdoctor's rehearsals"):
        dist.init_process_group("wire", store=dist.HashStore(), rank=0, world_size=2)  # type: ignore[attr-defined]
