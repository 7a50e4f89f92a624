"""What the host learns from a device that computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fsdpdoctor.rehearsal.device.pricing.memory import copy_ns
from fsdpdoctor.rehearsal.device.spec import load_spec
from fsdpdoctor.rehearsal.device.virtual_device import Tally
from tests.rig.virtual_device import Log, launched

LARGE = 1 << 21
SPEC = load_spec("h100")


def tally(log: Log) -> Tally:
    """What was made up so far."""
    assert log.rig is not None
    return log.rig.device.tally


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: torch.full((), True, device="cuda"), True),
        (lambda: torch.zeros((), dtype=torch.bool, device="cuda"), False),
        (lambda: torch.full((1,), 2.5, device="cuda"), 2.5),
        (lambda: torch.full((1,), 2.5, dtype=torch.int64, device="cuda"), 2),
        (lambda: torch.scalar_tensor(3, dtype=torch.int64, device="cuda"), 3),
        (lambda: torch.zeros_like(torch.ones(1, device="cuda")), 0.0),
        (lambda: torch.ones((), device="cuda").clone(), 1.0),
        (lambda: torch.tensor(4.5, device="cuda"), 4.5),
        (lambda: torch.tensor(7, device="cuda", dtype=torch.float32), 7.0),
        (lambda: torch.as_tensor([3, 8], device="cuda")[1], 8),
        (lambda: torch.tensor([[1, 2], [3, 4]]).to("cuda").t()[0, 1], 3),
        (lambda: torch.tensor(2.7).cuda().long(), 2),
        (lambda: torch.zeros(2, device="cuda").new_tensor([5.0, 6.0])[0], 5.0),
        (lambda: torch.zeros(2, device="cuda").new_full((3,), 9.0)[2], 9.0),
        (lambda: torch.arange(5, device="cuda")[3], 3),
        (lambda: torch.tensor(True, device="cuda"), True),
        (lambda: torch.zeros((), device="cuda").copy_(torch.tensor(1.5)), 1.5),
    ],
)
def test_a_scripts_own_constant_is_answered(
    made: Callable[[], torch.Tensor], expected: object, log: Log
) -> None:
    """With the value and the type that it was given; nothing is made up."""
    found = made().item()
    assert (found, type(found)) == (expected, type(expected))
    assert not tally(log).answered


@pytest.mark.parametrize(
    "change",
    [
        lambda t, x: t.copy_(x),
        lambda t, x: t.fill_(x),
        lambda t, x: t.add_(x),
    ],
)
@pytest.mark.parametrize("first", [0.0, 4.5])
def test_a_constant_that_was_written_to_is_none(
    change: Any, first: float, log: Log
) -> None:
    """Then the number is made up, and counted at the script's line."""
    total = torch.tensor(first, device="cuda")
    loss = torch.randn((), device="cuda")
    change(total, loss)
    assert total.item() == 1.0
    assert list(tally(log).answered.values()) == [1]
    (place,) = tally(log).answered
    assert place.rpartition(":")[0].endswith("test_host_values.py")


def test_everything_is_finite_and_what_follows_from_it(log: Log) -> None:
    """Through all, any, not and or, and as a mask; a check of gradients goes on."""
    x = torch.randn(4, 2, device="cuda")
    finite, nan, infinite = torch.isfinite(x), x.isnan(), x.isinf()
    assert finite.all().item() is True
    assert (~finite).any().item() is False
    assert torch.logical_not(nan).all().item() is True
    assert torch.logical_or(nan, infinite).any().item() is False
    assert (finite | nan).all().item() is True
    assert finite.cpu().tolist() == [[True, True]] * 4
    assert (torch.nonzero(finite).shape, torch.nonzero(nan).shape) == ((8, 2), (0, 2))
    assert x[finite].shape == (8,)
    assert not tally(log).answered
    assert not tally(log).assumed


