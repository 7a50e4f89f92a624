"""FD501: the mesh does not fit what it runs on, or is not the one meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fsdpdoctor.analysis.alike.exchanges import Exchange, Unkept, exchanges, stages
from fsdpdoctor.analysis.alike.reaches import Sets, place_of, reaches
from fsdpdoctor.analysis.alike.replicas import Replica, compared, pairs_that_differ
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.sharding_code import MESH_IMPORT, dimensions, mesh_lines
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import all_units
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, percent, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, ReplicaKind, UnitSpec

# `docs/detectors.md` D12: between hosts the gathers must cost this share of the step
# before more memory is spent on keeping them within one.
EXPOSED_SHARE = 0.15

# Parameter, gradient and two Adam states in the stored dtype.
COPIES = 4

SHARDED_BY_NAME = re.compile(
    r"shard|fsdp|zero|(^|_)(cp|context|sp|seq|ulysses)", re.IGNORECASE
)
"""Names of dimensions that FSDP2 is meant to shard over: data and sequences."""

REPLICATED_BY_NAME = re.compile(r"^(dp|ddp|data|node|host)|replic", re.IGNORECASE)
"""Names of dimensions that it is meant to replicate over."""


@detector("FD501", "topology-mesh", needs={Evidence.UNITS, Evidence.CONFIG})
def topology_mesh(m: Measures) -> Iterator[Finding]:
    """The mesh given to `fully_shard` does not fit the job.

    *Why it costs*: if a mesh for hybrid sharding is built and only its shard
    dimension passed, nothing reduces gradients over the replicas: they train apart,
    silently. One mesh over all ranks of several hosts sends every all-gather over
    the slow links. A dimension of size 1 issues collectives that do nothing, or
    keeps a whole copy. Two dimensions that were meant to be one (data and context
    parallel) make FSDP2 replicate over the first.

    *What to try*: pass the two-dimensional mesh itself,
    `("replicate", "shard")`, with the shard dimension inside a host.

    *When it is wrong*: a mesh for tensor, pipeline or expert parallelism is rightly
    sliced. That replicas train apart is said only where samples of two ranks prove
    it: they began alike, and differ, exchange no activations, as stages of a pipeline
    and experts do, and the script does not average them itself. Where they exchange
    some, the names of the mesh's dimensions decide, and it is a warning. Ranks that
    see the same data stay alike, and nothing is said. Hybrid sharding needs room for
    a whole replica per host: the memory is given.
    """
    specs = all_units(m)
    if not any(spec.mesh for spec in specs.values()):
        raise CannotTell("the meshes were not recorded", Evidence.CONFIG)
    apart = list(_apart(m, specs)) or list(_by_name(m, specs))
    yield from (finding for finding in apart if finding is not None)
    rest = [
        *_meant_flat(m, specs),
        *_ones(m, specs),
        *_inside_out(m, specs),
        *_spanning(m, specs),
    ]
    yield from rest
    if apart == [None] and not rest:
        raise CannotTell(
            "ranks that share no group of a unit's began alike and differ, and "
            "exchange work in their forwards: they may hold other parts",
            Evidence.CONFIG,
        )


def _apart(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding | None]:
    """Replicas that nobody reduces over, proved: they began alike and are not now.

    Which ranks should be replicas is not asked of names or sizes: tensor, pipeline
    and expert parallelism leave ranks outside a unit's groups by right. These never
    held the same values, or still do, or exchange work in their forwards: then only
    the names of the dimensions are left to ask, and without them nobody knows (None).
    """
    headers = [rank.header for rank in m.ranks]
    reached = reaches(headers)
    if Evidence.REPLICAS not in m.evidence and any(
        len(reached.get(fqn, ())) > 1 for fqn in specs
    ):
        raise CannotTell(
            "some ranks are in no group of a unit's, and whether they are replicas was "
            "not sampled",
            Evidence.REPLICAS,
        )
    torn = list(_torn(m, specs, reached))
    proved = {one.unit: one for one in torn if one.work is None}
    if proved:
        yield _train_apart(m, specs, proved, Severity.CRITICAL)
        return
    perhaps = {one.unit: one for one in torn}
    if perhaps:
        named = _left_out(specs[next(iter(perhaps))])
        yield _train_apart(m, specs, perhaps, Severity.WARNING) if named else None


class _Torn(NamedTuple):
    """A unit whose parts on two ranks began alike, and that nothing keeps so."""

    unit: str
    sample: Replica
    work: Exchange | None  # what such ranks exchange in their forwards


def _torn(
    m: Measures, specs: dict[str, UnitSpec], reached: Mapping[str, Sets]
) -> Iterator[_Torn]:
    unit_of = {p.fqn: spec.fqn for spec in specs.values() for p in spec.params}
    drifted = [
        (unit_of[one.name], one)
        for one in compared([rank.header for rank in m.ranks])
        if one.kind == ReplicaKind.SHARD and one.name in unit_of and one.drifted
    ]
    if not drifted:
        return
    held = sum(max(spec.shard_bytes, 0) for spec in specs.values())
    stage_of, unkept = stages(m.ranks), Unkept(exchanges(m.ranks), held)
    places = {unit: place_of(reached.get(unit, [])) for unit, _ in drifted}
    for unit, one in drifted:
        place = places[unit]

        def kind(rank: int, place: dict[int, int] = place) -> tuple[object, ...]:
            return stage_of.get(rank), place.get(rank), unkept.kind(rank)

        works = [
            work
            for a, b in pairs_that_differ(one, kind)
            if stage_of.get(a) == stage_of.get(b)
            and (a not in place or place[a] != place.get(b))
            for work in unkept.works(a, b)
        ]
        if works:
            yield _Torn(unit, one, None if None in works else works[0])


def _left_out(spec: UnitSpec) -> bool:
    """Whether the dimensions that a unit was not given hold data, by their names."""
    parent = spec.parent_meshes[0] if spec.parent_meshes else ""
    mine = {name for name, _ in dimensions(spec.mesh or "")}
    left = [name or "" for name, _ in dimensions(parent) if name not in mine]
    return bool(left) and all(
        SHARDED_BY_NAME.search(name) or REPLICATED_BY_NAME.search(name) for name in left
    )


def _by_name(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Before there are ranks to compare, only names can be asked: a slice was passed of
    a mesh whose other dimension replicates, and the script sends nothing over it.
    """
    if m.run.source != "rehearsal":
        return
    left = {fqn: spec for fqn, spec in specs.items() if _left_out(spec)}
    reached, sent = reaches([rank.header for rank in m.ranks]), exchanges(m.ranks)
    left = {
        fqn: spec
        for fqn, spec in left.items()
        if _replicates(spec) and not _kept(reached.get(fqn, []), sent)
    }
    if not left:
        return
    spec = next(iter(left.values()))
    parent = spec.parent_meshes[0]
    lengths = [length for _, length in dimensions(parent)]
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{count(len(left), 'unit')} got the part {spec.mesh} of the mesh "
        f"{parent}: by its names the rest replicates, and gradients are never reduced "
        "over it, so that the replicas would train apart",
        units=tuple(left),
        phase="backward",
        evidence={"mesh": spec.mesh, "sliced_from": parent},
        advice=(_whole(m, lengths),),
    )


