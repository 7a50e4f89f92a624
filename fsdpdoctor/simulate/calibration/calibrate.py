"""From a measured run to a `Step`: what its compute, calls and collectives cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fsdpdoctor.analysis.rank_measures import RankMeasures, measure_rank
from fsdpdoctor.analysis.timeline import of_kinds, timeline_of
from fsdpdoctor.errors import InputError
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COLLECTIVE_KINDS,
    UNKNOWN,
    Evidence,
    Kind,
    Phase,
    UnitSpec,
    median,
)
from fsdpdoctor.simulate.calibration.comm_cost import Fit, fit_comm_cost
from fsdpdoctor.simulate.calibration.host_costs import host_costs, mean
from fsdpdoctor.simulate.calibration.measured_steps import MeasuredSteps
from fsdpdoctor.simulate.calibration.module_tree import module_tree
from fsdpdoctor.simulate.calibration.partition import (
    AFTER,
    BEFORE,
    BETWEEN,
    LOSS,
    Partition,
)
from fsdpdoctor.simulate.calibration.trace_settings import as_recorded, is_trace
from fsdpdoctor.simulate.calibration.unit_settings import unit_of
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.schedule import bare_program
from fsdpdoctor.simulate.engine.step import (
    CommCost,
    CommCosts,
    Mesh,
    MicroBatch,
    Step,
)

NEEDS = (Evidence.UNITS, Evidence.STEPS, Evidence.STALLS, Evidence.COLLECTIVES)
"""What a source must show to be replayed. Kernels show stalls, too: by their gaps."""

MAX_STEPS = 32
"""So many steps are looked at, evenly spread over the judged ones: the time a report
takes does not grow with the run, and a mean of 16 is steady enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A step with a run's own costs, and how well they are known."""

    step: Step
    constraints: RunConstraints
    rank: int
    steps: int  # that figures were taken from: the middle half
    measured_ns: int  # their mean step
    spread: float  # median distance of all judged steps from it, as a share
    fits: Mapping[str, Fit]  # by kind of collective
    unlike: float  # how far steps of another sort are from these, as a share
    ran_at_times: tuple[str, ...]  # units that some steps ran, and others did not
    exposed_ns: Mapping[str, int]  # measured, by kind


def calibrate(data: RankData, measures: RankMeasures | None = None) -> Calibration:
    """Fit a `Step` to one rank's judged steps. Raises InputError where it cannot."""
    check_evidence(data.evidence)
    measures = measures or measure_rank(data)
    judged = measures.judged_steps
    evenly = np.linspace(0, len(judged) - 1, min(len(judged), MAX_STEPS)).round()
    numbers = set(judged[evenly.astype(int)].tolist())
    inferred = is_trace(data)
    if inferred:
        data = as_recorded(data, numbers)
    lines = [timeline_of(data, r) for r in data.steps if r.step in numbers]
    if not lines:
        raise InputError("no whole step was recorded: there is nothing to replay")
    found = _Calibrator(data, lines).calibration()
    known = replace(found.constraints, inferred=inferred)
    if inferred:  # by the bytes of collectives
        shown = all(unit.gather_dtype for unit in data.header.units)
        known = replace(known, parameters=None, dtypes_shown=shown)
    return replace(found, constraints=known)


def check_evidence(evidence: Collection[Evidence]) -> None:
    """Raise InputError where a source does not show what a replay needs."""
    shown = {*evidence}
    if Evidence.KERNELS in shown:
        shown.add(Evidence.STALLS)
    if missing := [e for e in NEEDS if e not in shown]:
        raise InputError(
            f"this run does not show {', '.join(missing)}, which a replay needs: "
            "record it with `fsdpdoctor run`"
        )