def test_a_mask_that_is_changed_is_known_no_longer(log: Log) -> None:
    """Written in place, it may be anything: half of it is assumed."""
    x = torch.randn(4, 2, device="cuda")
    mask = torch.isfinite(x)
    mask &= x > 0
    assert mask.all().item() is False
    assert torch.nonzero(mask).shape == (4, 2)
    assert len(tally(log).assumed) == 1


@pytest.mark.parametrize(
    ("select", "shapes"),
    [
        (lambda x: torch.nonzero(x), [(4, 2)]),
        (lambda x: x.masked_select(x > 0), [(4,)]),
        (lambda x: x[x > 0], [(4,)]),
        (lambda x: x[x[:, 0] > 0], [(2, 2)]),
        (lambda x: x[torch.ones(3, dtype=torch.int64)], [(3, 2)]),
        (lambda x: torch.unique(x), [(4,)]),
        (
            lambda x: torch.unique(x, return_inverse=True, return_counts=True),
            [(4,), (4, 2), (4,)],
        ),
        (lambda x: torch.unique_consecutive(x), [(4,)]),
        (lambda x: torch.bincount(x.flatten().long(), minlength=7), [(7,)]),
    ],
)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_selection_takes_half(
    select: Any, shapes: list[tuple[int, ...]], device: str, log: Log
) -> None:
    """On the device it is assumed, which is kept for the reader; on the host it is
    counted.
    """
    x = torch.tensor([[1.0, 0], [0, 2], [3, 0], [0, 4]])
    made = select(x.to(device).mul(1))  # what is computed there is not known
    results = [made] if isinstance(made, torch.Tensor) else list(made)
    assert {r.device.type for r in results} == {device}
    if device == "cuda":
        assert [tuple(r.shape) for r in results] == shapes
        indexed = shapes == [(3, 2)]
        assert bool(tally(log).assumed) is not indexed
    else:
        assert not tally(log).assumed


