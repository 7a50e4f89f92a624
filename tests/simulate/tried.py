"""A kind of model trained, recorded, changed by a plan file, and recorded again.

Real FSDP2 on a modelled wire, in virtual time: on the host alone, where every wait is
the host's, or on a modelled device with streams. A change is made as `run --apply`
makes it, by the plan's own file; what no plan can set on a running script (ranks,
links, micro-batches) is the job's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import fsdpdoctor
from fsdpdoctor.analysis.rank_measures import measure_rank
from fsdpdoctor.changes.plan import ALL, Plan, save_plan
from fsdpdoctor.network import parse_network
from fsdpdoctor.plan_file import Settings, read_settings
from fsdpdoctor.quantities import US
from fsdpdoctor.recorder import session  # noqa: F401 - before time is virtual
from fsdpdoctor.recorder.changes.apply_plan import Applier
from fsdpdoctor.rehearsal.device.spec import load_spec
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice
from fsdpdoctor.rehearsal.device.virtual_session import on_device
from fsdpdoctor.rehearsal.modelled_group import World
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.plans.predict import Prediction, Replay, predict, replay
from fsdpdoctor.simulate.plans.settings import settings
from tests.networks import modelled_world
from tests.rig.fake import one_thread
from tests.rig.virtual import virtual_time
from tests.simulate.kinds import KINDS, Kind
from tests.simulate.networks import Place

WORLD = 8
STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a kind is trained on."""

    device: str
    wire: str
    faster: str
    place: Place
    contended: bool = True  # collectives take multiprocessors from compute


HOST = Ground(
    device="cpu",
    wire="30MB/s@200us",
    faster="90MB/s@100us",
    place=Place(),
)
STREAMS = Ground(
    device="cuda",
    wire="200MB/s@60us",
    faster="600MB/s@30us",
    place=Place(device="cuda", forward_ns=800 * US, backward_ns=1600 * US),
)
CONTENDED = STREAMS
STREAMS = replace(STREAMS, contended=False)
GROUNDS: Mapping[str, Ground] = {
    "blocking": HOST,
    "streams": STREAMS,
    "streams, contended": CONTENDED,
}


def plans(ground: Ground) -> dict[str, Plan]:
    """The changes that are tried. Without streams a list needs unshards that do not
    block.
    """
    more: dict[str, Any] = {"unshard_async_op": True} if ground is HOST else {}
    found = {
        "async": Plan(unshard_async_op=True),
        "lists, 1": Plan(forward_prefetch=1, backward_prefetch=1, **more),
        "lists, 2": Plan(forward_prefetch=2, backward_prefetch=2, **more),
        "forward lists": Plan(forward_prefetch=1, **more),
        "backward lists, 2": Plan(backward_prefetch=2, **more),
        "kept": Plan(reshard_after_forward={ALL: False}),
        "resharded": Plan(reshard_after_forward={ALL: True}),
        "to 2": Plan(reshard_after_forward={ALL: 2}),
        "to 4": Plan(reshard_after_forward={ALL: 4}),
        "merge 2": Plan(merge=2),
        "merge 3": Plan(merge=3),
        "merge 2, lists": Plan(merge=2, forward_prefetch=1, **more),
        "split root": Plan(split_root=True),
        "bfloat16": Plan(param_dtype="bfloat16", reduce_dtype="float32"),
        "2 replicas": Plan(replicate=2),
        "4 replicas": Plan(replicate=4),
        "64 ranks": Plan(world_size=64),
        "4 ranks": Plan(world_size=4),
        "other links": Plan(bandwidth=ground.faster),
        "2 micro-batches": Plan(micro_batches=2),
        "4, reduced once": Plan(micro_batches=4, accumulation="last"),
        "4, weights kept": Plan(micro_batches=4, accumulation="keep"),
        "wrap": Plan(wrap="SleepBlock"),
    }
    if ground is not HOST:
        found["own communicator"] = Plan(separate_reduce_scatter_group=True)
        found["2 buffers"] = Plan(max_input_buffers=2)
    return found


