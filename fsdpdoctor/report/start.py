"""How long it took until the first step had ended, part by part."""

from __future__ import annotations

import msgspec

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.intervals import total_ns, union
from fsdpdoctor.schema import COUNTER_COMPILE_NS, Kind, StartSpec


class StartRow(msgspec.Struct, frozen=True, kw_only=True):
    """Of the rank that took longest; the parts add up to the whole."""

    rank: int
    total_ns: int  # from the process's start to the end of its first step
    import_ns: int  # until `init_process_group`: interpreter, imports, what lies before
    init_ns: int
    mesh_ns: int
    wrap_ns: int
    load_ns: int  # checkpoints
    compile_ns: int
    first_step_ns: int  # from its first forward, compilation left out
    other_ns: int  # building the model, data, all else


def start_row(m: Measures) -> StartRow | None:
    """None where no rank was seen from its beginning, or nothing was recorded."""
    if m.run.source != "recorded":
        return None  # a modelled device has another clock than its process
    known = [(r, r.header.start) for r in m.ranks if r.header.start is not None]
    if not known:
        return None
    rank, start = max(known, key=lambda one: (one[1].total_ns, -one[0].rank))
    load_ns, compile_ns = _load_ns(rank), _compile_ns(rank, start)
    first_step_ns = start.first_step_ns - compile_ns
    named = start.import_ns + start.init_ns + start.mesh_ns + start.wrap_ns
    return StartRow(
        rank=rank.rank,
        total_ns=start.total_ns,
        import_ns=start.import_ns,
        init_ns=start.init_ns,
        mesh_ns=start.mesh_ns,
        wrap_ns=start.wrap_ns,
        load_ns=load_ns,
        compile_ns=compile_ns,
        first_step_ns=first_step_ns,
        other_ns=max(start.total_ns - named - load_ns - compile_ns - first_step_ns, 0),
    )


def _load_ns(rank: RankMeasures) -> int:
    """Of the first step: what a script loads before it is in it."""
    host = rank.host
    loads = host.rows((host.kind == Kind.CHECKPOINT_LOAD) & (host.step == 0))
    return int(total_ns(union(loads.start_ns, loads.end_ns)))


def _compile_ns(rank: RankMeasures, start: StartSpec) -> int:
    """Of the first step; never more than it."""
    counters = rank.counters
    found = [
        value
        for step, name, value in zip(
            counters.step.tolist(),
            counters.name.tolist(),
            counters.value.tolist(),
            strict=True,
        )
        if step == 0 and rank.name(name) == COUNTER_COMPILE_NS
    ]
    return min(max(found, default=0), start.first_step_ns)
