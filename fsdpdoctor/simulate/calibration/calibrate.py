"""From a measured run to a `Step`: what its compute, calls and collectives cost.

[Note: Middle steps]
Medians of parts do not add up to the median of the whole where noise is skewed; means
do, but one odd step bends them. So figures are means over the middle half of the
steps, by duration: what an odd step did is left out, and the parts add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fsdpdoctor.analysis.rank_measures import RankMeasures, measure_rank
from fsdpdoctor.analysis.timeline import Collectives, Timeline, of_kinds, timeline_of
from fsdpdoctor.errors import InputError
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COLLECTIVE_KINDS,
    ITEMSIZE,
    NO_TIME,
    UNKNOWN,
    Evidence,
    Flag,
    Kind,
    Phase,
    Spans,
    UnitSpec,
)
from fsdpdoctor.simulate.calibration.comm_cost import Fit, fit_comm_cost, own_durations
from fsdpdoctor.simulate.calibration.host_costs import host_costs, mean
from fsdpdoctor.simulate.calibration.partition import (
    AFTER,
    BEFORE,
    BETWEEN,
    LOSS,
    VIRTUAL_ROOT,
    ModuleGap,
    Partition,
    Shape,
    device_partition,
    host_partition,
    shape_of,
)
from fsdpdoctor.simulate.calibration.trace_settings import as_recorded, is_trace
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.schedule import bare_program
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    CommCost,
    CommCosts,
    Mesh,
    MicroBatch,
    Node,
    Param,
    Segment,
    Step,
    Unit,
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
    found = _Calibrator(data, measures, lines).calibration()
    return replace(found, constraints=replace(found.constraints, inferred=inferred))


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


class _Calibrator:
    """One rank's steps, and what has been worked out of them so far."""

    def __init__(
        self, data: RankData, measures: RankMeasures, lines: Sequence[Timeline]
    ) -> None:
        self.data, self.measures = data, measures
        alike = _alike(lines)
        self.step_ns = np.array([line.duration_ns for line in alike])
        self.lines = _middle(alike)
        self.shape: Shape = shape_of(self.lines[-1])
        self.blocking = data.header.clock == "host"
        order = [u for u in self.shape.walk(self.shape.root) if u != VIRTUAL_ROOT]
        self.units = [m for u in order for m in self.shape.states[u]]
        self.number = {old: new for new, old in enumerate(self.units)}
        self.collectives = Collectives.concat([x.collectives for x in self.lines])
        self.durations = own_durations(self.collectives)
        self.device = [device_partition(x, self.shape) for x in self.lines]
        self.host = (
            [] if self.blocking else [host_partition(x, self.shape) for x in self.lines]
        )
        self.segments: list[Segment] = []
        self.copies: dict[Kind, Spans] = {}  # of all lines

    def spec(self, unit: int) -> UnitSpec:
        return self.data.header.units[unit]

    def calibration(self) -> Calibration:
        fits = self.fits()
        mesh = self.mesh()
        forward, host_forward = (
            self.place_times(self.device),
            self.place_times(self.host),
        )
        root = self.node(self.shape.root, forward, host_forward)
        outside = _outside(self.device)
        host_outside = _outside(self.host)
        micro_batches = self.micro_batches()
        input_ns = self.input_ns(outside, len(micro_batches))
        header = self.data.header
        specs = [self.spec(u) for u in self.units]
        step = Step(
            units=tuple(self.unit(u, mesh, fits) for u in self.units),
            segments=tuple(self.segments),
            root=root,
            mesh=mesh,
            wires=_wires(fits, mesh),
            host=host_costs(self.lines),
            blocking=self.blocking,
            micro_batches=micro_batches,
            separate_reduce_scatter_group=any(
                s.separate_reduce_scatter_group for s in specs
            ),
            max_input_buffers=max(
                (s.reduce_scatter_max_input_buffers or 1 for s in specs), default=1
            ),
            input_ns=input_ns,
            loss_ns=_share(outside[LOSS], len(micro_batches)),
            host_loss_ns=_share(host_outside[LOSS], len(micro_batches)),
            sync_after_forward=self.syncs("loss"),
            sync_at_end=self.syncs("end"),
            before_ns=max(outside[BEFORE] - input_ns * self.blocking, 0),
            after_ns=outside[AFTER],
            host_after_ns=host_outside[AFTER],
        )
        step = replace(step, resident_bytes=self.resident_bytes(step))
        middle = mean(line.duration_ns for line in self.lines)
        model = header.model
        return Calibration(
            step=step,
            constraints=RunConstraints(
                tied=model.tied if model else (),
                blocks=model.blocks if model else (),
                local_world_size=header.local_world_size,
                device_bytes=None
                if header.device_bytes == UNKNOWN
                else header.device_bytes,
            ),
            rank=header.rank,
            steps=len(self.lines),
            measured_ns=middle,
            spread=float(np.median(np.abs(self.step_ns - middle)) / max(middle, 1)),
            fits=fits,
            exposed_ns={
                kind.key: mean(
                    x.stalls.duration_ns[x.stalls.kind == kind].sum()
                    for x in self.lines
                )
                for kind in COLLECTIVE_KINDS
            },
        )

    # -- the model

    def place_times(self, parts: Sequence[Partition]) -> dict[ModuleGap, int]:
        """What each place takes: means over steps and micro-batches."""
        if not parts:
            return {}
        count = len(next(iter(parts[0].inside.values()), [0])) * len(parts)
        totals: dict[ModuleGap, int] = defaultdict(int)
        for part in parts:
            for place, times in part.inside.items():
                totals[place] += sum(times)
        return {place: round(total / count) for place, total in totals.items()}

    def node(
        self, unit: int, device: Mapping[ModuleGap, int], host: Mapping[ModuleGap, int]
    ) -> Node:
        """A module, with the segments that some time was seen in."""
        children = self.shape.children.get(unit, ())
        items: list[int | Node] = []
        for gap in range(len(children) + 1):
            times = {
                what: device.get(ModuleGap(unit, gap, what), 0)
                for what in ("forward", "backward", "recompute")
            }
            launch = {
                what: host.get(ModuleGap(unit, gap, what), 0)
                for what in ("forward", "backward")
            }
            if any(times.values()) or any(launch.values()) or not children:
                items.append(len(self.segments))
                self.segments.append(
                    Segment(
                        forward_ns=times["forward"],
                        backward_ns=times["backward"],
                        recompute_ns=times["recompute"],
                        host_forward_ns=launch["forward"],
                        host_backward_ns=launch["backward"],
                    )
                )
            if gap < len(children):
                items.append(self.node(children[gap], device, host))
        units = () if unit == VIRTUAL_ROOT else self.shape.states[unit]
        return Node(
            units=tuple(self.number[u] for u in units),
            items=tuple(items),
            checkpoint=self.checkpoint(unit),
        )

    def checkpoint(self, unit: int) -> Checkpoint:
        if unit == VIRTUAL_ROOT:
            return Checkpoint.NONE
        again = self.recomputed()
        if unit in again:
            parents = [u for u, c in self.shape.children.items() if unit in c]
            inherited = any(self.encloses(p) for p in parents)
            return Checkpoint.NONE if inherited else Checkpoint.REENTRANT
        if self.encloses(unit):
            return Checkpoint.NON_REENTRANT
        return Checkpoint.NONE

    def encloses(self, unit: int) -> bool:
        """Whether a module's recomputation is its own, and includes its children's.

        Then they all run again before the first of them runs backward. Of a single
        child it makes no difference whose it is.
        """
        if unit == VIRTUAL_ROOT:
            return False
        if self.spec(unit).checkpointed and unit not in self.recomputed():
            return True
        spans = self.lines[-1].spans
        spans = spans.rows(spans.micro_batch == 0)
        children = self.shape.children.get(unit, ())
        forward, backward = (of_kinds(spans, k) for k in (Kind.FORWARD, Kind.BACKWARD))
        again = forward.rows(forward.flags & Flag.RECOMPUTE != 0)
        again = again.rows(np.isin(again.unit, children))
        backward = backward.rows(np.isin(backward.unit, children))
        if len(again) < 2 or not len(backward):
            return False
        return bool(again.end_ns.max() <= backward.start_ns.min())

    def recomputed(self) -> set[int]:
        """Units whose own forward hooks ran again in backward."""
        spans = of_kinds(self.lines[-1].spans, Kind.FORWARD)
        return set(spans.unit[spans.flags & Flag.RECOMPUTE != 0].tolist())

    def unit(self, at: int, mesh: Mesh, fits: Mapping[str, Fit]) -> Unit:
        spec = self.spec(at)
        dtype = spec.orig_dtype or spec.gather_dtype or "float32"
        unit = Unit(
            fqn=spec.fqn,
            params=self.params(spec, at, mesh),
            orig_dtype=dtype,
            param_dtype=spec.param_dtype,
            reduce_dtype=spec.reduce_dtype,
            reshard_after_forward=self.reshards(spec, at),
            unshard_in_backward=spec.unshard_in_backward is not False,
            unshard_async_op=bool(spec.unshard_async_op),
            forward_prefetch=self.targets(spec.forward_prefetch),
            backward_prefetch=self.targets(spec.backward_prefetch),
            post_backward_at_end=self.reduces_at_end(at),
            copy_in_ns=self.each(Kind.COPY_IN, at),
            copy_out_ns=self.each(Kind.COPY_OUT, at),
            reduce_copy_in_ns=self.each(Kind.REDUCE_COPY_IN, at),
        )
        shards = mesh.shard
        gather, reduce = fits.get("all_gather"), fits.get("reduce_scatter")
        more = gather.extra_ns(at, unit.gathered_bytes(shards)) if gather else 0
        extra = reduce.extra_ns(at, unit.reduced_bytes(shards)) if reduce else 0
        return replace(unit, gather_extra_ns=more, reduce_extra_ns=extra)

    def params(self, spec: UnitSpec, at: int, mesh: Mesh) -> tuple[Param, ...]:
        """As the unit says; where it does not, or gathers other bytes, by those."""
        params = []
        for p in spec.params:
            rows = p.shape[p.shard_dim] if p.shape else 1
            numel = int(np.prod(p.shape, dtype=np.int64))
            row = numel // rows if rows else 0
            params.append(Param(fqn=p.fqn, rows=rows, row=row, trainable=p.trainable))
        gathered = self.bytes_of(Kind.ALL_GATHER, at)
        if gathered == UNKNOWN:
            gathered = spec.unsharded_bytes
        dtype = spec.param_dtype or spec.orig_dtype or spec.gather_dtype or "float32"
        said = sum(p.padded(mesh.shard) for p in params) * ITEMSIZE[dtype]
        if params and gathered in (UNKNOWN, said):
            return tuple(params)
        rows = max(gathered, 0) // ITEMSIZE[dtype]
        trains = self.bytes_of(Kind.REDUCE_SCATTER, at) != UNKNOWN
        return (Param(fqn=spec.fqn, rows=rows, row=1, trainable=trains),)

    def bytes_of(self, kind: Kind, unit: int) -> int:
        rows = (self.collectives.kind == kind) & (self.collectives.unit == unit)
        return int(self.collectives.bytes[rows].max()) if rows.any() else UNKNOWN

    def reshards(self, spec: UnitSpec, at: int) -> bool | int:
        """As it acts: an unknown policy shows in whether backward gathers again."""
        if spec.reshard_after_forward is not None:
            return spec.reshard_after_forward
        rows = self.collectives.rows(
            (self.collectives.kind == Kind.ALL_GATHER) & (self.collectives.unit == at)
        )
        return len(np.unique(rows.phase)) > 1

    def targets(self, units: Sequence[int] | None) -> tuple[int, ...]:
        return tuple(self.number[u] for u in units or () if u in self.number)

    def reduces_at_end(self, unit: int) -> bool:
        """Whether its reduction is issued by the callback at the end of backward."""
        spans = self.lines[-1].spans
        mine = of_kinds(spans, Kind.REDUCE)
        mine = mine.rows(mine.unit == unit)
        callback = self.callbacks()
        # Both times are the host's, which may be far ahead of the compute lane.
        last = int(mine.start_ns.max(initial=NO_TIME))
        if not self.blocking and len(callback) and last > callback.start_ns.max():
            return True
        backward = of_kinds(spans, Kind.BACKWARD)
        others = backward.rows(backward.unit != unit)
        if not len(mine) or not len(others):
            return self.spec(unit).is_root
        own = backward.end_ns[backward.unit == unit]
        ends = own if not self.blocking and len(own) else others.end_ns
        after_all = mine.start_ns.max() >= ends.max()
        return bool(after_all) and self.issued_by_callback(mine)

    def callbacks(self) -> Spans:
        """The hooks that end a backward, of one step."""
        hooks = of_kinds(self.lines[-1].spans, Kind.HOOK)
        names = [self.data.name(int(n)) for n in hooks.name]
        named = [name == "root_post_backward_callback" for name in names]
        return hooks.rows(np.array(named, dtype=bool))

    def issued_by_callback(self, reductions: Spans) -> bool:
        callback = self.callbacks()
        if not len(callback):
            return True
        last = int(reductions.start_ns.max())
        return bool(((callback.start_ns <= last) & (callback.end_ns >= last)).any())

    # -- costs

    def each(self, kind: Kind, unit: int) -> int:
        """What a unit's copies take each."""
        if kind not in self.copies:
            self.copies[kind] = Spans.concat(
                [of_kinds(line.spans, kind) for line in self.lines]
            )
        copies = self.copies[kind]
        took = copies.duration_ns[copies.unit == unit]
        return round(float(took.mean())) if len(took) else 0

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


def _alike(lines: Sequence[Timeline]) -> list[Timeline]:
    """The steps with the usual number of micro-batches and collectives."""
    kinds = [(x.record.micro_batches, len(x.collectives)) for x in lines]
    usual = max(set(kinds), key=kinds.count)
    return [x for x, kind in zip(lines, kinds, strict=True) if kind == usual]


MIN_MIDDLE = 3
"""Of fewer steps all are taken."""


def _middle(lines: Sequence[Timeline]) -> list[Timeline]:
    """The middle half by duration, in their order. See [Note: Middle steps]."""
    ordered = sorted(lines, key=lambda line: line.duration_ns)
    aside = min(len(ordered) // 4, max(len(ordered) - MIN_MIDDLE, 0) // 2)
    kept = ordered[aside : len(ordered) - aside]
    return sorted(kept, key=lambda line: line.step)


def _outside(parts: Sequence[Partition]) -> dict[str, int]:
    names = (BEFORE, BETWEEN, LOSS, AFTER)
    if not parts:
        return dict.fromkeys(names, 0)
    return {name: mean(part.outside.get(name, 0) for part in parts) for name in names}


def _share(total: int, count: int) -> int:
    return round(total / count) if count > 0 else 0


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
