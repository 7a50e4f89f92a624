"""What a rank, and the run, say of themselves."""

from __future__ import annotations

import os
import platform
import socket
import time
from typing import Any

import torch
import torch.distributed as dist

from fsdpdoctor import redact
from fsdpdoctor.rank_end import RankEnd
from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.process_groups import Groups
from fsdpdoctor.recorder.fsdp2.signals import evidence_of
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.host import collective_operators
from fsdpdoctor.recorder.host.dynamo_counters import compile_counts
from fsdpdoctor.recorder.host.model_spec import ModelWatch
from fsdpdoctor.recorder.host.replica_state import ReplicaWatch
from fsdpdoctor.recorder.host.start_watch import StartWatch
from fsdpdoctor.recorder.memory.memory_step import MemoryWatch
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.recorder.storage.run_folder import number
from fsdpdoctor.recorder.storage.sampling import AroundProfiler, EveryStep
from fsdpdoctor.recorder.storage.settings_log import TunedSampling
from fsdpdoctor.run_writer import write_run_header
from fsdpdoctor.schema import UNKNOWN, Evidence, RankHeader, RunHeader
from fsdpdoctor.version import __version__

_ALWAYS = (
    Evidence.CONFIG,
    Evidence.STEPS,
    Evidence.MICRO_BATCHES,
    Evidence.SYNC_CALLS,
    Evidence.GC,
    Evidence.INPUT,
    Evidence.OPTIMIZER,
    Evidence.OPTIMIZER_CONFIG,
    Evidence.CHECKPOINT,
    Evidence.STACKS,
)
_WITH_UNITS = (
    Evidence.UNITS,
    Evidence.PREFETCH,
    Evidence.STALLS,
    Evidence.COLLECTIVES,
    Evidence.ISSUE_TIMES,
    Evidence.HOST,
    Evidence.WINDOWS,
)


class Headers:
    """Describes the run as it is known now."""

    def __init__(
        self,
        plan: RecordingConfig,
        recording: Recording,
        units: Units,
        groups: Groups,
        model: ModelWatch,
        replicas: ReplicaWatch,
        memory: MemoryWatch,
        start: StartWatch,
        names: internals.TorchSymbols,
    ) -> None:
        self._plan = plan
        self._rec = recording
        self._units = units
        self._groups = groups
        self._model = model
        self._replicas = replicas
        self._memory = memory
        self._start = start
        self._names = names
        self._rank, self._world = place()
        self._local_rank = number("LOCAL_RANK", UNKNOWN)
        self._local_world = number("LOCAL_WORLD_SIZE", UNKNOWN)
        self._started_unix_ns = time.time_ns()
        self._wrote_run = False

    def of_rank(
        self,
        ended: str,
        warnings: tuple[str, ...],
        end: RankEnd | None = None,
        before: RankHeader | None = None,
    ) -> RankHeader:
        """What this rank says of itself; of an unchanged model what it said `before`,
        which takes a tenth of the time.
        """
        cuda = self._rec.clock.of_device
        return RankHeader(
            rank=self._rank,
            world_size=self._world,
            run_id=self._plan.run_id,
            local_rank=self._local_rank,
            local_world_size=self._local_world,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=self._device,
            device_name=torch.cuda.get_device_name() if cuda else None,
            device_bytes=_device_bytes() if cuda else UNKNOWN,
            clock=self._rec.clock.name,
            unix_minus_clock_ns=self._rec.unix_minus_clock_ns,
            evidence=self._evidence(),
            units=self._model.units() if before is None else before.units,
            groups=self._groups.specs,
            model=self._model.spec() if before is None else before.model,
            replicas=self._replicas.specs(),
            start=self._start.spec(),
            memory=self._memory.spec,
            settings=() if (log := self._plan.settings) is None else log.specs(),
            environment=redact.environment(os.environ),
            ended=ended,
            end=end,
            warnings=tuple(
                redact.text(said)
                for said in (
                    *warnings,
                    *self._model.warnings,
                    *self._replicas.warnings,
                    *self._memory.warnings,
                    *self._rec.clock.warnings,
                )
            ),
        )

    def write_run(self) -> None:
        """Write `run.json`, or what is new in it, unless another rank was first."""
        folder, sampling = self._plan.folder, self._plan.sampling
        if not self._wrote_run and (folder / "run.json").exists():
            return
        self._wrote_run = True
        header = RunHeader(
            run_id=self._plan.run_id,
            source=self._plan.source,
            world_size=self._world,
            device=self._device,
            command=self._plan.command,
            started_unix_ns=self._started_unix_ns,
            fsdpdoctor=__version__,
            torch=str(torch.__version__),
            python=platform.python_version(),
            nccl=_nccl_version() if self._rec.clock.of_device else None,
            every=sampling.every
            if isinstance(sampling, EveryStep | AroundProfiler | TunedSampling)
            else 1,
            available=self._names.available(),
            notes=self._plan.notes,
        )
        write_run_header(folder, header)

    @property
    def _device(self) -> str:
        return "cuda" if self._rec.clock.of_device else "cpu"

    def _evidence(self) -> tuple[Evidence, ...]:
        found = [*_ALWAYS, *(_WITH_UNITS if self._units.all else ())]
        if self._world > 1:
            found.append(Evidence.RANKS)
            if self._replicas.count:
                found.append(Evidence.REPLICAS)
        if collective_operators.supported():
            found.append(Evidence.OTHER_COLLECTIVES)
        if self._rec.clock.of_device:
            found.append(Evidence.ALLOCATOR)
        if compile_counts() is not None:
            found.append(Evidence.COMPILE)
        without = evidence_of(self._names.lacks)
        return tuple(kind for kind in found if kind not in without)


def place() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return number("RANK", 0), number("WORLD_SIZE", 1)


def _device_bytes() -> int:
    return int(
        torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    )


def _nccl_version() -> str | None:
    cuda: Any = torch.cuda  # parts of it have no types
    try:
        return ".".join(str(part) for part in cuda.nccl.version())
    except (RuntimeError, AttributeError) as error:
        let_through(error)
        return None  # built without it
