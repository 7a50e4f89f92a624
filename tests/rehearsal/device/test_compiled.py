"""`torch.compile` on the device: pointwise work is one kernel of the bytes it moves."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fsdpdoctor.recorder.fsdp2.unit_specs import _is_compiled
from fsdpdoctor.rehearsal.device.pricing.memory import kernel_ns
from fsdpdoctor.rehearsal.device.spec import load_spec
from tests.rig.virtual_device import Log, launched

SPEC = load_spec("h100")
START_NS = round(SPEC.kernel_us * 1e3)
COUNT = 1 << 20
SIZE = 4 * COUNT


def moves(size: int) -> int:
    """A kernel's length by its bytes."""
    return kernel_ns(SPEC, size)


def chain(x: torch.Tensor) -> torch.Tensor:
    """Three pointwise operations."""
    return x.relu().mul(2).add(1)


def test_a_compiled_module_is_known_as_one(log: Log) -> None:
    """Nothing wraps it in a rehearsal, so it says so itself."""
    modules = [nn.Linear(2, 2) for _ in range(3)]
    torch.compile(modules[0])
    modules[1].compile()

    assert [_is_compiled(module) for module in modules] == [True, True, False]


def test_a_chain_reads_once_and_writes_where_it_is_read(log: Log) -> None:
    """Eager reads and writes three times; what nobody else reads is never written."""
    x = torch.ones(COUNT, device="cuda")
    since = len(log.device.kernels)
    chain(x)
    eager = launched(log, since)
    assert [length for _, length in eager] == [moves(2 * SIZE)] * 3

    since = len(log.device.kernels)
    result = torch.compile(chain)(x)
    assert launched(log, since) == [("aten.relu", moves(SIZE) - START_NS)]
    result.exp()
    assert launched(log, since)[1:] == [
        ("fused", moves(SIZE)),
        ("aten.exp", moves(2 * SIZE)),
    ]
    result.exp()
    assert launched(log, since)[3:] == [("aten.exp", moves(2 * SIZE))]


def test_a_product_in_the_region_reads_what_was_written_for_it(log: Log) -> None:
    """Also where an operation of the region has read it before."""
    x = torch.ones(1024, 1024, device="cuda")

    @torch.compile(dynamic=False)
    def block(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = x.relu()
        return hidden.mul(2), hidden @ x

    since = len(log.device.kernels)
    block(x)
    assert [name for name, _ in launched(log, since)] == [
        "aten.relu",
        "fused",
        "aten.mm",
    ]
    assert launched(log, since)[1] == ("fused", moves(SIZE))


def test_the_backward_of_a_region_is_fused_too(log: Log) -> None:
    """Its gradients are made in one kernel; those of what is outside are not."""
    x = torch.ones(COUNT, device="cuda", requires_grad=True)
    y = torch.ones(COUNT, device="cuda", requires_grad=True)
    loss: Any = torch.compile(chain)(x).exp().sum()
    since = len(log.device.kernels)
    loss.backward()
    inside = [name for name, _ in launched(log, since)]

    loss = chain(y).exp().sum()
    since = len(log.device.kernels)
    loss.backward()
    eager = [name for name, _ in launched(log, since)]

    outside = ["aten.ones_like", "aten.mul.Tensor"]
    assert eager == [*outside, "aten.mul.Tensor", "aten.threshold_backward"]
    assert inside == [*outside, "aten.mul.Tensor"]


def test_modules_are_compiled_in_place(log: Log) -> None:
    """By `torch.compile` and by their own `compile`; both cost the same."""
    x = torch.ones(COUNT, device="cuda")
    first, second = nn.Sequential(nn.ReLU(), nn.ReLU()), nn.ReLU()
    assert torch.compile(first) is first
    second.compile()
    since = len(log.device.kernels)
    first(x)
    second(x)
    assert launched(log, since) == [("aten.relu", moves(SIZE) - START_NS)] * 2


def test_the_host_pays_less_for_a_fused_operation(log: Log) -> None:
    """Python calls each; what is charged is a part of a kernel."""
    x = torch.ones(8, device="cuda")
    assert log.rig is not None
    tally, host = log.rig.device.tally, log.rig.device.host
    before = tally.host_ns
    torch.compile(torch.relu)(x)
    assert tally.host_ns - before == host.compiled_op_ns
    before = tally.host_ns
    torch.relu(x)
    assert tally.host_ns - before == host.op_ns


def test_what_one_region_makes_is_written_for_the_next(log: Log) -> None:
    """Two regions are two graphs: a tensor between them goes through memory."""
    x = torch.ones(COUNT, device="cuda")
    first, second = torch.compile(chain), torch.compile(chain)
    since = len(log.device.kernels)
    second(first(x))
    assert launched(log, since) == [
        ("aten.relu", moves(SIZE) - START_NS),
        ("fused", moves(SIZE)),
        ("aten.relu", moves(SIZE) - START_NS),
    ]


def test_a_region_that_is_run_twice_is_two(log: Log) -> None:
    """Blocks of one class share their code, and hand their results on."""
    x = torch.ones(COUNT, device="cuda")
    block = torch.compile(chain)
    since = len(log.device.kernels)
    block(block(x))
    assert [name for name, _ in launched(log, since)] == [
        "aten.relu",
        "fused",
        "aten.relu",
    ]


def test_a_checkpointed_region_is_itself_in_backward(log: Log) -> None:
    """What is computed again there is not handed on through memory."""
    x = torch.ones(COUNT, device="cuda", requires_grad=True)
    block = torch.compile(chain)
    out = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    gradient = torch.ones(COUNT, device="cuda")
    since = len(log.device.kernels)
    out.backward(gradient)
    assert "fused" not in [name for name, _ in launched(log, since)]
