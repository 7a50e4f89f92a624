"""FD204: gathered bytes are padding, or badly aligned."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.before_a_gpu import ALIGNMENT, unaligned, without_gpu
from fsdpdoctor.detectors.judged_steps import all_units, judged_collectives
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity, Value
from fsdpdoctor.quantities import count, percent, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, UnitSpec, median

# `docs/detectors.md` D15: 2 % of a unit, and 2 % of all gathered bytes for a warning.
PADDING_SHARE = 0.02

# D15 and K01: NCCL all-gathers whose part per rank is no multiple of 16 bytes were
# seen at less than 70 % of the bandwidth of aligned ones of like size.
SLOW, LIKE_SIZE = 0.70, 2.0


@detector("FD204", "padding-alignment", needs={Evidence.UNITS, Evidence.CONFIG})
def padding_alignment(m: Measures) -> Iterator[Finding]:
    """Part of what a unit gathers is padding, or its parts are badly aligned.

    FSDP2 cuts each parameter along a dimension into equal parts and pads the last
    ones. A dimension smaller than the ranks leaves some with nothing but padding.

    *Why it costs*: padding is sent, received and held like parameters. NCCL copies
    unaligned buffers by slower paths.

    *What to try*: sizes that divide by the ranks (vocabulary, experts), sharding
    along another dimension with `shard_placement_fn`, a smaller shard mesh.

    *When it is wrong*: padding of small parameters beside large ones hardly counts;
    it is reported by its share of the unit's bytes. Alignment is judged only on
    NCCL, and only against aligned units of like size in the same run; of a run on CPU
    or a modelled device it is said what NCCL will do, as information.
    """
    specs = all_units(m)
    if not any(spec.padding_bytes != UNKNOWN for spec in specs.values()):
        raise CannotTell("padding was not recorded", Evidence.CONFIG)
    padded = [
        spec
        for spec in specs.values()
        if spec.unsharded_bytes > 0
        and spec.padding_bytes >= PADDING_SHARE * spec.unsharded_bytes
    ]
    if padded:
        yield _padding(m, specs, padded)
    yield from unaligned(m, specs) if without_gpu(m) else _alignment(m, specs)


def _padding(
    m: Measures, specs: dict[str, UnitSpec], padded: list[UnitSpec]
) -> Finding:
    padded.sort(key=lambda spec: -spec.padding_bytes)
    wasted = sum(spec.padding_bytes for spec in padded)
    every = sum(max(spec.unsharded_bytes, 0) for spec in specs.values())
    causes: list[Value] = [
        {
            "parameter": p.fqn,
            "shape": list(p.shape),
            "shard_dim": p.shard_dim,
            "local_numel": p.local_numel,
            "padded_local_numel": p.padded_local_numel,
        }
        for spec in padded[:5]
        for p in sorted(
            spec.params, key=lambda p: p.local_numel - p.padded_local_numel
        )[:2]
    ]
    worst = padded[0]
    return Finding(
        severity=Severity.WARNING if wasted >= PADDING_SHARE * every else Severity.INFO,
        confidence=Confidence.HIGH,
        summary=f"{size(wasted)} of what {count(len(padded), 'unit')} gather is "
        f"padding, {percent(worst.padding_bytes / worst.unsharded_bytes)} of what "
        f"{worst.fqn} gathers",
        units=tuple(spec.fqn for spec in padded),
        cost_bytes=wasted,
        evidence={
            "share_of_gathered_bytes": round(wasted / max(every, 1), 4),
            "empty_ranks": dict(_empty(m, {spec.fqn for spec in padded})),
            "parameters": causes,
        },
        advice=(_even(m, padded, wasted),),
    )


def _even(m: Measures, padded: list[UnitSpec], wasted: int) -> Advice:
    """Another dimension where one divides by the ranks; else only other sizes do."""
    ranks = _ranks(m)
    shapes = [
        p.shape
        for spec in padded
        for p in spec.params
        if p.local_numel < p.padded_local_numel or (p.shape and p.shape[0] % ranks)
    ]
    if shapes and not any(n % ranks == 0 for shape in shapes for n in shape):
        return Advice(
            text=f"No dimension of these parameters divides by {ranks}: only other "
            "sizes of the model, or fewer ranks that shard, need no padding."
        )
    return Advice(
        text="Shard along a dimension that divides by the ranks.",
        code=_placement(m),
        memory_cost_bytes=-wasted,
    )


def _placement(m: Measures) -> str:
    return f"""\
from torch.distributed.tensor import Shard

def shard_where_even(param, ranks={_ranks(m)}):
    \"\"\"Pass as fully_shard(..., shard_placement_fn=shard_where_even).\"\"\"
    for dim, length in enumerate(param.shape):
        if length % ranks == 0:
            return Shard(dim)
    return None"""


def _ranks(m: Measures) -> int:
    """The shard group's size."""
    header = m.ranks[0].header
    groups = {u.shard_group for u in header.units}
    sizes = [header.groups[g].size for g in groups if 0 <= g < len(header.groups)]
    return max(sizes, default=m.run.world_size)


def _empty(m: Measures, units: set[str]) -> Iterator[tuple[str, int]]:
    """Parameters of which some ranks hold nothing, with how many ranks."""
    counts: dict[str, int] = {}
    for rank in m.ranks:
        for spec in rank.units:
            for param in spec.params if spec.fqn in units else ():
                if param.local_numel == 0:
                    counts[param.fqn] = counts.get(param.fqn, 0) + 1
    yield from counts.items()


def _alignment(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Units whose part per rank is unaligned, and slower for it."""
    speeds = _bandwidths(m)
    for fqn, speed in speeds.items():
        part = specs[fqn].unsharded_bytes // _ranks(m)
        if part % ALIGNMENT == 0:
            continue
        like = [
            other
            for name, other in speeds.items()
            if (specs[name].unsharded_bytes // _ranks(m)) % ALIGNMENT == 0
            and 1 / LIKE_SIZE
            <= specs[name].unsharded_bytes / specs[fqn].unsharded_bytes
            <= LIKE_SIZE
        ]
        if not like or speed >= SLOW * max(like):
            continue
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
            summary=f"{fqn} sends {part:,} bytes per rank, no multiple of "
            f"{ALIGNMENT}, at {percent(speed / max(like))} of the bandwidth of an "
            "aligned unit of like size",
            units=(fqn,),
            evidence={
                "bytes_per_rank": part,
                "remainder": part % ALIGNMENT,
                "bytes_per_second": round(speed),
                "aligned_bytes_per_second": round(max(like)),
            },
            advice=(
                Advice(
                    text="Pad or move the parameter whose rows break the alignment.",
                    memory_cost_bytes=0,
                ),
            ),
        )


def _bandwidths(m: Measures) -> dict[str, float]:
    """Bytes per second of each unit's all-gathers over NCCL, in the median."""
    durations: dict[str, list[int]] = {}
    for rank, rows in judged_collectives(m):
        if not any(group.backend == "nccl" for group in rank.header.groups):
            continue
        mine = rows.rows((rows.kind == Kind.ALL_GATHER) & (rows.unit != UNKNOWN))
        for unit, time_ns in zip(mine.unit, mine.duration_ns, strict=True):
            spec = rank.units[unit]
            if spec.unsharded_bytes > 0 and time_ns > 0:
                durations.setdefault(spec.fqn, []).append(int(time_ns))
    units = all_units(m)
    return {
        fqn: units[fqn].unsharded_bytes / median(times) * 1e9
        for fqn, times in durations.items()
    }
