"""A unit of the step: its parameters, its settings as they act, its own costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fsdpdoctor.analysis.timeline import of_kinds
from fsdpdoctor.schema import (
    ITEMSIZE,
    NO_TIME,
    UNKNOWN,
    Kind,
    Spans,
    UnitSpec,
    distinct,
)
from fsdpdoctor.simulate.calibration.comm_cost import Fit
from fsdpdoctor.simulate.calibration.measured_steps import MeasuredSteps
from fsdpdoctor.simulate.engine.step import (
    Mesh,
    Param,
    Unit,
)


def unit_of(seen: MeasuredSteps, at: int, mesh: Mesh, fits: Mapping[str, Fit]) -> Unit:
    """The unit of an index in the record."""
    spec = seen.spec(at)
    dtype = spec.orig_dtype or spec.gather_dtype or "float32"
    unit = Unit(
        fqn=spec.fqn,
        params=_params(seen, spec, at, mesh),
        orig_dtype=dtype,
        param_dtype=spec.param_dtype,
        reduce_dtype=spec.reduce_dtype,
        reshard_after_forward=_reshards(seen, spec, at),
        unshard_in_backward=spec.unshard_in_backward is not False,
        unshard_async_op=bool(spec.unshard_async_op),
        forward_prefetch=_targets(seen, spec.forward_prefetch),
        backward_prefetch=_targets(seen, spec.backward_prefetch),
        post_backward_at_end=_reduces_at_end(seen, at),
        copy_in_ns=seen.each(Kind.COPY_IN, at),
        copy_out_ns=seen.each(Kind.COPY_OUT, at),
        reduce_copy_in_ns=seen.each(Kind.REDUCE_COPY_IN, at),
    )
    shards = mesh.shard
    gather, reduce = fits.get("all_gather"), fits.get("reduce_scatter")
    more = gather.extra_ns(at, unit.gathered_bytes(shards)) if gather else 0
    extra = reduce.extra_ns(at, unit.reduced_bytes(shards)) if reduce else 0
    return replace(unit, gather_extra_ns=more, reduce_extra_ns=extra)


def _params(
    seen: MeasuredSteps, spec: UnitSpec, at: int, mesh: Mesh
) -> tuple[Param, ...]:
    """As the unit says; where it does not, or gathers other bytes, by those."""
    params = []
    for p in spec.params:
        rows = p.shape[p.shard_dim] if p.shape else 1
        numel = int(np.prod(p.shape, dtype=np.int64))
        row = numel // rows if rows else 0
        params.append(Param(fqn=p.fqn, rows=rows, row=row, trainable=p.trainable))
    gathered = seen.bytes_of(Kind.ALL_GATHER, at)
    if gathered == UNKNOWN:
        gathered = spec.unsharded_bytes
    dtype = spec.param_dtype or spec.orig_dtype or spec.gather_dtype or "float32"
    said = sum(p.padded(mesh.shard) for p in params) * ITEMSIZE[dtype]
    if params and gathered in (UNKNOWN, said):
        return tuple(params)
    rows = max(gathered, 0) // ITEMSIZE[dtype]
    trains = seen.bytes_of(Kind.REDUCE_SCATTER, at) != UNKNOWN
    return (Param(fqn=spec.fqn, rows=rows, row=1, trainable=trains),)


def _reshards(seen: MeasuredSteps, spec: UnitSpec, at: int) -> bool | int:
    """As it acts: an unknown policy shows in whether backward gathers again."""
    if spec.reshard_after_forward is not None:
        return spec.reshard_after_forward
    rows = seen.collectives.rows(
        (seen.collectives.kind == Kind.ALL_GATHER) & (seen.collectives.unit == at)
    )
    return len(distinct(rows.phase)) > 1


def _targets(seen: MeasuredSteps, units: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(seen.number[u] for u in units or () if u in seen.number)


def _reduces_at_end(seen: MeasuredSteps, unit: int) -> bool:
    """Whether its reduction is issued by the callback at the end of backward."""
    spans = seen.lines[-1].spans
    mine = of_kinds(spans, Kind.REDUCE)
    mine = mine.rows(mine.unit == unit)
    callback = seen.callbacks()
    # Both times are the host's, which may be far ahead of the compute lane.
    last = int(mine.start_ns.max(initial=NO_TIME))
    if not seen.blocking and len(callback) and last > callback.start_ns.max():
        return True
    backward = of_kinds(spans, Kind.BACKWARD)
    others = backward.rows(backward.unit != unit)
    if not len(mine) or not len(others):
        return seen.spec(unit).is_root
    own = backward.end_ns[backward.unit == unit]
    ends = own if not seen.blocking and len(own) else others.end_ns
    after_all = mine.start_ns.max() >= ends.max()
    return bool(after_all) and _issued_by_callback(seen, mine)


def _issued_by_callback(seen: MeasuredSteps, reductions: Spans) -> bool:
    callback = seen.callbacks()
    if not len(callback):
        return True
    last = int(reductions.start_ns.max())
    return bool(((callback.start_ns <= last) & (callback.end_ns >= last)).any())
