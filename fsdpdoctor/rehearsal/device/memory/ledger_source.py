"""The device's memory, as the recorder counts it in its memory step."""

from __future__ import annotations

from typing import Any

import torch

from fsdpdoctor.recorder.memory.live_storages import LiveStorages
from fsdpdoctor.rehearsal.device.memory.storages import Holding, Ledger, holding_of


class LedgerSource:
    """Blocks of the modelled allocator: what `torch.cuda.memory_allocated` adds up."""

    slows = False
    flops = None

    def __init__(self, ledger: Ledger, live: LiveStorages) -> None:
        self._ledger = ledger
        self._live = live

    def refusal(self, *, evaluated: bool) -> str | None:
        """Nothing is put into the script's way."""
        return None

    def begin(self) -> None:
        """Tell from here on."""
        self._ledger.changed = self._changed

    def end(self) -> bool:
        """Tell no more."""
        self._ledger.changed = None
        return True

    def look(self, tensor: torch.Tensor) -> int | None:
        """See a plain tensor's storage, and give its key; None: it is elsewhere."""
        holding = holding_of(tensor)
        if holding is None or holding.ledger is not self._ledger:
            return None
        self._changed(holding)
        return id(holding)

    def resized(self, storage: Any) -> None:
        """The ledger has told it."""

    def settle(self) -> None:
        """It was told at once what has gone."""

    def _changed(self, holding: Holding) -> None:
        # What is gone has no block, and its id may be another's.
        block = holding.block
        self._live.saw(id(holding), 0 if block is None else block.size)
