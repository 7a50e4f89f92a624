"""A modelled collective under way: what it is, when it ends, how one waits for it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fsdpdoctor.quantities import MS, SECOND
from fsdpdoctor.schema import Kind

_cuda: Any = torch.cuda  # its stubs type half of it
_base: Any = torch._C.TensorBase

SPIN_NS = 150_000
"""The end of a sleep that is spun: `time.sleep` wakes up 50 to 100 us late."""


def sleep_until(deadline_ns: int) -> None:
    """Return at a time of `time.perf_counter_ns`, not before, and at once after it."""
    while (left_ns := deadline_ns - time.perf_counter_ns()) > 0:
        if left_ns > SPIN_NS:
            time.sleep((left_ns - SPIN_NS) / SECOND)


@dataclass(slots=True, kw_only=True)
class Transfer:
    """One collective on the wire: what a test holds a recorder's figures against.

    Times are `perf_counter_ns`. On CUDA `start_ns`, `end_ns` and `waits` are
    what the host planned; `device` brackets what the device did.
    """

    kind: Kind
    name: str  # what the process group was asked for: "allgather", "barrier"
    group: str
    seq: int  # within the group, from 0
    payload_bytes: int
    issue_ns: int
    start_ns: int
    end_ns: int
    blocking: bool  # the call itself waits: no work handle goes to the caller
    waits: list[tuple[int, int]] = field(default_factory=list)  # host, start and end
    device: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    @property
    def exposed_ns(self) -> int:
        """How long the host stood still for it."""
        return sum(end - start for start, end in self.waits)


class WireWork(dist.Work):
    """A collective under way. On CPU, `fsdpdoctor_start_ns` and `fsdpdoctor_end_ns`
    are when it has the communicator and when it is done; a device knows that itself.
    """

    def __init__(
        self,
        transfer: Transfer,
        result: list[torch.Tensor],
        done: torch.cuda.Event | None,
    ) -> None:
        super().__init__()
        self._transfer = transfer
        self._result = result  # also keeps device memory until somebody waited
        self._done = done
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        if done is None:
            self.fsdpdoctor_start_ns = transfer.start_ns
            self.fsdpdoctor_end_ns = transfer.end_ns

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait as the backend of the device would: the host on CPU, else the stream."""
        transfer = self._transfer
        first = not transfer.waits
        start_ns = time.perf_counter_ns()
        if self._done is not None:
            _cuda.current_stream().wait_event(self._done)
        else:
            sleep_until(transfer.end_ns)
        # A blocking call stands still from its start on, not from here.
        start_ns = transfer.issue_ns if transfer.blocking and first else start_ns
        transfer.waits.append((start_ns, time.perf_counter_ns()))
        return True

    def synchronize(self) -> None:
        """What `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is done."""
        if self._done is not None:
            return bool(self._done.query())  # type: ignore[no-untyped-call]
        return time.perf_counter_ns() >= self._transfer.end_ns

    def is_success(self) -> bool:
        """A modelled collective never fails."""
        return True

    def result(self) -> list[torch.Tensor]:
        """The tensors that the collective wrote."""
        return self._result

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that completes when the collective does (DDP waits on it)."""
        if self._future is None:
            # Of a device that is modelled, C++ knows nothing.
            found = {t.device for t in self._result if _known_as_cuda(t)}
            devices: list[int | str | torch.device] = sorted(found, key=str)
            self._future = torch.futures.Future(devices=devices)
            if self._done is not None:
                _cuda.current_stream().wait_event(self._done)
                self._future.set_result(self._result)
            else:
                threading.Thread(target=self._complete).start()  # Python waits for it
        return self._future

    def _complete(self) -> None:
        assert self._future is not None
        sleep_until(self._transfer.end_ns)
        self._future.set_result(self._result)


def _known_as_cuda(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return bool(_base.is_cuda.__get__(tensor))


_cycles: dict[torch.device, float] = {}


def cycles_per_ns(device: torch.device) -> float:
    """The rate of the counter that the spinning kernel reads, measured once.

    The clock of a device moves with its load and temperature, and with it the
    length of a spin, by a few percent: `Transfer.device` has what it was.
    """
    if device not in _cycles:
        count = 20_000_000  # about 10 ms
        events = [_cuda.Event(enable_timing=True) for _ in range(2)]
        _cuda._sleep(count)  # wakes the device up
        events[0].record()
        _cuda._sleep(count)
        events[1].record()
        events[1].synchronize()
        _cycles[device] = count / (events[0].elapsed_time(events[1]) * MS)
    return _cycles[device]
