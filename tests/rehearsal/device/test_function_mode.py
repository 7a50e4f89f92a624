"""What Python asks of a tensor on the device, answered as CUDA would."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.rig.virtual_device import Log

cuda: Any = torch.cuda  # its stubs type half of it
HOST_SHAPE = 1 << 21
"""Elements of a host tensor that is too large to be worth its memory."""


def test_moves_go_where_they_are_told(log: Log) -> None:
    """By device, by type, by another tensor, in every order that torch takes."""
    x, host = torch.ones(3, device="cuda"), torch.ones(3)
    half = torch.float16
    assert host.to(x).is_cuda
    assert x.to(host).tolist() == [1.0] * 3
    assert (host.to("cuda:0", half, True).dtype, host.to(half).is_cuda) == (half, False)
    assert x.to(None, half).dtype == half
    assert x.to(dtype=half, device="cpu").dtype == half
    assert x.cpu().is_cpu
    assert host.cuda().get_device() == 0
    assert host.get_device() == -1
    assert x.to(0) is x
    assert x.to("cuda", copy=True) is not x


def test_a_buffer_is_moved_in_place(log: Log) -> None:
    """`buffer.data = buffer.to("cuda")`, as fully_shard moves a model from the host;
    whoever holds the buffer sees it there. Its values were known on the host.
    """
    module: Any = torch.nn.Module()
    module.register_buffer("frequencies", torch.arange(3))
    held = module.frequencies
    held.data = held.to("cuda")

    assert module.frequencies is held
    assert (held.is_cuda, held.dtype, tuple(held.shape)) == (True, torch.int64, (3,))
    assert (held + torch.ones(3, device="cuda")).is_cuda


def test_a_meta_tensor_stays_the_scripts_own(log: Log) -> None:
    """What has no data is refused by the device, as ever, and can be asked for."""
    assert torch.ones(3, device="cuda").to("meta").is_meta
    assert torch.ones(3, device="cuda").to("meta", torch.float16).dtype == torch.float16
    with pytest.raises(NotImplementedError, match="to_empty"):
        torch.empty(3, device="meta").to("cuda")
    with pytest.raises(NotImplementedError, match="no data"):
        torch.ones(3, device="cuda").copy_(torch.empty(3, device="meta"))


@pytest.mark.parametrize(
    ("kind", "dtype", "on_cuda"),
    [
        (torch.float16, torch.float16, True),
        ("torch.cuda.HalfTensor", torch.float16, True),
        (cuda.BFloat16Tensor, torch.bfloat16, True),
        ("torch.IntTensor", torch.int32, False),
    ],
)
def test_old_names_of_types_move_and_cast(
    kind: Any, dtype: torch.dtype, on_cuda: bool, log: Log
) -> None:
    """`x.type(...)`, from the device and from the host."""
    x = torch.ones(3, device="cuda").type(kind)
    assert (x.dtype, x.is_cuda) == (dtype, on_cuda)
    host = torch.ones(3).type(kind)
    stays = isinstance(kind, torch.dtype)
    assert (host.dtype, host.is_cuda) == (dtype, on_cuda and not stays)


def test_types_have_the_names_that_scripts_know(log: Log) -> None:
    """Of the device, of the host, and of the host's large ones."""
    assert torch.ones(3, device="cuda").type() == "torch.cuda.FloatTensor"
    assert torch.ones(3).type() == "torch.FloatTensor"
    assert torch.empty(HOST_SHAPE).type() == "torch.FloatTensor"


def test_what_is_printed_has_a_place_and_a_size(log: Log) -> None:
    """A log line goes on, with the number where there is one."""
    x = torch.ones(3, 2, device="cuda")
    shown = "tensor(..., device='cuda:0', size=(3, 2), dtype=torch.float32)"
    assert repr(x) == shown
    assert f"{x}" == shown
    assert f"{x.sum():.2f}" == "1.00"
    assert "device='cpu'" in repr(torch.empty(HOST_SHAPE))
    assert f"{torch.ones(2).sum():.1f} {torch.ones(2)}" == "2.0 tensor([1., 1.])"


def test_addresses_tell_tensors_apart(log: Log) -> None:
    """Views of a storage lie in it, by bytes; another tensor lies elsewhere."""
    x, y = torch.ones(4, 2, device="cuda"), torch.ones(4, 2, device="cuda")
    assert x.view(-1).data_ptr() == x.data_ptr() != y.data_ptr()
    assert x[1:].data_ptr() - x.data_ptr() == 2 * 4
    host = torch.ones(4, 2)
    assert host[1:].data_ptr() - host.data_ptr() == 2 * 4


def test_a_number_is_a_device_and_a_host_generator_is_none(log: Log) -> None:
    """As `torch.device(1)`; numbers that nobody computes need no generator."""
    assert torch.device(1) == torch.device("cuda", 1)
    assert torch.empty(3, device=0).is_cuda
    generator = torch.Generator().manual_seed(1)
    assert torch.randn(3, device="cuda", generator=generator).is_cuda


def test_a_block_that_another_stream_uses_is_not_given_away(log: Log) -> None:
    """`record_stream`: it is free again once that stream has done its work."""
    assert log.rig is not None
    allocator = log.rig.device.allocator
    side = cuda.Stream()
    size = 30 << 20  # of a segment of its own
    for marked, segments in ((False, 1), (True, 2)):
        torch.cuda.synchronize()
        allocator.empty_cache()
        before = allocator.reserved
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        own = allocator.reserved - before
        with torch.cuda.stream(side):
            cuda._sleep(1_000_000_000)
        if marked:
            x.record_stream(side)
        del x
        y = torch.empty(size, dtype=torch.uint8, device="cuda")
        assert allocator.reserved - before == segments * own
        del y


def test_reading_gives_finite_numbers(log: Log) -> None:
    """All ones, of the right shape; the host's own are what they are."""
    x = torch.empty(2, 2, device="cuda")
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert x.cpu().numpy().sum() == 4.0
    assert torch.tensor([2.0, 3.0]).tolist() == [2.0, 3.0]