def _replicates(spec: UnitSpec) -> bool:
    """Whether a dimension that it was not given replicates, by its name."""
    mine = {name for name, _ in dimensions(spec.mesh or "")}
    return any(
        length > 1 and name not in mine and REPLICATED_BY_NAME.search(name or "")
        for name, length in dimensions(spec.parent_meshes[0])
    )


def _kept(together: Sets, sent: Sequence[Exchange]) -> bool:
    """Whether the script itself sends something beyond a unit's groups."""
    place = place_of(together)
    reached = ({place.get(rank) for rank in one.ranks} for one in sent)
    return any(len(places) > 1 or None in places for places in reached)


def _whole(m: Measures, lengths: list[int]) -> Advice:
    return Advice(
        text="Pass the whole mesh: its first dimension replicates, its second shards.",
        code=_mesh_code(m, lengths),
        memory_cost_bytes=0,
    )


def _train_apart(
    m: Measures,
    specs: dict[str, UnitSpec],
    torn: dict[str, _Torn],
    severity: Severity,
) -> Finding:
    first = next(iter(torn.values()))
    spec, proof, work = specs[first.unit], first.sample, first.work
    parent = spec.parent_meshes[0] if spec.parent_meshes else None
    over = dimensions(parent or "")
    of = f" of the mesh {parent}" if parent else ""
    perhaps = (
        ""
        if work is None
        else f". They exchange {work.kind} in their forwards: right if they hold other "
        "parts of the model there, and wrong if the same ones"
    )
    return Finding(
        severity=severity,
        confidence=Confidence.HIGH if work is None else Confidence.MEDIUM,
        summary=f"{count(len(torn), 'unit')} got the part {spec.mesh}{of}: gradients "
        "are never reduced over the rest of it, so the replicas train apart: ranks "
        f"{' and '.join(_camp(camp) for camp in proof.camps)} began alike and differ "
        f"since step {proof.differ_since}{perhaps}",
        units=tuple(torn),
        phase="backward",
        evidence={
            "mesh": spec.mesh,
            "sliced_from": parent,
            "parameter": proof.name,
            "began_alike": list(proof.ranks),
            "alike_at_the_end": [list(camp) for camp in proof.camps],
            "differ_since_step": proof.differ_since,
            **({} if work is None else {"exchange": work.kind, "at": work.where}),
        },
        advice=(
            _flat([name for name, _ in over], _less(tuple(torn), specs, over[-1][1]))
            if len(over) == 2 and SHARDED_BY_NAME.search(over[0][0] or "")
            else _whole(
                m, [length for _, length in over or dimensions(spec.mesh or "")]
            ),
        ),
    )


