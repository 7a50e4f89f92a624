"""Which tensors are on the device, and the memory that they hold.

A storage on the device has a `Holding` as an attribute: it dies with the storage, and
gives its block back then. Host tensors too large to be worth their memory are meta
tensors as well, whose holding is `HOST`. A meta tensor without one is the script's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from fsdpdoctor.rehearsal.device.memory.caching_allocator import Block, OutOfMemory
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice

_ATTRIBUTE = "_fsdpdoctor_holding"
_storage: Callable[[torch.Tensor], Any] = torch.Tensor.untyped_storage
_base: Any = torch._C.TensorBase
is_shape: Callable[[torch.Tensor], bool] = _base.is_meta.__get__
"""Whether C++ knows a tensor as a meta one. Called where no function mode is on."""


class Holding:
    """A storage's memory."""

    __slots__ = ("block", "bucket", "ledger", "size")

    def __init__(self, ledger: Ledger | None, bucket: str) -> None:
        self.ledger = ledger  # None: on the host
        self.block: Block | None = None
        self.bucket = bucket
        self.size = 0

    def __del__(self) -> None:
        if self.ledger is not None and self.block is not None:
            self.ledger.release(self)


HOST = Holding(None, "host")


class Ledger:
    """All memory of the device, by what it is for."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self.bucket: Callable[[], str] = lambda: "other"
        self.held: Counter[str] = Counter()
        self.at_peak: Counter[str] = Counter()  # by bucket
        self.peak = 0
        self.peak_place = ""
        self.place: Callable[[], str] = lambda: ""
        # Told of each holding whose block is another now, while somebody counts.
        self.changed: Callable[[Holding], None] | None = None
        self.failed: OutOfMemory | None = None
        self.failed_place = ""
        device.allocator.on_failure = self._fails

    def hold(self, tensor: torch.Tensor) -> None:
        """A tensor was made on the device."""
        storage = _storage(tensor)
        if hasattr(storage, _ATTRIBUTE):
            return
        holding = Holding(self, self.bucket())
        self._take(holding, storage.nbytes())
        storage._fsdpdoctor_holding = holding

    def resize(self, holding: Holding, size: int) -> None:
        """FSDP2 frees and allocates a storage in place."""
        if holding.block is not None:
            self.release(holding)
        self._take(holding, size)

    def release(self, holding: Holding) -> None:
        """Give a storage's block back."""
        block, holding.block = holding.block, None
        if block is not None:
            self.held[holding.bucket] -= block.size
            self._device.allocator.free(block)
            if self.changed is not None:
                self.changed(holding)

    def _fails(self, error: OutOfMemory) -> None:
        """A real job would end here; a rehearsal goes on, to learn what it needs."""
        if self.failed is None:
            self.failed, self.failed_place = error, self.place()

    def _take(self, holding: Holding, size: int) -> None:
        holding.size = size
        allocator = self._device.allocator
        block = allocator.allocate(size, self._device.current)
        holding.block = block
        if block is not None:
            self.held[holding.bucket] += block.size
            if self.changed is not None:
                self.changed(holding)
        if allocator.allocated > self.peak:
            self.peak = allocator.allocated
            self.at_peak = self.held.copy()
            self.peak_place = self.place()


def holding_of(tensor: torch.Tensor) -> Holding | None:
    """The holding of a meta tensor's storage; None of what is the script's own."""
    return getattr(_storage(tensor), _ATTRIBUTE, None)


def on_device(tensor: torch.Tensor) -> bool:
    """Whether a meta tensor stands for one on the device."""
    holding = getattr(_storage(tensor), _ATTRIBUTE, None)
    return holding is not None and holding.ledger is not None


def put_on_host(tensor: torch.Tensor) -> None:
    """A meta tensor stands for one on the host."""
    storage = _storage(tensor)
    if not hasattr(storage, _ATTRIBUTE):
        storage._fsdpdoctor_holding = HOST