def train(kind: Kind, place: Place, micro_batches: int, sync_last: bool) -> None:
    """What the kind's script does."""
    model = kind.build(place)
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=1e-6
    )
    for step in range(STEPS):
        kind.each_step(model, step)
        for at in range(micro_batches):
            if sync_last:
                model.set_requires_gradient_sync(at == micro_batches - 1)
            model(kind.inputs(place.device)).backward()
        optimizer.step()
        optimizer.zero_grad()


@contextmanager
def machine(ground: Ground, wire: str, world: int, replicas: int) -> Iterator[None]:
    """The ranks, their wire and the device of a job."""
    network = parse_network(wire)
    if ground.device == "cpu":
        modelled = World(
            wire=network,
            size=world,
            shard_size=world // replicas,
            node_size=world,
            log=[],
        )
        with one_thread(), virtual_time(), modelled_world(modelled):
            yield
        return
    spec = load_spec("h100")
    device = VirtualDevice(spec if ground.contended else replace(spec, comm_sms=0))
    modelled = World(
        wire=network,
        size=world,
        shard_size=world // replicas,
        node_size=world,
        log=[],
        virtual=device.collective,
    )
    with modelled_world(modelled), on_device(device):
        yield


def recorded(
    kind: Kind,
    ground: Ground,
    plan: Plan | None = None,
    prediction: Prediction | None = None,
    known: RunConstraints | None = None,
) -> RankData:
    """One run of a kind, as it is or under a plan."""
    plan = plan or Plan()
    step = None if prediction is None else prediction.step
    world = plan.world_size or WORLD
    replicas = 1 if step is None else step.mesh.replicate
    count = plan.micro_batches or kind.micro_batches
    place = replace(ground.place, world_size=world)
    if step is None and kind is KINDS["replicated"]:
        replicas = 2
    with TemporaryDirectory() as folder:
        applied = None
        if prediction is not None:
            applied = _settings(plan, prediction, known, Path(folder))
        applier = nullcontext() if applied is None else _applying(applied)
        with (
            machine(ground, plan.bandwidth or ground.wire, world, replicas),
            fsdpdoctor.record(f"{folder}/runs", every=1),
            applier,
        ):
            train(kind, place, count, kind.sync_last)
        (run,) = [path.parent for path in Path(folder).rglob("run.json")]
        return open_run(run).sources[0].load()


OF_THE_JOB = ("world_size", "bandwidth", "micro_batches")


def _settings(
    plan: Plan, made: Prediction, known: RunConstraints | None, folder: Path
) -> Settings | None:
    """What is left of a plan for `run --apply`."""
    none: Any = dict.fromkeys(OF_THE_JOB)
    kept = replace(plan, **none)
    if not kept.changes:
        return None
    path = folder / "plan.json"
    save_plan(kept, path, settings(kept, made.step, known))
    return read_settings(path)


@contextmanager
def _applying(said: Settings) -> Iterator[None]:
    applier = Applier(said, lambda: None)
    applier.attach()
    try:
        yield
        applier.script_ended()
    finally:
        applier.detach()


def replayed(kind: Kind, ground: Ground) -> Replay:
    """As it is."""
    return replay(calibrate(recorded(kind, ground)))


@cache
def base(kind: str, ground: str) -> Replay:
    """A kind as it is, replayed."""
    return replayed(KINDS[kind], GROUNDS[ground])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A prediction, and what came of it."""

    prediction: Prediction
    step_ns: int  # the mean of the judged steps

    @property
    def off_ns(self) -> int:
        """How much longer than it was it was said to be."""
        return self.prediction.step_ns - self.step_ns

    @property
    def inside(self) -> bool:
        """Whether it came out within the stated error."""
        return abs(self.off_ns) <= self.prediction.error_ns


def tried(kind: str, ground: str, plan: Plan) -> Tried:
    """A plan predicted for a kind, then made. Raises UsageError, PlanError."""
    found = base(kind, ground)
    made, known = predict(found, plan), found.calibration.constraints
    data = recorded(KINDS[kind], GROUNDS[ground], plan, made, known)
    ranks = measure_rank(data)
    steps = ranks.steps.rows(ranks.judged)
    return Tried(prediction=made, step_ns=round(float(np.mean(steps.duration_ns))))