def _less(found: Iterable[str], specs: Mapping[str, UnitSpec], times: int) -> int:
    """What a rank holds more of, if it shards over so many times as many ranks."""
    held = (max(specs[name].shard_bytes, 0) for name in found)
    return -sum(shard * (times - 1) // times for shard in held)


def _flat(names: Sequence[str | None], memory_cost_bytes: int) -> Advice:
    """Two dimensions over which units are meant to be sharded, as one."""
    flat = "_".join(name or "dim" for name in names)
    listed = ", ".join(map(repr, names))
    return Advice(
        text="Flatten the two dimensions into one, and shard over that.",
        code="\n".join(
            [
                "# `mesh` is your device mesh, with all of its dimensions.",
                f"shard_mesh = mesh[{listed}]._flatten({flat!r})",
                "# Then fully_shard(module, mesh=shard_mesh) for every unit.",
            ]
        ),
        memory_cost_bytes=memory_cost_bytes,
    )


def _camp(ranks: tuple[int, ...]) -> str:
    return "/".join(map(str, ranks))


def _meant_flat(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Two dimensions that both say that they shard: FSDP2 replicates over the first."""
    found = {
        fqn: dims
        for fqn, spec in specs.items()
        if spec.replicate_group != UNKNOWN
        and len(dims := dimensions(spec.mesh or "")) == 2
        and dims[0][1] > 1
        and SHARDED_BY_NAME.search(dims[0][0] or "")
    }
    if not found:
        return
    fqn, ((first, over), (second, _)) = next(iter(found.items()))
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        summary=f"{count(len(found), 'unit')} got the two-dimensional mesh "
        f"{specs[fqn].mesh}: FSDP2 replicates over {first} and shards over {second} "
        f"alone, so each rank holds {over} times what it would of both, and every "
        "gradient is all-reduced, too",
        units=tuple(found),
        phase="backward",
        evidence={
            "mesh": specs[fqn].mesh,
            "replicates_over": first,
            "shards_over": second,
        },
        advice=(
            _flat(
                (first, second),
                _less(found, specs, over),
            ),
        ),
    )


def _mesh_code(m: Measures, shape: list[int]) -> str:
    return "\n".join(
        [
            MESH_IMPORT,
            "",
            *mesh_lines(m.run.device, shape[-2:], ("replicate", "shard")),
            "# Then fully_shard(module, mesh=mesh) for every unit, not a part of it.",
        ]
    )


def _ones(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Two-dimensional meshes with a dimension of one."""
    for which, says in (
        (0, "every all-reduce has one rank and does nothing: a 1-D mesh is enough"),
        (1, "nothing is sharded: every rank keeps a whole copy"),
    ):
        names = [
            fqn
            for fqn, spec in specs.items()
            if spec.mesh
            and len(dims := dimensions(spec.mesh)) == 2
            and dims[which][1] == 1
            and dims[1 - which][1] > 1
        ]
        if not names:
            continue
        spec = specs[names[0]]
        yield Finding(
            severity=Severity.INFO,
            confidence=Confidence.HIGH,
            summary=f"{count(len(names), 'unit')} on the mesh {spec.mesh}: {says}",
            units=tuple(names),
            evidence={"mesh": spec.mesh},
        )


def _hosts(m: Measures, group: int) -> int:
    """How many hosts a group of the first rank's reaches; 0 where it is not known.

    By the names of those that left a record, where these differ; else by where
    launchers put ranks, so many in a row to a host: containers are often named alike.
    """
    header = m.ranks[0].header
    if not 0 <= group < len(header.groups):
        return 0
    host_of = {rank.rank: rank.header.host for rank in m.ranks}
    ranks = header.groups[group].ranks
    named = {host_of.get(rank) for rank in ranks}
    if None not in named and len(named) > 1:
        return len(named)
    per_host = header.local_world_size  # 1 where no launcher said it
    return len({rank // per_host for rank in ranks}) if per_host > 1 else 0


def _inside_out(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Hybrid sharding that shards over hosts, and replicates within one."""
    per_host = max(m.ranks[0].header.local_world_size, 1)
    names = [
        fqn
        for fqn, spec in specs.items()
        if _hosts(m, spec.shard_group) > 1 and _hosts(m, spec.replicate_group) == 1
    ]
    if per_host == 1 or not names:
        return
    stalls = exposed(m).of(Kind.ALL_GATHER, Kind.REDUCE_SCATTER).named(*names)
    over = _hosts(m, specs[names[0]].shard_group)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        summary=f"{count(len(names), 'unit')} shard over {over} hosts and replicate "
        "within one: every gather crosses hosts, and only the all-reduce, once in a "
        "backward pass, has the fast links",
        units=tuple(names),
        ranks=stalls.ranks(),
        cost_ns_per_step=stalls.ns_per_step if m.stalls_known else None,
        evidence={"hosts": over, "ranks_per_host": per_host},
        advice=(
            Advice(
                text="Shard within each host and replicate over hosts.",
                code=_mesh_code(m, [over, per_host]),
                memory_cost_bytes=0,
            ),
        ),
        places=stalls.places(),
    )


def _spanning(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """One shard group over several hosts, exposed."""
    per_host = max(m.ranks[0].header.local_world_size, 1)
    if not m.stalls_known or not len(m.step_ns):
        return
    names = [
        fqn
        for fqn, spec in specs.items()
        if spec.replicate_group == UNKNOWN and _hosts(m, spec.shard_group) > 1
    ]
    stalls = exposed(m).of(Kind.ALL_GATHER, Kind.REDUCE_SCATTER).named(*names)
    wire_ns = stalls.mean(stalls.rows.wire)
    share = wire_ns / float(m.step_ns.mean())
    if not names or share < EXPOSED_SHARE:
        return
    over = _hosts(m, specs[names[0]].shard_group)
    memory = sum(max(specs[fqn].shard_bytes, 0) for fqn in names)
    memory *= (over - 1) * COPIES
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{count(len(names), 'unit')} shard over {over} hosts, and "
        f"{percent(share)} of the step waits for their bytes; sharding within a host "
        f"takes {size(memory)} more per rank",
        units=tuple(names),
        ranks=stalls.ranks(),
        cost_ns_per_step=wire_ns,
        evidence={
            "hosts": over,
            "ranks_per_host": per_host,
            "wire_ns": wire_ns,
            "share_of_step": round(share, 4),
        },
        advice=(
            Advice(
                text="Shard within each host and replicate over hosts; the memory is "
                "for parameters, gradients and two optimizer states.",
                code=_mesh_code(m, [over, per_host]),
                memory_cost_bytes=memory,
            ),
        ),
        places=stalls.places(),
    )
