"""What a rank did until its first step had ended."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh

from fsdpdoctor.recorder.brackets import bracketing
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.patching import Patches, Wrap
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import StartSpec

_STAT, _UPTIME = Path("/proc/self/stat"), Path("/proc/uptime")
_START_TIME = 19  # of what follows the command's name in parentheses


def process_age_ns() -> int | None:
    """How long this process has lived; None where the system does not say."""
    try:
        fields = _STAT.read_text().rpartition(")")[2].split()
        alive = float(_UPTIME.read_text().split()[0])
        born = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return max(round((alive - born) * 1e9), 0)


class StartWatch:
    """Times `init_process_group`, `init_device_mesh` and `fully_shard` until the first
    step has ended. A call inside another is the inner one's alone.

    `fully_shard` is seen where it makes a parameter group, which shards. It must not be
    wrapped itself: torch keeps a module's state under the function that it decorates.
    """

    def __init__(self, recording: Recording) -> None:
        self._rec = recording
        self._patches = Patches()
        self._age_ns = process_age_ns()
        self._begun_ns = perf_counter_ns()
        self._spent: dict[str, int] = {"init": 0, "mesh": 0, "wrap": 0}
        self._inside: list[int] = []  # what calls inside an open one took
        self._first_init_ns: int | None = None
        self._forward_ns: int | None = None
        self._end_ns: int | None = None
        self._late = dist.is_available() and dist.is_initialized()

    def attach(self, names: internals.TorchSymbols) -> None:
        """See them."""
        for owner, name, what in (
            (dist, "init_process_group", "init"),
            (device_mesh, "init_device_mesh", "mesh"),
            (dist, "init_device_mesh", "mesh"),
        ):
            if hasattr(owner, name):
                self._patches.put_inside(owner, name, self._timed(what))
        if names.group_class is not None:
            self._patches.wrap(names.group_class, "__init__", self._timed("wrap"))

    def detach(self) -> None:
        """See nothing any more."""
        self._patches.undo()

    def forward_began(self) -> None:
        """A root's forward with gradients."""
        if self._forward_ns is None:
            self._forward_ns = perf_counter_ns()

    def step_ended(self, end_ns: int) -> None:
        """At a time of the host; later ones are not the first."""
        if self._end_ns is None:
            self._end_ns = end_ns
            self.detach()

    def spec(self) -> StartSpec | None:
        """None before the first step has ended, and where it began before us."""
        if self._end_ns is None or self._late or self._age_ns is None:
            return None
        process_ns = self._begun_ns - self._age_ns
        first_init = self._first_init_ns
        return StartSpec(
            process_unix_ns=process_ns + self._rec.unix_minus_clock_ns,
            total_ns=self._end_ns - process_ns,
            import_ns=(self._begun_ns if first_init is None else first_init)
            - process_ns,
            init_ns=self._spent["init"],
            mesh_ns=self._spent["mesh"],
            wrap_ns=self._spent["wrap"],
            first_step_ns=0
            if self._forward_ns is None
            else max(self._end_ns - self._forward_ns, 0),
        )

    def _timed(self, what: str) -> Wrap:
        def begins(*args: Any, **kwargs: Any) -> int:
            self._inside.append(0)
            now = perf_counter_ns()
            if what == "init" and self._first_init_ns is None:
                self._first_init_ns = now
            return now

        def ended(start_ns: int, error: BaseException | None) -> None:
            whole = perf_counter_ns() - start_ns
            self._spent[what] += whole - self._inside.pop()
            if self._inside:
                self._inside[-1] += whole

        return bracketing(self._rec.guard, begins, ended)
