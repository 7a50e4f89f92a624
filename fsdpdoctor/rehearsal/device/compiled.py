"""`torch.compile`: run eagerly, charged as if pointwise operations were fused."""

from __future__ import annotations

from typing import Any

from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.rehearsal.device.operators import Operator
from fsdpdoctor.rehearsal.device.virtual_device import Kernel, VirtualDevice


class CompiledRegions:
    """Which operations run in a compiled region."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self.used = False

    def take_over(self, patches: Patches) -> None:
        """Put ours in the place of `torch.compile`."""

    def fused(
        self, operator: Operator, kernel: Kernel, tensors: Any, results: Any
    ) -> Kernel | None:
        """What an operation's kernel costs in a fused one."""
        return kernel