class _Calibrator(MeasuredSteps):
    """The step as a whole: mesh, micro-batches, costs outside the modules."""

    def calibration(self) -> Calibration:
        fits = self.fits()
        header = self.data.header
        middle = mean(line.duration_ns for line in self.lines)
        model = header.model
        known = header.device_bytes != UNKNOWN
        return Calibration(
            step=self.step(fits),
            constraints=RunConstraints(
                tied=model.tied if model else (),
                blocks=model.blocks if model else (),
                local_world_size=header.local_world_size,
                device_bytes=header.device_bytes if known else None,
                idle=self.idle_units(),
                parameters=self.parameters(),
            ),
            rank=header.rank,
            steps=len(self.lines),
            measured_ns=middle,
            spread=median(np.abs(self.step_ns - middle)) / max(middle, 1),
            fits=fits,
            unlike=self.unlike_ns(middle) / max(middle, 1),
            ran_at_times=self.ran_at_times,
            exposed_ns={
                kind.key: mean(
                    x.stalls.duration_ns[x.stalls.kind == kind].sum()
                    for x in self.lines
                )
                for kind in COLLECTIVE_KINDS
            },
        )

    def idle_units(self) -> tuple[UnitSpec, ...]:
        """Units of this root that no step ran: they stay as they are sharded."""
        here = {(self.spec(u).tree, self.spec(u).model) for u in self.units}
        return tuple(
            spec
            for at, spec in enumerate(self.data.header.units)
            if at not in self.number and (spec.tree, spec.model) in here
        )

    def parameters(self) -> int | None:
        """Elements of all units of this root; None of a trace, which names none."""
        specs = (*map(self.spec, self.units), *self.idle_units())
        known = all(spec.numel != UNKNOWN for spec in specs)
        return sum(spec.numel for spec in specs) if known else None

    def step(self, fits: Mapping[str, Fit]) -> Step:
        mesh, specs = self.mesh(), [self.spec(u) for u in self.units]
        root, segments = module_tree(self)
        outside, host_outside = _outside(self.device), _outside(self.host)
        micro_batches = self.micro_batches()
        input_ns = self.input_ns(outside, len(micro_batches))
        apart = any(s.separate_reduce_scatter_group for s in specs)
        buffers = (s.reduce_scatter_max_input_buffers or 1 for s in specs)
        step = Step(
            units=tuple(unit_of(self, u, mesh, fits) for u in self.units),
            segments=segments,
            root=root,
            mesh=mesh,
            wires=replace(_wires(fits, mesh), post_forward_ranks=_small_ranks(specs)),
            host=host_costs(self.lines),
            blocking=self.blocking,
            micro_batches=micro_batches,
            separate_reduce_scatter_group=apart,
            max_input_buffers=max(buffers, default=1),
            input_ns=input_ns,
            loss_ns=_share(outside[LOSS], len(micro_batches)),
            host_loss_ns=_share(host_outside[LOSS], len(micro_batches)),
            sync_after_forward=self.syncs("loss"),
            sync_at_end=self.syncs("end"),
            before_ns=max(outside[BEFORE] - input_ns * self.blocking, 0),
            after_ns=outside[AFTER],
            host_after_ns=host_outside[AFTER],
        )
        return replace(step, resident_bytes=self.resident_bytes(step))

    def fits(self) -> dict[str, Fit]:
        result: dict[str, Fit] = {}
        rows = self.collectives
        shard = self.spec(self.units[0]).shard_group if self.units else UNKNOWN
        kinds = {
            "all_gather": (rows.kind == Kind.ALL_GATHER),
            "reduce_scatter": (rows.kind == Kind.REDUCE_SCATTER),
            "all_reduce": (rows.kind == Kind.ALL_REDUCE),
        }
        if shard != UNKNOWN:
            small = kinds["all_gather"] & (rows.group != shard)
            kinds["post_forward"] = small
            kinds["all_gather"] = kinds["all_gather"] & ~small
        for name, which in kinds.items():
            if which.any():
                mine, taken = rows.rows(which), self.durations[which]
                latency = min((f.wire.latency_ns for f in result.values()), default=0)
                result[name] = fit_comm_cost(mine, taken, latency)
        return result

    def mesh(self) -> Mesh:
        header = self.data.header
        spec = self.spec(self.units[0])
        groups = header.groups
        shard = header.world_size
        if 0 <= spec.shard_group < len(groups):
            shard = groups[spec.shard_group].size
        replicate = 1
        if 0 <= spec.replicate_group < len(groups):
            replicate = groups[spec.replicate_group].size
        return Mesh(shard=max(shard, 1), replicate=replicate)

    def micro_batches(self) -> tuple[MicroBatch, ...]:
        """The flags of each, from what was reduced and resharded in it."""
        spans, result = self.lines[-1].spans, []
        count = max(self.lines[-1].record.micro_batches, 1)
        reduces = any(self.collectives.kind == Kind.ALL_REDUCE)
        for mb in range(count):
            mine = spans.rows(spans.micro_batch == mb)
            sync = len(of_kinds(mine, Kind.REDUCE)) > 0
            resharded = of_kinds(mine, Kind.RESHARD)
            reshards = bool((resharded.phase == Phase.BACKWARD).any())
            result.append(
                MicroBatch(
                    sync=sync,
                    all_reduce=not reduces or len(of_kinds(mine, Kind.ALL_REDUCE)) > 0,
                    reshard_after_backward=reshards,
                    # Not recorded. Without it nothing would be finalised, and
                    # whoever keeps parameters unsharded leaves it out as well.
                    is_last_backward=reshards or mb == count - 1,
                )
            )
        return tuple(result)

    def resident_bytes(self, step: Step) -> int:
        """What the allocator held at its peak beside FSDP2's own; 0: not known.

        It is taken to stay as it is: activations are in it, wherever the peak was.
        """
        peaks = [x.record.memory.peak_bytes for x in self.lines]
        if Evidence.ALLOCATOR not in self.data.evidence or not all(map(len, peaks)):
            return 0
        measured = mean(int(peak.max()) for peak in peaks)
        return max(measured - bare_program(step).peak_bytes, 0)

    def input_ns(self, outside: Mapping[str, int], count: int) -> int:
        """How long the host waits for data, before each micro-batch."""
        if self.blocking:
            return _share(outside[BETWEEN], count - 1)
        waits = (of_kinds(x.spans, Kind.INPUT).duration_ns.sum() for x in self.lines)
        return _share(mean(waits), count)

    def syncs(self, where: str) -> bool:
        """Whether the host waits for the device after forward, or at the end."""
        if self.blocking:
            return False
        line = self.lines[-1]
        syncs = of_kinds(line.spans, Kind.SYNC)
        hooks = of_kinds(line.spans, Kind.HOOK)
        hooks = hooks.rows(hooks.micro_batch == hooks.micro_batch.max(initial=0))
        forward = hooks.rows(hooks.phase == Phase.FORWARD)
        backward = hooks.rows(hooks.phase == Phase.BACKWARD)
        if not len(syncs) or not len(forward) or not len(backward):
            return False
        if where == "end":
            return bool((syncs.start_ns >= backward.end_ns.max()).any())
        between = (syncs.start_ns >= forward.end_ns.max()) & (
            syncs.end_ns <= backward.start_ns.min()
        )
        return bool(between.any())


