"""Collectives that DTensor issues: on the wire, after their data, and waited for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from fsdpdoctor.schema import Kind
from tests.rig.virtual_device import Log

RANKS = 16
SIZE = 32 * 4 * 4  # of the tensor below, in bytes

ops: Any = torch.ops._c10d_functional
cuda: Any = torch.cuda


@pytest.fixture
def x(log: Log) -> torch.Tensor:
    """A tensor of this rank, in a job that has begun."""
    dist.init_process_group("nccl")
    return torch.ones(32, 4, device="cuda")


@pytest.mark.parametrize(
    ("name", "more", "shape", "kind", "payload"),
    [
        ("all_gather_into_tensor", (RANKS,), (512, 4), Kind.ALL_GATHER, SIZE * RANKS),
        ("reduce_scatter_tensor", ("sum", RANKS), (2, 4), Kind.REDUCE_SCATTER, SIZE),
        ("all_reduce", ("sum",), (32, 4), Kind.ALL_REDUCE, SIZE),
        ("all_reduce_", ("sum",), (32, 4), Kind.ALL_REDUCE, SIZE),
        ("broadcast", (0,), (32, 4), Kind.COLLECTIVE, SIZE),
        ("all_to_all_single", ([2] * 16, [2] * 16), (32, 4), Kind.COLLECTIVE, SIZE),
    ],
)
def test_each_takes_its_time_on_the_wire(
    name: str,
    more: tuple[Any, ...],
    shape: tuple[int, ...],
    kind: Kind,
    payload: int,
    x: torch.Tensor,
    log: Log,
) -> None:
    """With its kind and payload, on a stream of its own; compute waits to its end."""
    result = getattr(ops, name)(x, *more, dist.group.WORLD.group_name)  # type: ignore[union-attr]
    (transfer,) = log.transfers
    ran = log.device.kernels[-1]
    assert result.shape == shape
    assert result.is_cuda
    assert (transfer.kind, transfer.name) == (kind, name)
    assert transfer.payload_bytes == payload
    assert (ran.name, ran.stream) == (name, 1)
    assert (ran.start_ns, ran.end_ns) == (transfer.start_ns, transfer.end_ns)

    before = len(log.device.waits)
    ops.wait_tensor(result)
    ops.wait_tensor(result)
    (wait,) = log.device.waits[before:]
    assert (wait.stream, wait.end_ns) == (0, transfer.end_ns)


def test_lists_go_as_one(x: torch.Tensor, log: Log) -> None:
    """A coalesced call is one transfer of all its tensors; each can be waited for."""
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    results = ops.all_reduce_coalesced([x, x], "sum", group)
    assert [t.payload_bytes for t in log.transfers] == [2 * SIZE]
    before = len(log.device.waits)
    for result in results:
        ops.wait_tensor(result)
    ends = {wait.end_ns for wait in log.device.waits[before:]}
    assert ends == {log.transfers[0].end_ns}


def test_a_collective_begins_after_what_makes_its_data(
    x: torch.Tensor, log: Log
) -> None:
    """The host only issues it, and is not held up."""
    cuda._sleep(50_000_000)
    issued = log.rig.device.clock.now_ns  # type: ignore[union-attr]
    ops.all_reduce(x, "sum", dist.group.WORLD.group_name)  # type: ignore[union-attr]
    slept = log.device.kernels[-2].end_ns
    (transfer,) = log.transfers
    now = log.rig.device.clock.now_ns  # type: ignore[union-attr]
    assert transfer.start_ns >= slept > now > issued


def test_a_dtensor_is_gathered_for_compute(x: torch.Tensor, log: Log) -> None:
    """`redistribute` waits for what it has issued, and gradients come back."""
    x.requires_grad_()
    mesh = init_device_mesh("cuda", (RANKS,))
    whole = DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    (transfer,) = log.transfers
    last = log.device.waits[-1]
    assert transfer.kind is Kind.ALL_GATHER
    assert (last.stream, last.end_ns) == (0, transfer.end_ns)

    local: Any = whole.to_local()
    assert local.shape == (512, 4)
    local.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_who_wraps_a_groups_methods_sees_them(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the recorder does: a rehearsed full_tensor() would be in no record."""
    seen: list[str] = []
    group: Any = dist.group.WORLD

    def wrapped(name: str) -> Any:
        original = getattr(type(group), name)

        def call(*args: Any) -> Any:
            seen.append(name)
            return original(*args)

        return call

    for name in ("all_gather_single", "allreduce"):
        monkeypatch.setattr(type(group), name, wrapped(name))
    ops.wait_tensor(ops.all_gather_into_tensor(x, RANKS, group.group_name))
    ops.wait_tensor(ops.all_reduce(x, "sum", group.group_name))

    assert seen == ["all_gather_single", "allreduce"]