def test_a_large_host_tensor_is_a_shape_there_too(log: Log) -> None:
    """It stays on the host, and what is selected of it does."""
    large = torch.empty(LARGE)
    assert torch.nonzero(large).shape == (LARGE // 2, 1)
    assert torch.unique(large).is_cpu
    assert large.copy_(torch.ones(LARGE)) is large
    assert torch.empty(LARGE // 4, device="cuda").cpu().shape == (LARGE // 4,)


def test_truths_are_asked_of_the_device(log: Log) -> None:
    """Two tensors are taken to be equal; the host's are compared."""
    x = torch.randn(3, device="cuda")
    assert torch.equal(x, x + 1)
    assert list(tally(log).answered.values()) == [1]
    assert not torch.equal(torch.zeros(3), torch.ones(3))
    assert list(tally(log).answered.values()) == [1]


@pytest.mark.parametrize(
    ("copy", "pinned", "waits"),
    [
        (lambda x, h: x.copy_(h), False, True),
        (lambda x, h: x.copy_(h.pin_memory()), True, True),
        (lambda x, h: x.copy_(h.pin_memory(), non_blocking=True), True, False),
        (lambda x, h: h.copy_(x), False, True),
        (lambda x, h: h.to("cuda"), False, True),
        (lambda x, h: h.pin_memory().to("cuda", non_blocking=True), True, False),
        (lambda x, h: x.cpu(), True, True),
        (lambda x, h: x.to("cpu", non_blocking=True), True, False),
    ],
)
def test_copies_take_the_bus(copy: Any, pinned: bool, waits: bool, log: Log) -> None:
    """At the rate of the host's memory; the host waits unless it is told not to."""
    assert log.rig is not None
    device = log.rig.device
    x, host = torch.ones(100_000, device="cuda"), torch.ones(100_000)
    torch.cuda.synchronize()
    since = len(log.device.kernels)
    copy(x, host)
    length = copy_ns(device.spec, 400_000, pinned=pinned)
    assert launched(log, since) == [("copy", length)]
    assert device.times.is_idle(device.current) is waits


def test_a_copy_on_the_device_is_a_kernel(log: Log) -> None:
    """It reads and writes, and nobody waits."""
    x, y = torch.ones(100_000, device="cuda"), torch.ones(100_000, device="cuda")
    since = len(log.device.kernels)
    x.copy_(y)
    assert [name for name, _ in launched(log, since)] == ["aten.copy_"]


def test_pinned_memory_is_known_again(log: Log) -> None:
    """As a loader's worker asks."""
    host = torch.ones(3)
    assert not host.is_pinned()
    assert host.pin_memory().is_pinned()


def test_all_numbers_of_a_small_tensor_of_the_hosts_come_back(log: Log) -> None:
    """As a list, as an array, on the host, and as a mask's count."""
    given = [[1, 0, 2], [0, 0, 5]]
    there = torch.tensor(given, device="cuda")
    assert there.tolist() == given
    assert there.cpu().numpy().tolist() == given
    assert there[1, 2:].tolist() == [5]
    mask = torch.tensor([True, False, True], device="cuda")
    assert tuple(torch.ones(3, 4, device="cuda")[mask].shape) == (2, 4)
    assert torch.equal(there, torch.tensor(given, device="cuda"))
    assert not tally(log).answered
    assert not tally(log).assumed


def test_a_gradient_scaler_steps_and_keeps_its_scale(log: Log) -> None:
    """Every gradient is finite: nothing is skipped, and nothing is made up."""
    model = torch.nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    steps = 0

    def stepped(*_: object) -> None:
        nonlocal steps
        steps += 1

    optimizer.register_step_post_hook(stepped)
    for _ in range(3):
        scaler.scale(model(torch.randn(4, 8, device="cuda")).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert (steps, scaler.get_scale()) == (3, 1024.0)
    assert not tally(log).answered


def test_the_default_device_is_the_modelled_one(log: Log) -> None:
    """Numbers that are put there without a word on where."""
    torch.set_default_device("cuda")
    try:
        made = torch.tensor([3, 4])
        assert (made.device.type, made.tolist()) == ("cuda", [3, 4])
        assert torch.get_default_device().type == "cuda"
    finally:
        torch.set_default_device(None)


def test_collectives_of_known_numbers_leave_what_copies_would(log: Log) -> None:
    """Sixteen ranks of one value: their sum, their largest, each one's."""
    dist.init_process_group("nccl")
    total, most = (torch.tensor(5, device="cuda") for _ in range(2))
    dist.all_reduce(total)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    slots = [torch.zeros(1, device="cuda") for _ in range(16)]
    dist.all_gather(slots, torch.tensor([2.5], device="cuda"))
    whole = torch.zeros(32, device="cuda")
    dist.all_gather_single(whole, torch.tensor([1.0, 2.0], device="cuda"))
    assert (total.item(), most.item()) == (80, 5)
    assert [slot.item() for slot in slots] == [2.5] * 16
    assert whole.tolist() == [1.0, 2.0] * 16
    assert not tally(log).answered


def test_collectives_of_others_leave_nothing_known(log: Log) -> None:
    """Where one rank's number was computed, zeros are none any more."""
    dist.init_process_group("nccl")
    slots = [torch.zeros(1, device="cuda") for _ in range(16)]
    dist.all_gather(slots, torch.randn(1, device="cuda"))
    assert slots[3].item() == 1.0
    assert list(tally(log).answered.values()) == [1]


def test_a_tensor_of_numbers_is_copied_from_the_host_and_waited_for(log: Log) -> None:
    """As torch does: a copy out of pageable memory, and the stream's end."""
    since = len(log.device.kernels)
    torch.tensor([4.5, 1.0], device="cuda")
    assert launched(log, since) == [("copy", copy_ns(SPEC, 8, pinned=False))]


def test_a_large_tensor_of_the_hosts_is_not_kept(log: Log) -> None:
    """Data is no constant: what is read of it is made up, and said so."""
    there = torch.arange(LARGE, dtype=torch.int32).cuda()
    assert there[7].item() == 1
    assert list(tally(log).answered.values()) == [1]