def _outside(parts: Sequence[Partition]) -> dict[str, int]:
    names = (BEFORE, BETWEEN, LOSS, AFTER)
    if not parts:
        return dict.fromkeys(names, 0)
    return {name: mean(part.outside.get(name, 0) for part in parts) for name in names}


def _share(total: int, count: int) -> int:
    return round(total / count) if count > 0 else 0


def _small_ranks(specs: Sequence[UnitSpec]) -> int | None:
    """Of the groups of an integer reshard; the most usual where units differ."""
    sizes = [size for spec in specs if type(size := spec.reshard_after_forward) is int]
    return max(set(sizes), key=sizes.count) if sizes else None


def _wires(fits: Mapping[str, Fit], mesh: Mesh) -> CommCosts:
    nothing = CommCost(latency_ns=0, bytes_per_second=1e18)
    gather = fits["all_gather"].wire if "all_gather" in fits else nothing
    scatter = fits["reduce_scatter"].wire if "reduce_scatter" in fits else nothing
    reduce = fits["all_reduce"].wire if "all_reduce" in fits else None
    if reduce is None and mesh.replicate > 1:
        reduce = nothing
    small = fits["post_forward"].wire if "post_forward" in fits else None
    return CommCosts(
        all_gather=gather, reduce_scatter=scatter, all_reduce=reduce, post_forward=small
    )
