"""The three ways in which an entry is told."""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from fsdpdoctor import recorder
from fsdpdoctor.network import parse_network
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.storage.run_folder import how_it_ended
from fsdpdoctor.recorder.storage.sampling import sampling_of
from fsdpdoctor.rehearsal.device.spec import load_spec
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice
from fsdpdoctor.rehearsal.device.virtual_session import on_device
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from fsdpdoctor.report import diagnose
from fsdpdoctor.report.value import Report
from fsdpdoctor.run import RankData, in_memory, open_run
from fsdpdoctor.schema import Counters, RunHeader
from fsdpdoctor.testing import TRACED, Drawing, draw
from tests.rig.changed import replace
from tests.rig.forked import Job as Forked
from tests.rig.forked import Nursery, nursery
from tests.zoo.job import Job, train


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A job whose rank 0 runs on a modelled GPU."""

    told: ClassVar[str] = "rehearsal"
    job: Job
    raises: str | None = None  # the error that ends it, by its class

    def report(self, folder: Path) -> Report:
        """Record it, and diagnose the record."""
        raised = record(self.job, folder)
        seen = None if raised is None else type(raised).__name__
        if seen != self.raises:
            raise AssertionError(f"ended with {seen}") from raised
        return diagnose(open_run(folder))


def rehearsed(*, raises: str | None = None, **changes: Any) -> Rehearsed:
    """The usual job with some changes."""
    return Rehearsed(job=Job(**changes), raises=raises)


def but(situation: Rehearsed, *, raises: str | None = None, **cure: Any) -> Rehearsed:
    """The same job with its cure."""
    return Rehearsed(job=replace(situation.job, **cure), raises=raises)


def record(job: Job, folder: Path) -> Exception | None:
    """Leave a recorded run; what ended the job, if an error did."""
    spec = load_spec("h100")
    if job.memory_gib is not None:
        spec = replace(spec, memory_gib=job.memory_gib + spec.context_gib)
    wire = parse_network(job.wire)
    asked = Rehearsal(wire=wire, world_size=job.world, node_size=job.node)
    torch.manual_seed(0)
    with ExitStack() as stack:
        stack.enter_context(_environment(job.environment))
        device = VirtualDevice(spec, host_scale=job.host)
        stack.enter_context(rehearsing(asked, virtual=device.collective))
        stack.enter_context(on_device(device, job.node))
        # What a job is warned of is its own affair.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        return _recorded(job, folder)


def _recorded(job: Job, folder: Path) -> Exception | None:
    every = sampling_of(None, 1)
    plan = RecordingConfig(
        folder=folder, run_id="zoo", sampling=every, source="rehearsal"
    )
    recorder.start(plan)
    error: Exception | None = None
    try:
        train(job)
    except Exception as raised:  # it is what the report is about
        error = raised
    finally:
        recorder.stop(how_it_ended(error), error)
    return error


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Timelines of some ranks, as `fsdpdoctor.testing.draw` has them."""

    told: ClassVar[str] = "drawn"
    pictures: tuple[str, ...]  # a rank each
    around: Drawing = field(default_factory=Drawing)
    # What differs from rank to rank, as fields of `Drawing`.
    each: tuple[Mapping[str, Any], ...] = ()
    rising: Mapping[str, int] = field(default_factory=dict)  # counters, by step

    def report(self, folder: Path) -> Report:
        """Draw it, and diagnose it."""
        world = max(self.around.world_size, len(self.pictures))
        ranks = [
            self._risen(
                draw(
                    picture,
                    replace(
                        self.around,
                        rank=rank,
                        world_size=world,
                        **(self.each[rank] if self.each else {}),
                    ),
                )
            )
            for rank, picture in enumerate(self.pictures)
        ]
        header = RunHeader(
            run_id="zoo",
            source="kineto" if self.around.evidence == TRACED else "recorded",
            world_size=world,
            device=self.around.device,
            torch="2.13.0",
        )
        return diagnose(in_memory(header, ranks))

    def _risen(self, data: RankData) -> RankData:
        """With counters that rise from step to step."""
        known = len(data.names)
        steps = tuple(
            replace(
                step,
                counters=Counters.build(
                    len(self.rising),
                    name=[known + at for at in range(len(self.rising))],
                    time_ns=step.end_ns,
                    value=[each * number for each in self.rising.values()],
                ),
            )
            if self.rising
            else step
            for number, step in enumerate(data.steps)
        )
        return replace(data, steps=steps, names=(*data.names, *self.rising))


def drawn(
    *pictures: str,
    each: Iterable[Mapping[str, Any]] = (),
    rising: Mapping[str, int] | None = None,
    **around: Any,
) -> Drawn:
    """One picture for each rank. `around` are fields of `Drawing`."""
    return Drawn(
        pictures=pictures,
        around=Drawing(**around),
        each=tuple(each),
        rising=rising or {},
    )


SCRIPT = Path(__file__).parent / "scripts" / "ranks.py"


@cache
def _nursery() -> Nursery:
    """One process that has imported torch, for all jobs of several ranks."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(nursery())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A script as several processes over gloo."""

    told: ClassVar[str] = "ranks"
    way: str
    count: int = 2

    def report(self, folder: Path) -> Report:
        """Record it, and diagnose the record, however the ranks ended."""
        job = Forked(
            script=str(SCRIPT),
            argv=(self.way,),
            ranks=self.count,
            folder=str(folder / "out"),
            run=str(folder / "run"),
        )
        _nursery().run(job)
        return diagnose(open_run(folder / "run"))
