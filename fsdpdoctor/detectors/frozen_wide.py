"""Frozen parameters in float32 where the model trains in a narrower dtype (FD503)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.judged_steps import all_units, gathered_bytes, per_step
from fsdpdoctor.detectors.remedies import plan_advice, several_models
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, percent, size
from fsdpdoctor.schema import UnitSpec

NARROW = ("bfloat16", "float16")

# `docs/detectors.md` D14: of the bytes that all units gather in a step, or that a rank
# holds of parameters. Norms and routers that are kept wide on purpose are far below.
LEAST_SHARE, WARNING_SHARE = 0.02, 0.10

FLOAT32_BYTES = 4


def trained_dtype(specs: Mapping[str, UnitSpec]) -> str | None:
    """The narrow dtype in which most of what trains is gathered; None: it is wide."""
    numel: dict[str | None, int] = {}
    for spec in specs.values():
        if spec.trainable_numel > 0:
            known = numel.get(spec.gather_dtype, 0)
            numel[spec.gather_dtype] = known + spec.trainable_numel
    most = max(numel, key=lambda dtype: numel[dtype], default=None)
    return most if most in NARROW else None


def gathered_wide(specs: Mapping[str, UnitSpec]) -> list[str]:
    """Units of which nothing trains, gathered in float32 beside narrow ones."""
    if trained_dtype(specs) is None:
        return []
    return [
        fqn
        for fqn, spec in specs.items()
        if spec.gather_dtype == "float32" and 0 < spec.frozen_numel == spec.numel
    ]


def wide_findings(m: Measures) -> Iterator[Finding]:
    """What is gathered in float32 for nothing, and what is only held so."""
    specs = all_units(m)
    dtype = trained_dtype(specs)
    if dtype is None:
        return
    wide = gathered_wide(specs)
    if wide:
        yield from _gathered(m, specs, wide, dtype)
    yield from _held(m, specs, dtype)


def _gathered(
    m: Measures, specs: Mapping[str, UnitSpec], wide: list[str], dtype: str
) -> Iterator[Finding]:
    moved, every = gathered_bytes(m, wide), gathered_bytes(m)
    saved = per_step(m, moved) // 2
    share = moved / 2 / every if every else 0.0
    if share < LEAST_SHARE:
        return
    held = sum(max(specs[fqn].shard_bytes, 0) for fqn in wide)
    yield Finding(
        severity=Severity.WARNING if share >= WARNING_SHARE else Severity.INFO,
        # That it is wide is certain; that nobody wanted it so is not.
        confidence=Confidence.MEDIUM,
        summary=f"{count(len(wide), 'frozen unit')} are gathered in float32 beside "
        f"parameters that train in {dtype}: {size(saved)} per step and rank "
        f"({percent(share)} of all gathered bytes) for nothing",
        units=tuple(wide),
        cost_bytes=saved,
        evidence={
            "gather_dtype": "float32",
            "trained_dtype": dtype,
            "share_of_gathered_bytes": round(share, 4),
            "held_bytes": held,
        },
        advice=_narrow_policy(m, dtype),
    )


def _narrow_policy(m: Measures, dtype: str) -> tuple[Advice, ...]:
    said = (
        f"Gather the frozen units in {dtype}, too: the policy casts what enters them. "
        "A tower that is wide on purpose (a VAE) can stay so."
    )
    if several_models(m):
        return (Advice(text=said),)
    return (plan_advice(m, said, {"param_dtype": dtype}, memory_cost_bytes=0),)


def _held(m: Measures, specs: Mapping[str, UnitSpec], dtype: str) -> Iterator[Finding]:
    """Frozen shards in float32 of which only the cast to a narrow dtype is used."""
    names: list[str] = []
    wide = every = 0
    for fqn, spec in specs.items():
        every += max(spec.shard_bytes, 0)
        cast = spec.param_dtype in NARROW
        numel = sum(
            param.padded_local_numel
            for param in spec.params
            if cast and not param.trainable and param.dtype == "float32"
        )
        if numel:
            names.append(fqn)
            wide += numel * FLOAT32_BYTES
    saved = wide // 2
    share = saved / every if every else 0.0
    if share < LEAST_SHARE:
        return
    yield Finding(
        severity=Severity.WARNING if share >= WARNING_SHARE else Severity.INFO,
        confidence=Confidence.HIGH,
        summary=f"frozen parameters of {count(len(names), 'unit')} are held in "
        f"float32 and only ever used in {dtype}: {size(saved)} of each rank's memory "
        f"({percent(share)} of its parameters' shards) for nothing",
        units=tuple(names),
        cost_bytes=saved,
        evidence={
            "stored_dtype": "float32",
            "used_dtype": dtype,
            "share_of_shards": round(share, 4),
        },
        advice=(
            Advice(
                text=f"Store what never changes in {dtype}: every gather casts it to "
                "the same values already, so losses stay what they are. Only what "
                "trains needs float32, for the optimizer.",
                code="\n".join(
                    [
                        "import torch",
                        "",
                        "# `model` is your plain model: before its fully_shard calls.",
                        "for parameter in model.parameters():",
                        "    if not parameter.requires_grad:",
                        f"        parameter.data = parameter.data.to(torch.{dtype})",
                    ]
                ),
                memory_cost_bytes=-saved,
            ),
        ),
    )
