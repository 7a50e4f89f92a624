"""What the host pays for each call, in virtual nanoseconds.

Eager PyTorch takes some 5 us to dispatch an operation that autograd records, 2 to 4 us
in backward, where C++ calls it, and 1 to 2 us for a view; `nn.Module.__call__` with
hooks adds about as much again. Measured so, and published so, on server processors of
2021 to 2024 (PyTorch's own overhead benchmarks; "PyTorch 2", ASPLOS 2024, gives 5 to
10 us between launches). FSDP2's hooks walk over a unit's parameters in Python: about
0.1 ms for a transformer block's pre-forward, seen in profiles of its authors.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """All of them, times `scale`: 2 is a host that is half as fast."""

    scale: float = 1.0

    def _ns(self, us: float) -> int:
        return round(us * 1000 * self.scale)

    @property
    def op_ns(self) -> int:
        return self._ns(6.0)

    @property
    def backward_op_ns(self) -> int:
        return self._ns(4.0)

    @property
    def view_ns(self) -> int:
        return self._ns(1.5)

    @property
    def hook_ns(self) -> int:
        return self._ns(25.0)

    @property
    def param_ns(self) -> int:
        """Of each parameter that a hook of FSDP2 walks over."""
        return self._ns(3.0)

    @property
    def compiled_op_ns(self) -> int:
        return self._ns(1.0)

    @property
    def collective_ns(self) -> int:
        return self._ns(30.0)

    @property
    def sync_ns(self) -> int:
        return self._ns(5.0)

    def driver_ns(self, size: int) -> int:
        """Of cudaMalloc and cudaFree: some 0.1 ms, and 1 ms for each GiB.

        Freeing 23.7 GiB took 23 ms on a server's GPU (vLLM's log of its sleep mode).
        """
        return self._ns(100.0 + 1000.0 * size / (1 << 30))
